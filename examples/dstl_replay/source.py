"""The flights as a stream: a data source that replays them in event-time order.

Owns the order, the offsets and the size of micro-batches. An offset is a number of rows, so a repeated
micro-batch has the same rows. Rows are read from an Arrow file that is written once, and mapped, not loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from dstl_flights.source import flights_csv

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

__all__ = ["FLIGHTS", "FlightsReplay", "replay_file"]

FLIGHTS = pa.schema(
    {
        "scheduled": pa.timestamp("us"),
        "carrier": pa.string(),
        "flight": pa.int64(),
        "origin": pa.string(),
        "destination": pa.string(),
        "tail_number": pa.string(),
        "delay_minutes": pa.int64(),
        "cancelled": pa.bool_(),
    }
)
"""One row per flight, in the order of (scheduled, carrier, flight, origin). `scheduled` is local time."""

_ORDER = ("scheduled", "carrier", "flight", "origin")
_SPARK = """
    scheduled TIMESTAMP_NTZ, carrier STRING, flight BIGINT, origin STRING, destination STRING,
    tail_number STRING, delay_minutes BIGINT, cancelled BOOLEAN
"""


def replay_file(folder: Path) -> Path:
    """`folder`/flights.arrow: all flights in event-time order; written if it does not exist yet."""
    target = folder / "flights.arrow"
    if target.exists():
        return target
    convert = pa_csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    raw = pa_csv.read_csv(flights_csv(folder), convert_options=convert)
    midnight = pc.strptime(
        pc.binary_join_element_wise(
            *[pc.cast(raw.column(name), pa.string()) for name in ("year", "month", "day")], "-"
        ),
        "%Y-%m-%d",
        "us",
    )
    # Times are written as 517 for 5:17.
    minutes = pc.add(pc.multiply(raw.column("hour"), 60), raw.column("minute"))
    since_midnight = pc.multiply(minutes, 60_000_000).cast(pa.duration("us"))
    columns = {
        "scheduled": pc.add(midnight, since_midnight),
        "carrier": raw.column("carrier"),
        "flight": raw.column("flight"),
        "origin": raw.column("origin"),
        "destination": raw.column("dest"),
        "tail_number": raw.column("tailnum"),
        "delay_minutes": raw.column("dep_delay"),
        "cancelled": pc.is_null(raw.column("dep_time")),
    }
    flights = pa.table(columns).cast(FLIGHTS).sort_by([(name, "ascending") for name in _ORDER])
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as made:
        with pa.ipc.new_file(made, FLIGHTS) as writer:
            writer.write_table(flights.combine_chunks(), max_chunksize=8192)
        # Complete before it gets its name. Another process writes the same file.
        Path(made.name).replace(target)
    return target


@dataclass(frozen=True)
class _Rows(InputPartition):
    start: int
    end: int


class FlightsReplay(DataSource):
    """`format("flights-replay")`. Options: `path`, `rows_per_batch`, `tasks`."""

    @classmethod
    def name(cls) -> str:
        return "flights-replay"

    def schema(self) -> str:
        return _SPARK

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        return _Replay(
            self.options["path"], int(self.options["rows_per_batch"]), int(self.options.get("tasks", "2"))
        )


class _Replay(DataSourceStreamReader):
    def __init__(self, path: str, rows_per_batch: int, tasks: int) -> None:
        self._path = path
        self._rows_per_batch = rows_per_batch
        self._tasks = tasks
        self._at = {"row": 0}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        from pyspark.sql.streaming.datasource import ReadMaxRows  # since PySpark 4.2, which calls this

        return ReadMaxRows(self._rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Nothing to prepare: no new flights arrive."""

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """PySpark 4.1 hands over neither, and has asked for the partitions up to `start` before."""
        most = getattr(limit, "max_rows", self._rows_per_batch)
        with pa.memory_map(self._path) as file:
            total = pa.ipc.open_file(file).read_all().num_rows
        return {"row": min((start or self._at)["row"] + most, total)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._at = end
        first, count = start["row"], end["row"] - start["row"]
        cuts = [first + count * each // self._tasks for each in range(self._tasks + 1)]
        return [_Rows(cuts[each], cuts[each + 1]) for each in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        with pa.memory_map(self._path) as file:
            rows = pa.ipc.open_file(file).read_all().slice(partition.start, partition.end - partition.start)
            yield from rows.to_batches()


if hasattr(DataSourceStreamReader, "getDefaultReadLimit"):  # since PySpark 4.2
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    SupportsTriggerAvailableNow.register(_Replay)
