"""Beside what users would pick instead: 10,000 upserts into n rows, in turns in one run.

    python benchmarks/peers.py --install            once: an environment of the peers' own
    python benchmarks/peers.py [--rows 1e6] [--rounds 20] [--peer NAME ...] [--json FILE]

Delta (delta-rs MERGE), Iceberg (pyiceberg upsert), Lance (merge_insert with a BTREE), RocksDB (rocksdict:
write batch, flush, checkpoint), SlateDB (write batch, flush), the table as Parquet written anew, and this
package, not synced and synced. On a local folder, one process each, no Spark; every round all peers get the
same keys, one after another. Told are median, p99 and slowest of the rounds in seconds, the bytes that they
added to the folder, and a full read after them: of tables as Arrow, of RocksDB and SlateDB as keys and
values, as their clients have it. A peer that cannot be installed or fails is reported, not guessed.

The environment is `.peers` beside the checkout, or `PEERS_ENVIRONMENT`: no dependency of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from served import Served

HERE: Final = Path(__file__).resolve()
ENVIRONMENT: Final = Path(os.environ.get("PEERS_ENVIRONMENT", HERE.parents[2] / ".peers"))
PACKAGES: Final = {
    "delta": "deltalake",
    "iceberg": "pyiceberg[sql-sqlite,pyarrow]",
    "lance": "pylance",
    "rocksdb": "rocksdict",
    "slatedb": "slatedb",
}
OURS: Final = ("ours", "ours-synced", "parquet")
"""Those that run in this environment."""
CHANGES: Final = 10_000
Numbers = dict[str, Any]


def install() -> None:
    """Make the environment. A package that cannot be installed is reported."""
    subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
    python = ENVIRONMENT / "bin" / "python"
    for package in (*PACKAGES.values(), "numpy", "pyarrow"):
        done = subprocess.run([python, "-m", "pip", "install", "-q", package], check=False)
        print(f"{package}: {'installed' if done.returncode == 0 else 'cannot be had'}", flush=True)


def table_of(keys: Any, number: int) -> Any:
    """Rows of these keys: a long key, two longs, a short text, with different values in each round."""
    import numpy as np
    import pyarrow as pa

    names = pa.array(np.char.add("customer-", np.char.zfill(keys.astype(str), 8)))
    schema = pa.schema({"key": pa.int64(), "total": pa.int64(), "events": pa.int64(), "name": pa.string()})
    columns = {"key": keys, "total": keys * 31 + number, "events": keys % 97 + number, "name": names}
    return pa.table(columns, schema)


class Delta:
    """A table, merged into."""

    def __init__(self, folder: Path, rows: Any) -> None:
        import deltalake

        self._uri, self._table = str(folder / "table"), deltalake.DeltaTable
        deltalake.write_deltalake(self._uri, rows)

    def upsert(self, rows: Any) -> None:
        merge = self._table(self._uri).merge(rows, "t.key = s.key", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def read(self) -> int:
        return int(self._table(self._uri).to_pyarrow_table().num_rows)


class Iceberg:
    """A table in a catalog of its own, in SQLite."""

    def __init__(self, folder: Path, rows: Any) -> None:
        import pyarrow as pa
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        catalog.create_namespace("bench")
        required = pa.schema([rows.schema.field(0).with_nullable(False), *list(rows.schema)[1:]])
        self._schema = required
        self._table = catalog.create_table("bench.rows", required)
        self._table.append(rows.cast(required))

    def upsert(self, rows: Any) -> None:
        self._table.upsert(rows.cast(self._schema), join_cols=["key"])

    def read(self) -> int:
        return int(self._table.scan().to_arrow().num_rows)


class Lance:
    """A dataset with a BTREE on the key."""

    def __init__(self, folder: Path, rows: Any) -> None:
        import lance

        self._uri, self._dataset = str(folder / "rows.lance"), lance.dataset
        lance.write_dataset(rows, self._uri).create_scalar_index("key", "BTREE")

    def upsert(self, rows: Any) -> None:
        merge = self._dataset(self._uri).merge_insert("key")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def read(self) -> int:
        return int(self._dataset(self._uri).to_table().num_rows)


def encoded(rows: Any) -> list[tuple[bytes, bytes]]:
    """Keys and values as a key-value store takes them: big-endian, and packed."""
    import struct

    key, value = struct.Struct(">q").pack, struct.Struct(">qq").pack
    columns = (column.to_pylist() for column in rows.columns)
    return [
        (key(each), value(total, events) + name.encode())
        for each, total, events, name in zip(*columns, strict=True)
    ]


class Rocksdb:
    """Batches, each flushed; then a checkpoint, as Flink and Spark take one."""

    def __init__(self, folder: Path, rows: Any) -> None:
        import rocksdict

        self._rocksdict, self._folder, self._number = rocksdict, folder, 0
        self._db = rocksdict.Rdict(str(folder / "db"), rocksdict.Options(raw_mode=True))
        self._write(rows)

    def _write(self, rows: Any) -> None:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key, value in encoded(rows):
            batch.put(key, value)
        self._db.write(batch)
        self._db.flush()

    def upsert(self, rows: Any) -> None:
        self._write(rows)
        self._number += 1
        checkpoint = self._rocksdict.Checkpoint(self._db)
        checkpoint.create_checkpoint(str(self._folder / f"checkpoint-{self._number}"))

    def read(self) -> int:
        return sum(1 for _ in self._db.items())


class Slatedb:
    """Batches, each flushed to the folder. Its client is asynchronous."""

    def __init__(self, folder: Path, rows: Any) -> None:
        from slatedb import uniffi

        (folder / "db").mkdir()
        self._slatedb, self._loop = uniffi, asyncio.new_event_loop()
        store = uniffi.ObjectStore.resolve("file:///")
        self._db = self._loop.run_until_complete(uniffi.DbBuilder(str(folder / "db"), store).build())
        for start in range(0, rows.num_rows, 100_000):
            self.upsert(rows.slice(start, 100_000))

    def upsert(self, rows: Any) -> None:
        batch = self._slatedb.WriteBatch()
        for key, value in encoded(rows):
            batch.put(key, value)
        self._loop.run_until_complete(self._write(batch))

    async def _write(self, batch: Any) -> None:
        await self._db.write(batch)
        await self._db.flush()

    def read(self) -> int:
        return self._loop.run_until_complete(self._count())

    async def _count(self) -> int:
        everything = self._slatedb.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=True)
        rows, found = await self._db.scan(everything), 0
        while batch := await rows.next_batch(10_000):
            found += len(batch)
        return found


class Parquet:
    """Rewriting the table: read, replace what changed, write all of it beside the old one."""

    def __init__(self, folder: Path, rows: Any) -> None:
        self._folder, self._number = folder, 0
        self._write(rows)

    def _write(self, rows: Any) -> None:
        import pyarrow.parquet as pq

        self._path = self._folder / f"rows-{self._number}.parquet"
        pq.write_table(rows, self._path, compression="zstd")

    def upsert(self, rows: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        before = pq.read_table(self._path)
        kept = before.filter(pc.invert(pc.is_in(before["key"], rows["key"].combine_chunks())))
        self._number += 1
        self._write(pa.concat_tables([kept, rows]))

    def read(self) -> int:
        import pyarrow.parquet as pq

        return int(pq.read_table(self._path).num_rows)


class Ours:
    """Checkpoints of keyed state in two tasks' files, steps 1 to 6, folds included."""

    synced = False

    def __init__(self, folder: Path, rows: Any) -> None:
        from checkpoint import OPERATOR, SCHEMA, TASKS, checkpoint, complete, coordinator_on

        from dstl_dagster.keyed import write_rows
        from dstl_dagster.storage import LocalObjectStore

        self._checkpoint, self._operator = checkpoint, OPERATOR
        coordinator = self._coordinator = coordinator_on(LocalObjectStore(folder, durable=self.synced))
        attempt = coordinator.trigger()
        report = write_rows(
            rows, attempt, coordinator.store, operator=OPERATOR, schema=SCHEMA, partitions=TASKS
        )
        complete(coordinator, attempt, report)

    def upsert(self, rows: Any) -> None:
        self._checkpoint(self._coordinator, rows)

    def read(self) -> int:
        from dstl_dagster.keyed import KeyedState

        latest = self._coordinator.latest()
        assert latest is not None
        state = KeyedState.of(self._coordinator.store, latest.manifest, self._operator)
        assert state is not None
        return sum(table.num_rows for table in state.tables())


class OursSynced(Ours):
    """The same, each object synced before it counts."""

    synced = True


PEERS: Final[dict[str, Callable[[Path, Any], Any]]] = {
    "delta": Delta,
    "iceberg": Iceberg,
    "lance": Lance,
    "rocksdb": Rocksdb,
    "slatedb": Slatedb,
    "parquet": Parquet,
    "ours": Ours,
    "ours-synced": OursSynced,
}


def bytes_in(folder: Path) -> int:
    """Of all files, a file with several names once."""
    files = {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return sum(files.values())


def serve(name: str, row_count: int) -> None:
    """One peer in a process of its own: a line for each command on standard input."""
    import numpy as np

    sys.path.insert(0, str(HERE.parent))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIRECTORY") or None) as root:
        folder = Path(root)
        keys = np.random.default_rng(1).permutation(row_count).astype(np.int64)
        peer = PEERS[name](folder, table_of(keys, 0))
        print("ready", flush=True)
        for line in sys.stdin:
            command, number = line.split()
            rows = None
            if command == "upsert":
                chosen = np.random.default_rng(100 + int(number)).choice(row_count, CHANGES, replace=False)
                rows = table_of(chosen.astype(np.int64), int(number))
            before = bytes_in(folder)
            began, began_cpu = time.perf_counter(), time.process_time()
            found = peer.upsert(rows) if command == "upsert" else peer.read()
            seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
            if command == "read" and found != row_count:
                raise AssertionError(f"{name} has {found} rows, not {row_count}")
            print(json.dumps([seconds, cpu, bytes_in(folder) - before]), flush=True)


def served(name: str, row_count: int, patience_seconds: float = 600) -> Served:
    """A peer's process, in its environment."""
    python = sys.executable if name in OURS else str(ENVIRONMENT / "bin" / "python")
    return Served(name, [python, str(HERE), "--serve", name, "--rows", str(row_count)], patience_seconds)


def measure(names: list[str], row_count: int, rounds: int) -> dict[str, Numbers]:
    """All peers in turns: each round one after another, with the same keys."""
    peers = []
    for name in names:
        try:
            peers.append(served(name, row_count))
        except OSError as error:
            print(f"{name}: cannot be started: {error}", flush=True)
    taken: dict[str, list[list[float]]] = {peer.name: [] for peer in peers}
    for number in range(1, rounds + 1):
        for peer in peers:
            found = peer.ask("upsert", number)
            if found is not None:
                taken[peer.name].append(found)
    reads = {peer.name: [peer.ask("read", number) for number in range(3)] for peer in peers}
    for peer in peers:
        peer.end()
    return {
        peer.name: {"lost": peer.lost} if peer.lost else summary(taken[peer.name], reads[peer.name])
        for peer in peers
    }


def summary(taken: list[list[float]], reads: list[Any]) -> Numbers:
    seconds = sorted(each[0] for each in taken)
    return {
        "median_seconds": round(median(seconds), 4),
        "p99_seconds": round(seconds[-(-99 * len(seconds) // 100) - 1], 4),
        "slowest_seconds": round(seconds[-1], 4),
        "median_cpu_seconds": round(median(each[1] for each in taken), 4),
        "slowest_cpu_seconds": round(max(each[1] for each in taken), 4),
        "median_bytes": round(median(each[2] for each in taken)),
        "bytes": round(sum(each[2] for each in taken)),
        "read_seconds": round(median(each[0] for each in reads), 3),
        "read_cpu_seconds": round(median(each[1] for each in reads), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=10**6)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peer", action="append", choices=list(PEERS))
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--serve", choices=list(PEERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.install:
        install()
    elif arguments.serve:
        serve(arguments.serve, arguments.rows)
    else:
        print(importlib.import_module("conditions").conditions("pyarrow", "numpy"), flush=True)
        found = measure(arguments.peer or list(PEERS), arguments.rows, arguments.rounds)
        print(json.dumps({"rows": arguments.rows, "rounds": arguments.rounds, **found}, indent=1))
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
