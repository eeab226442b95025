"""Flink's own changelog, for comparison: a JVM that takes one command at a time.

Owns the JVM and the protocol with it (`flink/FlinkChangelog.java`). Does not own the workload or the
comparison. How to get the jars: `flink/README.md`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

SOURCE = Path(__file__).parent / "flink" / "FlinkChangelog.java"
ANSWER = "answer "


class FlinkSide:
    """One JVM with Flink's jars, compiled against them when it starts. A context manager.

    Args:
        jar_folder: holds `flink-dist-*.jar` and the log4j jars.
    """

    def __init__(self, jar_folder: Path) -> None:
        jars = sorted(jar_folder.glob("flink-dist-*.jar"))
        if not jars or shutil.which("javac") is None:
            sys.exit(f"{jar_folder} holds no flink-dist-*.jar, or there is no javac: see flink/README.md")
        self.version = jars[-1].stem.removeprefix("flink-dist-")
        self._classes = tempfile.TemporaryDirectory()
        class_path = f"{self._classes.name}:{jar_folder}/*"
        subprocess.run(
            ["javac", "-cp", f"{jar_folder}/*", "-d", self._classes.name, str(SOURCE)],
            check=True,
        )
        self._jvm = subprocess.Popen(
            ["java", "-cp", class_path, "FlinkChangelog"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def write_seconds(self, directory: Path, value_bytes: int, delay_ms: int, change_count: int) -> float:
        """Append so many changes and persist each 50,000 of them."""
        return float(self._ask("write", directory, value_bytes, delay_ms, change_count))

    def restore_seconds(self, directory: Path) -> float:
        """Read back what was written last."""
        return float(self._ask("restore", directory))

    def persist_seconds(self, directory: Path, delay_ms: int, repetitions: int) -> float:
        """Median of the persists of 1,000 changes of 100 bytes."""
        return float(self._ask("persist", directory, delay_ms, repetitions))

    def read(self, file: Path, offsets: list[int]) -> list[tuple[int, bytes]]:
        """What Flink's reader finds at these offsets of a file: key group and bytes of each change."""
        changes = (text.split(":") for text in self._ask("read", file, *offsets).split())
        return [(int(key_group), bytes.fromhex(digits)) for key_group, digits in changes]

    def _ask(self, *words: object) -> str:
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        print(*words, sep="\t", file=self._jvm.stdin, flush=True)
        for line in self._jvm.stdout:
            # Flink may log in between.
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER)
        sys.exit(f"the JVM ended at {words}; run it by hand to see why")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._jvm.stdin is not None:
            self._jvm.stdin.close()
        self._jvm.wait()
        self._classes.cleanup()
