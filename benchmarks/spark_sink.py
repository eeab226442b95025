"""`format("dstl")` as a sink against a source in Python that takes the same Arrow batches and discards them.

    python benchmarks/spark_sink.py [--rows 4e6] [--rounds 5] [--memory /dev/shm]

Rows of (long, 100 random bytes), laid out by key group, on the disk of `BENCH_DIRECTORY` (else of temporary
files) and in memory; beside them Parquet, uncompressed. On a disk every file of ours is synced, as it must
be, and nothing of the others is. About three minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from conditions import conditions
from folders import fresh_folder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from turns import in_turns, ratios, told

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.spark import by_key_group, local_session, register, stop_session
from dstl_dagster.storage import open_store

VALUE_BYTES = 100


class _Discarded(WriterCommitMessage):
    pass


class _Discard(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return _Discarded()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class Discard(DataSource):
    """An Arrow data source that discards rows: the least that a sink in Python costs."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Spark's
        return _Discard()


def with_bytes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same column, and one of random bytes."""
    random = np.random.default_rng(1)
    for batch in batches:
        payload = random.integers(32, 96, batch.num_rows * VALUE_BYTES, np.uint8)
        offsets = np.arange(0, len(payload) + 1, VALUE_BYTES, np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(payload)]
        values = pa.Array.from_buffers(pa.binary(), batch.num_rows, buffers)
        yield pa.record_batch([batch.column(0), values], ["id", "value"])


def source(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    """The rows in Parquet, eight files that no task shares: no key group is in two tasks."""
    made = spark.range(rows).mapInArrow(with_bytes, "id BIGINT, value BINARY")
    by_key_group(made, ["id"], partitions=8).write.option("compression", "none").parquet(str(folder))
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(1 << 31))
    return spark.read.parquet(str(folder))


def write_dstl(df: DataFrame, folder: Path, rows: int) -> None:
    options = {"store": folder.as_uri(), "job": "sink", "operator": "op", "keys": "id"}
    df.write.format("dstl").mode("append").options(**options, idempotency_key="x").save()
    assert CheckpointCoordinator("sink", open_store(folder.as_uri())).get(1).manifest.changes == rows


def contenders(df: DataFrame, folder: Path, rows: int, where: str) -> dict[str, Callable[[], object]]:
    turn = iter(range(1_000_000))

    def dstl() -> None:
        # Files are removed while nobody measures: see `folders`.
        write_dstl(df, folder / f"store-{next(turn)}", rows)

    def parquet() -> None:
        df.write.option("compression", "none").parquet(str(folder / f"parquet-{next(turn)}"))

    return {
        f"discard, before {where}": lambda: df.write.format("discard").mode("append").save(),
        f"dstl, {where}": dstl,
        f"parquet, {where}": parquet,
    }


def measure(df: DataFrame, folder: Path, rows: int, rounds: int, where: str) -> None:
    runs = in_turns(contenders(df, folder, rows, where), rounds)
    told(runs)
    aim = "0.9" if where == "memory" else "0.75"
    ratios(runs, f"discard, before {where}", f"dstl, {where}", aim)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=float, default=4e6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a file system in memory")
    parser.add_argument("--only", choices=["disk", "memory"])
    given = parser.parse_args()
    rows = int(given.rows)
    print(conditions("pyspark", "pyarrow"))
    spark = local_session("sink", conf={"spark.driver.memory": "4g"})
    try:
        register(spark)
        spark.dataSource.register(Discard)
        with TemporaryDirectory(dir=given.memory) as scratch, fresh_folder() as disk:
            df = source(spark, Path(scratch) / "source", rows)
            if given.only != "memory":
                measure(df, disk, rows, given.rounds, "disk")
            if given.only != "disk":
                measure(df, Path(scratch), rows, given.rounds, "memory")
            shutil.rmtree(Path(scratch) / "source")
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main()
