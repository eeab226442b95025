"""A writer and a stream on a real ext2 whose device runs full beneath it: the fsync fails, once.

    unshare -m python tests/process/full_device.py FOLDER

Needs root, for the loop device. Prints one JSON document: what each call said, and what a reboot finds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from dstl_dagster.errors import DstlError
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.storage import ABSENT, LocalObjectStore

IMAGE_BYTES = 16 << 20
DEVICE_BYTES = 4 << 20
LARGE = 8 << 20


def said(call: Callable[[], object]) -> str:
    try:
        call()
    except DstlError as error:
        return f"{type(error).__name__} {error.kind}"
    return "success"


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def make(folder: Path) -> Path:
    """A file system of 16 MiB in a sparse file, on a device of 4 MiB. Returns where it is mounted."""
    device, mounted = folder / "device", folder / "mounted"
    device.mkdir()
    mounted.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={DEVICE_BYTES}", "tmpfs", device)
    with (device / "image").open("wb") as image:
        image.truncate(IMAGE_BYTES)
    run("mkfs.ext2", "-q", "-F", "-E", "nodiscard", device / "image")
    run("mount", "-o", "loop", device / "image", mounted)
    return mounted


def main(folder: Path) -> None:
    mounted = make(folder)
    if "--probe" in sys.argv:
        run("umount", mounted)
        return
    store = LocalObjectStore(mounted / "root")
    store.put("before", b"whole", precondition=ABSENT)
    told: dict[str, object] = {}
    upload = store.open_write("put", precondition=ABSENT)
    upload.write(b"x" * LARGE)
    told["close"] = [said(upload.close) for _ in range(3)]
    stream = GSRecoverableWriter(store).open(store.uri_of("streamed"))
    stream.write(b"x" * LARGE)
    told["persist"] = [said(stream.persist) for _ in range(3)]
    stream.__del__()
    told["listed"] = [stat.name for stat in store.list()]
    run("umount", mounted)
    run("mount", "-o", "loop", folder / "device" / "image", mounted)
    store = LocalObjectStore(mounted / "root")
    told["after a remount"] = {stat.name: store.get(stat.name).decode() for stat in store.list()}
    run("umount", mounted)
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
