"""How fast a writer's log is appended, made durable and read back, on local disk.

Owns the workload and the table. Sets no targets. Run: `python benchmarks/changelog.py [--quick] [--synced]`,
or with `--flink` for both sides in turns (`flink/README.md` says what that fetches).

Workload: 1,000,000 changes over 128 key groups, values of 100 and 1,000 bytes, in batches of 10,000; a
persist every 50,000, waited for. Medians of 7 runs after a warm-up, after the machine's own limits (memcpy,
file write) measured in the same run.

A busy machine is slower. So around each row the same bare steps are timed (sort, encode, checksum and write
50,000 changes of 100 bytes, in a few lines of Arrow), and the last column is what a persist's worth of the
row takes as a multiple of them: it is what to compare between runs.

Flink is compared only where it runs: with `--flink` ours and Flink's take turns on the same machine, each in
a fresh folder, and what counts is the ratio of each pair. Both persist to the page cache.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import cramjam
import google_crc32c
import numpy as np
import pyarrow as pa
from flink.jars import jar_folder
from flink_side import FlinkSide
from folders import fresh_folder
from machine import bare_steps, machine_limits, timed

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import LocalObjectStore

ROWS = 1_000_000
ROWS_PER_PERSIST = 50_000
ROWS_PER_BATCH = 10_000
KEY_GROUPS = KeyGroupRange.of(0, 127)


@dataclass(frozen=True)
class Workload:
    """Columns built once, so that building them is not measured."""

    value_bytes: int
    row_count: int
    batches: list[tuple[pa.Array, pa.Array]]

    @classmethod
    def of(cls, value_bytes: int, row_count: int) -> Workload:
        random = np.random.default_rng(7)
        batches = []
        for _ in range(ROWS_PER_PERSIST // ROWS_PER_BATCH):
            key_groups = random.integers(0, 128, ROWS_PER_BATCH).astype(np.int32)
            content = random.integers(0, 64, ROWS_PER_BATCH * value_bytes, dtype=np.uint8)
            offsets = np.arange(ROWS_PER_BATCH + 1, dtype=np.int32) * value_bytes
            values = pa.Array.from_buffers(
                pa.binary(), ROWS_PER_BATCH, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
            )
            batches.append((pa.array(key_groups), values))
        return cls(value_bytes, row_count, batches)


def options(delay_ms: int) -> FsStateChangelogOptions:
    return FsStateChangelogOptions(
        batch_persist_delay=timedelta(milliseconds=delay_ms), upload_timeout=timedelta(seconds=60)
    )


def write_columns(store: LocalObjectStore, workload: Workload, delay_ms: int) -> list[ChangelogStateHandle]:
    handles = []
    with (
        FsStateChangelogStorage("bench", store, options(delay_ms)) as storage,
        storage.create_writer("op", KEY_GROUPS) as writer,
    ):
        for _ in range(workload.row_count // ROWS_PER_PERSIST):
            from_ = writer.next_sequence_number()
            for key_groups, values in workload.batches:
                writer.append_batch(key_groups, values)
            handle = writer.persist(from_, 1).result().job_manager_owned_snapshot
            assert handle is not None
            handles.append(handle)
    return handles


def write_rows(store: LocalObjectStore, rows: list[tuple[int, bytes]], row_count: int) -> None:
    with (
        FsStateChangelogStorage("bench", store, options(10)) as storage,
        storage.create_writer("op", KEY_GROUPS) as writer,
    ):
        append = writer.append
        for _ in range(row_count // ROWS_PER_PERSIST):
            from_ = writer.next_sequence_number()
            for key_group, value in rows:
                append(key_group, value)
            writer.persist(from_, 1).result()


def read_back(store: LocalObjectStore, handles: list[ChangelogStateHandle], *, views: bool) -> int:
    with FsStateChangelogStorage("bench", store) as storage:
        reader = storage.create_reader()
        return sum(batch.num_rows for handle in handles for batch in reader.read_batches(handle, views=views))


def persist_latency_ms(store: LocalObjectStore, delay_ms: int, repetitions: int) -> float:
    workload = Workload.of(100, ROWS_PER_PERSIST)
    key_groups, values = (column.slice(0, 1_000) for column in workload.batches[0])
    taken = []
    with (
        FsStateChangelogStorage("bench", store, options(delay_ms)) as storage,
        storage.create_writer("op", KEY_GROUPS) as writer,
    ):
        for _ in range(repetitions * 10):
            from_ = writer.next_sequence_number()
            writer.append_batch(key_groups, values)
            began = time.perf_counter()
            writer.persist(from_, 1).result()
            taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken[len(taken) // 10 :])


class Bench:
    """Runs, repeats and prints."""

    def __init__(self, *, repetitions: int, durable: bool) -> None:
        self.repetitions = repetitions
        self.durable = durable
        self._bare = Workload.of(100, ROWS_PER_PERSIST)
        self._before = self._bare_seconds()

    def _bare_seconds(self) -> float:
        with fresh_folder() as directory:
            taken = [bare_steps(self._bare.batches, self._bare.value_bytes, directory) for _ in range(15)]
        return statistics.median(taken)

    def _bare_seconds_around(self) -> float:
        """The bare steps, averaged from before and after the last measurement."""
        before, self._before = self._before, self._bare_seconds()
        return (before + self._before) / 2

    def seconds(self, work: Callable[[LocalObjectStore], object]) -> float:
        taken = []
        for _ in range(self.repetitions + 1):
            with fresh_folder() as directory:
                store = LocalObjectStore(directory, durable=self.durable)
                began = time.perf_counter()
                work(store)
                taken.append(time.perf_counter() - began)
        return statistics.median(taken[1:])

    def rate(self, name: str, row_count: int, seconds: float) -> None:
        for_a_persist = seconds * ROWS_PER_PERSIST / row_count
        print(
            f"{name:44} {row_count / seconds / 1e6:8.2f} M/s   "
            f"{for_a_persist / self._bare_seconds_around():6.2f} x the bare steps",
            flush=True,
        )

    def latency(self, name: str, milliseconds: float) -> None:
        bare_ms = self._bare_seconds_around() * 1e3
        print(
            f"{name:44} {milliseconds:8.2f} ms    {milliseconds / bare_ms:6.2f} x the bare steps", flush=True
        )


def memory_growth(bench: Bench, workload: Workload) -> None:
    """Growth of peak memory, for a total much larger than the in-flight limit."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bench_once = Bench(repetitions=0, durable=bench.durable)
    bench_once.repetitions = 1
    bench_once.seconds(lambda store: write_columns(store, workload, 10))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    total = workload.row_count * workload.value_bytes / 2**20
    print(
        f"{'peak memory growth':44} {grown:8.0f} MiB  while {total:.0f} MiB were appended "
        "(in-flight limit 100)"
    )


def columns_rows(bench: Bench, workload: Workload) -> None:
    """The table's rows for one value size: appended with and without delay, and read back both ways."""
    for delay_ms in (10, 0):
        seconds = bench.seconds(partial(write_columns, workload=workload, delay_ms=delay_ms))
        label = f"append+persist {workload.value_bytes} B, delay {delay_ms}{' ms' if delay_ms else ''}"
        bench.rate(label, workload.row_count, seconds)
    with fresh_folder() as directory:
        store = LocalObjectStore(directory, durable=False)
        handles = write_columns(store, workload, 0)
        for views in (True, False):
            read = partial(read_back, store, handles, views=views)
            taken = [timed(read) for _ in range(bench.repetitions + 1)][1:]
            label = f"restore {workload.value_bytes} B, {'binary_view' if views else 'binary'}"
            bench.rate(label, workload.row_count, statistics.median(taken))


def in_turns(name: str, repetitions: int, ours: Callable[[], float], flinks: Callable[[], float]) -> None:
    """Print the median time of both sides, and the median and range of how many times faster ours was."""
    pairs = []
    for repetition in range(-WARM_UPS, repetitions):
        # The second one may find a warmer or a busier machine: each goes first equally often.
        if repetition % 2:
            our_seconds = ours()
            pairs.append((our_seconds, flinks()))
        else:
            flink_seconds = flinks()
            pairs.append((ours(), flink_seconds))
    counted = pairs[WARM_UPS:]
    ratios = [flink_seconds / our_seconds for our_seconds, flink_seconds in counted]
    our_median, flink_median = (statistics.median(side) * 1e3 for side in zip(*counted, strict=True))
    print(
        f"{name:44} {our_median:9.2f} ms, Flink {flink_median:9.2f} ms; "
        f"{statistics.median(ratios):5.2f} x as fast ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


WARM_UPS = 4
"""Pairs that do not count: a JVM needs some rounds until its code is compiled."""


def beside_flink(flink: FlinkSide, repetitions: int, row_count: int) -> None:
    """Every row of the table, ours and Flink's, in turns."""

    def in_fresh_folder(work: Callable[[Path], float]) -> Callable[[], float]:
        def worked() -> float:
            with fresh_folder() as directory:
                return work(directory)

        return worked

    for value_bytes in (100, 1000):
        workload = Workload.of(value_bytes, row_count)
        for delay_ms in (10, 0):
            write = partial(write_columns, workload=workload, delay_ms=delay_ms)
            flink_write = partial(
                flink.write_seconds, value_bytes=value_bytes, delay_ms=delay_ms, change_count=row_count
            )
            in_turns(
                f"append+persist {value_bytes} B, delay {delay_ms} ms",
                repetitions,
                in_fresh_folder(lambda folder, write=write: timed(lambda: write(_unsynced(folder)))),
                in_fresh_folder(flink_write),
            )
        with fresh_folder() as directory:
            ours, flinks = directory / "ours", directory / "flinks"
            handles = write_columns(_unsynced(ours), workload, 0)
            flink.write_seconds(flinks, value_bytes, 0, row_count)
            for views in (True, False):
                read = partial(read_back, _unsynced(ours), handles, views=views)
                in_turns(
                    f"restore {value_bytes} B, {'binary_view' if views else 'binary'}",
                    repetitions,
                    partial(timed, read),
                    partial(flink.restore_seconds, flinks),
                )
    rows = rows_of(Workload.of(100, row_count))
    in_turns(
        "append (rows)+persist 100 B, delay 10 ms",
        repetitions,
        in_fresh_folder(lambda folder: timed(lambda: write_rows(_unsynced(folder), rows, row_count))),
        in_fresh_folder(partial(flink.write_seconds, value_bytes=100, delay_ms=10, change_count=row_count)),
    )
    for delay_ms in (10, 0):
        in_turns(
            f"persist of 1,000, delay {delay_ms} ms",
            repetitions,
            in_fresh_folder(
                lambda folder, delay_ms=delay_ms: persist_latency_ms(_unsynced(folder), delay_ms, 5) / 1e3
            ),
            in_fresh_folder(partial(flink.persist_seconds, delay_ms=delay_ms, repetitions=45)),
        )


def _unsynced(folder: Path) -> LocalObjectStore:
    return LocalObjectStore(folder, durable=False)


def rows_of(workload: Workload) -> list[tuple[int, bytes]]:
    """The same changes as Python objects."""
    return [
        (key_group, value)
        for key_groups, values in workload.batches
        for key_group, value in zip(key_groups.to_pylist(), values.to_pylist(), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 repetitions of a fifth of the rows")
    parser.add_argument("--synced", action="store_true", help="sync every file to disk")
    parser.add_argument(
        "--flink",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="JAR_FOLDER",
        help="run Flink's own too, in turns; default: jars from the cache, fetched where it has none",
    )
    arguments = parser.parse_args()
    row_count = ROWS // 5 if arguments.quick else ROWS
    bench = Bench(repetitions=3 if arguments.quick else 7, durable=arguments.synced)
    print(
        f"Python {platform.python_version()}, pyarrow {pa.__version__}, numpy {np.__version__}, "
        f"cramjam {cramjam.__version__}, google-crc32c ({google_crc32c.implementation}); "
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n"
        f"{row_count:,} changes, persist each {ROWS_PER_PERSIST:,}, batches of {ROWS_PER_BATCH:,}, "
        f"median of {bench.repetitions}; {'synced to disk' if bench.durable else 'page cache, not synced'}"
    )
    machine_limits()
    if arguments.flink is not None:
        with FlinkSide(arguments.flink if arguments.flink.name else jar_folder()) as flink:
            print(f"Flink {flink.version} with its defaults and the JVM's default heap, in turns")
            beside_flink(flink, bench.repetitions, row_count)
        return
    memory_growth(bench, Workload.of(1000, row_count))
    for value_bytes in (100, 1000):
        columns_rows(bench, Workload.of(value_bytes, row_count))
    workload = Workload.of(100, row_count)
    rows = rows_of(workload)
    seconds = bench.seconds(lambda store: write_rows(store, rows, row_count))
    bench.rate("append (rows)+persist 100 B, delay 10 ms", row_count, seconds)
    for delay_ms in (10, 0):
        with fresh_folder() as directory:
            store = LocalObjectStore(directory, durable=bench.durable)
            label = f"persist of 1,000, delay {delay_ms}{' ms' if delay_ms else ''}"
            bench.latency(label, persist_latency_ms(store, delay_ms, bench.repetitions))


if __name__ == "__main__":
    sys.exit(main())
