"""Does Flink's own reader read back from our files what our writer wrote?

Owns the comparison only. Run: `python benchmarks/flink/read_ours.py [JAR_FOLDER]`; `README.md` says what that
fetches. Exit status 1 if anything differs.

Two writers share files, with rows, columns, metadata, empty changes and changes of several blocks; each set
is read at its offset, as a handle names it. Our footer follows the body, where Flink must not see it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from flink.jars import jar_folder
from flink_side import FlinkSide

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import LocalObjectStore

KEY_GROUPS = KeyGroupRange.of(0, 127)
Change = tuple[int, bytes]


def write(store: LocalObjectStore, compression: str) -> list[tuple[ChangelogStateHandle, list[Change]]]:
    """Handles, and what was appended for each, in the order of appending."""
    random_bytes = random.Random(11)
    options = FsStateChangelogOptions(compression=compression, batch_persist_delay=timedelta(milliseconds=50))
    with (
        FsStateChangelogStorage("flink", store, options) as storage,
        storage.create_writer("left", KEY_GROUPS) as left,
        storage.create_writer("right", KEY_GROUPS) as right,
    ):
        appended: dict[int, list[Change]] = {}
        for number, writer in enumerate((left, right)):
            changes = appended[number] = [(-1, b"metadata")]
            writer.append_meta(b"metadata")
            for size in (0, 1, 12, 100, 70_000, 200_000):
                changes.append((random_bytes.randrange(128), random_bytes.randbytes(size)))
                writer.append(*changes[-1])
            writer.next_sequence_number()
            columns = [(random_bytes.randrange(128), random_bytes.randbytes(20)) for _ in range(5_000)]
            changes += columns
            key_groups, values = zip(*columns, strict=True)
            writer.append_batch(pa.array(key_groups, pa.int32()), pa.array(values, pa.binary()))
        futures = [writer.persist(writer.initial_sequence_number(), 1) for writer in (left, right)]
        handles = [future.result().job_manager_owned_snapshot for future in futures]
    return [(handle, appended[number]) for number, handle in enumerate(handles) if handle is not None]


def differences(flink: FlinkSide, compression: str) -> int:
    """How many handles Flink reads differently than they were written."""
    with tempfile.TemporaryDirectory() as directory:
        store = LocalObjectStore(directory, durable=False)
        wrong = 0
        for handle, appended in write(store, compression):
            read: list[Change] = []
            for file, offset in handle.handles_and_offsets:
                read += flink.read(store.root / file.name, [offset])
            # Each of the two sets is grouped; within a group the order of appends is kept.
            first = len(appended) - 5_000
            wanted = sorted(appended[:first], key=_group) + sorted(appended[first:], key=_group)
            wrong += read != wanted
            files = {file.name for file, _ in handle.handles_and_offsets}
            verdict = "equal" if read == wanted else "DIFFERENT"
            print(
                f"{compression:8} {len(read):6} changes in {len(handle.handles_and_offsets)} sets "
                f"of {len(files)} files: {verdict}"
            )
    return wrong


def _group(change: Change) -> int:
    return change[0]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jar_folder", type=Path, nargs="?", metavar="JAR_FOLDER")
    with FlinkSide(parser.parse_args().jar_folder or jar_folder()) as flink:
        print(f"Flink {flink.version}")
        return 1 if sum(differences(flink, compression) for compression in ("none", "snappy")) else 0


if __name__ == "__main__":
    sys.exit(main())
