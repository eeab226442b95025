"""What the machine can do without this package: bare steps, memory, checksums and file writes.

Owns these measurements. Does not own what is compared with them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from folders import fresh_folder


def bare_steps(batches: list[tuple[pa.Array, pa.Array]], value_bytes: int, directory: Path) -> float:
    """Sort, encode, checksum and write 50,000 changes, one after another, without this package."""
    key_groups = np.concatenate([keys.to_numpy() for keys, _ in batches])
    values = pa.concat_arrays([values for _, values in batches])
    headers = np.full((len(values), 2), value_bytes, dtype=">i4")
    offsets = pa.py_buffer(np.arange(0, 8 * len(values) + 1, 8, dtype=np.int32))
    began = time.perf_counter()
    order = np.argsort(key_groups.astype(np.uint8), kind="stable")
    headers[:, 0] = key_groups[order]
    column = pa.Array.from_buffers(pa.binary(), len(values), [None, offsets, pa.py_buffer(headers)])
    body = pc.binary_join_element_wise(column, values.take(pa.array(order)), b"").buffers()[2]
    google_crc32c.value(body)
    write_file(directory / "bare", body, sync=False)
    return time.perf_counter() - began


def machine_limits() -> None:
    content = np.random.default_rng(1).integers(0, 255, 64 << 20, dtype=np.uint8)
    target = np.empty_like(content)
    np.copyto(target, content)
    best = min(timed(lambda: np.copyto(target, content)) for _ in range(7))
    print(f"{'memcpy of 64 MiB, warm':44} {content.nbytes / best / 1e9:8.2f} GB/s")
    with fresh_folder() as directory:
        path = directory / "file"
        for label, sync in (
            ("file write of 64 MiB, page cache", False),
            ("file write of 64 MiB, synced", True),
        ):
            best = statistics.median(
                timed(lambda sync=sync: write_file(path, content, sync)) for _ in range(7)
            )
            print(f"{label:44} {content.nbytes / best / 1e9:8.2f} GB/s")
    best = min(timed(lambda: google_crc32c.value(content)) for _ in range(3))
    print(f"{'CRC-32C of 64 MiB':44} {content.nbytes / best / 1e9:8.2f} GB/s", flush=True)


def file_creation_seconds(directory: Path) -> float:
    """Median time to create a small file and rename it into place: the least that a small object costs.

    Some file systems take ten times as long for minutes after many deletions.
    """
    directory.mkdir(parents=True)

    def create(number: int) -> None:
        written = directory / f"{number}.part"
        written.write_bytes(b"x" * 300)
        written.rename(directory / str(number))

    return statistics.median(timed(lambda number=number: create(number)) for number in range(200))


def write_file(path: Path, content: np.ndarray | pa.Buffer, sync: bool) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb", buffering=0) as file:
        view = memoryview(content)
        while len(view):
            view = view[file.write(view) :]
        if sync:
            os.fsync(file.fileno())


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
