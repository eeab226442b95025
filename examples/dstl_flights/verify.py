"""The proof: state and reports recomputed from the raw CSV in plain Spark SQL, and compared row by row.

Shares no code with the pipeline: a different language, a different plan, the raw file read as text columns.
A bug in the pipeline's functions, in the changelog, or in composing files shows up here as differing rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.spark import read_state
from dstl_dagster.storage import ObjectStore

__all__ = ["Comparison", "fetched", "verify"]


@dataclass(frozen=True)
class Comparison:
    """One comparison: the number of recomputed rows, and of rows that only one side has."""

    what: str
    rows: int
    missing: int
    unexpected: int

    @property
    def equal(self) -> bool:
        return self.missing == 0 and self.unexpected == 0


def fetched(store: ObjectStore, prefix: str, folder: Path) -> Path:
    """A copy of all objects below `prefix`, for a Spark that has no connector for their store."""
    shutil.rmtree(folder, ignore_errors=True)
    for stat in store.list(f"{prefix}/"):
        path = folder / stat.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(stat.name, generation=stat.generation))
    return folder / prefix


def verify(
    spark: SparkSession,
    coordinator: CheckpointCoordinator,
    csv: Path,
    reports: Path,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Comparison]:
    """Compare the state at the latest checkpoint, and the reports of every day up to it.

    Raises: ValueError if there is no checkpoint.
    """
    latest = coordinator.latest()
    if latest is None:
        raise ValueError("there is no checkpoint to verify")
    until = latest.positions["flights"]  # the instant at which the next day begins
    spark.read.csv(str(csv), header=True).createOrReplaceTempView("raw")
    spark.sql(_TRIPS.format(until=until[:10])).cache().createOrReplaceTempView("trips")
    sides: dict[str, tuple[str, Callable[[], DataFrame]]] = {
        "state: aircraft": (
            _AIRCRAFT,
            lambda: read_state(spark, latest, "aircraft", store=coordinator.store),
        ),
        "state: routes": (_ROUTES, lambda: read_state(spark, latest, "routes", store=coordinator.store)),
        "reports: delays.jsonl": (
            _DELAYS,
            lambda: spark.read.schema(_DELAYS_SCHEMA).json(f"{reports}/*/delays.jsonl", mode="FAILFAST"),
        ),
        "reports: flights/*.parquet": (_FLIGHTS, lambda: spark.read.parquet(f"{reports}/*/flights")),
    }

    def compared(what: str) -> Comparison:
        progress(what)
        expected, actual = sides[what]
        return _compare(what, spark.sql(expected), actual())

    with ThreadPoolExecutor(2) as threads:  # Spark plans each on one core
        return list(threads.map(compared, sides))


def _compare(what: str, expected: DataFrame, actual: DataFrame) -> Comparison:
    """Compare as multisets: a row that occurs twice differs from one that occurs once. One action."""
    if set(actual.columns) != set(expected.columns):
        raise ValueError(f"{what} has columns {actual.columns}, not {expected.columns}")
    same_types = actual.select(*[F.col(field.name).cast(field.dataType) for field in expected.schema])
    counted = (
        expected.withColumn("is_expected", F.lit(1))
        .unionByName(same_types.withColumn("is_expected", F.lit(0)))
        .groupBy(expected.columns)
        .agg(F.sum("is_expected").alias("wanted"), F.count("*").alias("there"))
        .select("wanted", (F.col("there") - F.col("wanted")).alias("got"))
    )
    totals = counted.agg(
        F.coalesce(F.sum("wanted"), F.lit(0)),
        F.coalesce(F.sum(F.greatest(F.col("wanted") - F.col("got"), F.lit(0))), F.lit(0)),
        F.coalesce(F.sum(F.greatest(F.col("got") - F.col("wanted"), F.lit(0))), F.lit(0)),
    ).head()
    assert totals is not None
    return Comparison(what, *totals)


_TRIPS = """
WITH typed AS (
  SELECT *, TRY_CAST(dep_delay AS INT) AS delay_minutes,
         make_timestamp_ntz(
           year, month, day, INT(sched_dep_time DIV 100), INT(sched_dep_time % 100), 0
         ) AS scheduled
  FROM raw WHERE make_date(year, month, day) < DATE'{until}'
)
SELECT make_date(year, month, day) AS flight_date, carrier, INT(flight) AS flight,
       nullif(tailnum, 'NA') AS tail_number, origin, dest AS destination, scheduled, delay_minutes,
       scheduled + make_interval(0, 0, 0, 0, 0, delay_minutes) AS departed,
       arr_time <> 'NA' AS arrived, TRY_CAST(air_time AS INT) AS minutes_flown, dep_time = 'NA' AS cancelled
FROM typed
"""

_TOTALS = """
       count(1) AS flights, sum(IF(cancelled, 1L, 0L)) AS cancelled,
       coalesce(sum(delay_minutes), 0L) AS total_delay_minutes, max(delay_minutes) AS worst_delay_minutes,
       coalesce(sum(minutes_flown), 0L) AS minutes_flown
"""

_AIRCRAFT = f"""
WITH totals AS (
  SELECT tail_number, {_TOTALS} FROM trips WHERE tail_number IS NOT NULL GROUP BY tail_number
), sightings AS (
  SELECT tail_number, departed, IF(arrived, destination, origin) AS airport,
         row_number() OVER (
           PARTITION BY tail_number ORDER BY departed DESC, IF(arrived, destination, origin) DESC
         ) AS place
  FROM trips WHERE tail_number IS NOT NULL AND departed IS NOT NULL
)
SELECT totals.*, airport AS last_airport, departed AS last_seen
FROM totals LEFT JOIN sightings ON totals.tail_number = sightings.tail_number AND place = 1
"""

_ROUTES = f"SELECT origin, destination, carrier, {_TOTALS} FROM trips GROUP BY origin, destination, carrier"

_DELAYS_SCHEMA = """
    scheduled STRING, carrier STRING, flight INT, tail_number STRING, origin STRING, destination STRING,
    cancelled BOOLEAN, delay_minutes INT, aircraft_flights BIGINT, aircraft_delay_minutes BIGINT
"""

_DELAYS = """
WITH records AS (
  SELECT DISTINCT tail_number, flight_date,
         count(1) OVER history AS aircraft_flights,
         coalesce(sum(delay_minutes) OVER history, 0L) AS aircraft_delay_minutes
  FROM trips WHERE tail_number IS NOT NULL
  WINDOW history AS (
    PARTITION BY tail_number ORDER BY flight_date RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
)
SELECT date_format(scheduled, 'yyyy-MM-dd HH:mm') AS scheduled, carrier, flight, trips.tail_number, origin,
       destination, cancelled, delay_minutes, aircraft_flights, aircraft_delay_minutes
FROM trips LEFT JOIN records
  ON trips.tail_number = records.tail_number AND trips.flight_date = records.flight_date
WHERE cancelled OR delay_minutes >= 15
"""

_FLIGHTS = """
SELECT flight_date, carrier, flight, tail_number, origin, destination, scheduled, departed, delay_minutes,
       arrived, minutes_flown, cancelled
FROM trips
"""
