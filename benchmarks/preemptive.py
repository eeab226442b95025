"""How long a checkpoint's persist takes with and without pre-emptive uploads, in turns.

    python benchmarks/preemptive.py [--quick] [--latency-ms 20]

Owns the workload and the table; sets no targets. An operator appends 64 MiB between two checkpoints, 64 KiB
at a time, and computes between the appends, as an operator does (each round hashes 1 MiB). With the threshold
of `preemptive-persist-threshold` most of it is durable when the checkpoint asks, without it nothing is.
Measured is the persist alone, and what it still had to upload: on a local folder with every file synced, and
on the strict server with a delay for each response.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pyarrow as pa
from conditions import conditions
from folders import fresh_folder
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import GCSObjectStore, LocalObjectStore, ObjectStore
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault

APPENDED_BYTES = 64 << 20
BATCH_BYTES = 64 << 10
VALUE_BYTES = 1024
NEVER_BYTES = 1 << 40
BUCKET = "bench"


def checkpoint(store: ObjectStore, threshold_bytes: int, appended_bytes: int) -> tuple[float, int]:
    """Seconds of one persist, and the bytes that were not durable when it was called."""
    options = FsStateChangelogOptions(
        preemptive_persist_threshold_in_bytes=threshold_bytes,
        upload_timeout=timedelta(seconds=60),
        max_in_flight_bytes=4 * APPENDED_BYTES,
    )
    count = BATCH_BYTES // VALUE_BYTES
    key_groups = pa.array([number % 128 for number in range(count)], pa.int32())
    values = pa.array([bytes([number % 251]) * VALUE_BYTES for number in range(count)], pa.binary())
    work = bytes(1 << 20)
    with (
        FsStateChangelogStorage("bench", store, options) as changelog,
        changelog.create_writer("op", KeyGroupRange.of(0, 127)) as writer,
    ):
        from_ = writer.initial_sequence_number()
        for _ in range(appended_bytes // BATCH_BYTES):
            writer.append_batch(key_groups, values)
            hashlib.sha256(work).digest()
        began = time.perf_counter()
        handle = writer.persist(from_, 1).result().job_manager_owned_snapshot
        assert handle is not None
        return time.perf_counter() - began, handle.checkpointed_size


@contextmanager
def local() -> Iterator[ObjectStore]:
    with fresh_folder() as folder:
        yield LocalObjectStore(folder, durable=True)


@contextmanager
def bucket(latency_ms: float) -> Iterator[ObjectStore]:
    with ExitStack() as stack:
        server = stack.enter_context(GCSServer())
        server.create_bucket(BUCKET)
        server.faults.add(ServerFault(FaultKind.LATENCY, seconds=latency_ms / 1000, times=None))
        client = storage.Client(
            project="bench", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
        )
        stack.callback(client.close)
        yield GCSObjectStore(client, BUCKET)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 pairs of a quarter of the bytes")
    parser.add_argument("--latency-ms", type=float, default=20.0, help="of each response of the server")
    arguments = parser.parse_args()
    pairs = 3 if arguments.quick else 7
    appended_bytes = APPENDED_BYTES // 4 if arguments.quick else APPENDED_BYTES
    threshold_bytes = FsStateChangelogOptions().preemptive_persist_threshold_in_bytes
    print(conditions("pyarrow", "google-cloud-storage"))
    sizes = f"{appended_bytes >> 20} MiB between checkpoints, threshold {threshold_bytes >> 20} MiB"
    print(f"{sizes}, {pairs} pairs")
    places = {
        "local folder, synced": local,
        f"bucket, {arguments.latency_ms:g} ms a response": lambda: bucket(arguments.latency_ms),
    }
    for place, opened in places.items():
        taken: dict[int, list[tuple[float, int]]] = {threshold_bytes: [], NEVER_BYTES: []}
        for pair in range(-1, pairs):
            # Each goes first equally often; the first pair warms up.
            order = list(taken) if pair % 2 else list(reversed(taken))
            for threshold in order:
                with opened() as store:
                    measured = checkpoint(store, threshold, appended_bytes)
                if pair >= 0:
                    taken[threshold].append(measured)
        for threshold, title in ((threshold_bytes, "with"), (NEVER_BYTES, "without")):
            seconds = [each for each, _ in taken[threshold]]
            left_mib = statistics.median(left for _, left in taken[threshold]) / 2**20
            print(
                f"{place:28} {title:8} {statistics.median(seconds) * 1e3:8.0f} ms "
                f"({min(seconds) * 1e3:.0f} to {max(seconds) * 1e3:.0f}), {left_mib:5.1f} MiB left to upload",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
