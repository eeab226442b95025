"""Flink's jars in a cache: what its changelog needs of `flink-dist`, 35 MB of 190.

Owns the download, what is kept of it, and the cache. Does not own what is done with the jars (`flink_side`).
Run: `python benchmarks/flink/jars.py`; it prints the folder, which `--flink` and `read_ours.py` take.

The only Python distribution of Flink's Java is `apache-flink-libraries`, 312 MB with the connectors and
the native libraries of seven platforms. pip fetches it once; the cache is by version.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

VERSION = "2.2.1"
_UNUSED = (
    "org/apache/flink/kubernetes/",
    "org/apache/flink/shaded/netty",
    "org/apache/flink/shaded/zookeeper",
    "org/forstdb/",
    "org/rocksdb/",
    "META-INF/native/",
    "web/",
)
_FOREIGN_CODE = (".so", ".dll", ".jnilib", ".jar")


def jar_folder(cache: Path | None = None, *, fetch: bool = True) -> Path:
    """The folder of the jars, fetched where the cache does not hold them.

    Args:
        cache: default: `dstl-dagster` in `$XDG_CACHE_HOME`, or in `~/.cache`.
        fetch: false: the folder alone, which may not exist.

    Raises: CalledProcessError where pip cannot fetch the distribution; the cache stays as it was.
    """
    if cache is None:
        home = os.environ.get("XDG_CACHE_HOME")
        cache = (Path(home) if home else Path.home() / ".cache") / "dstl-dagster"
    folder = cache / f"flink-{VERSION}"
    if fetch and not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _fetch(Path(scratch))
            (Path(scratch) / "jars").rename(folder)  # whole or not at all, also when killed
    return folder


def _fetch(scratch: Path) -> None:
    """`scratch/jars`, filled."""
    wanted = f"apache-flink-libraries=={VERSION}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), wanted]
    subprocess.run(pip, check=True)
    jars = scratch / "jars"
    jars.mkdir()
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        for name in wheel.namelist():
            file = Path(name).name
            if name.startswith("pyflink/lib/log4j"):
                (jars / file).write_bytes(wheel.read(name))
            elif name.startswith("pyflink/lib/flink-dist"):
                with wheel.open(name) as whole:
                    _slim(whole, jars / file)


def _slim(whole: IO[bytes], target: Path) -> None:
    """A jar without what the changelog never loads."""
    with (
        zipfile.ZipFile(whole) as source,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as kept,
    ):
        for entry in source.infolist():
            is_snappy = entry.filename.startswith("org/xerial/snappy/native/Linux/")
            is_foreign = entry.filename.endswith(_FOREIGN_CODE)
            if not entry.filename.startswith(_UNUSED) and (is_snappy or not is_foreign):
                kept.writestr(entry, source.read(entry))


if __name__ == "__main__":
    print(jar_folder())
