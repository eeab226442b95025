"""The work of one day: state per aircraft and per route, and the day's reports. Plain PySpark.

Each function takes DataFrames and returns DataFrames; durability is not its concern.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

__all__ = ["AIRCRAFT", "ROUTES", "delays_report", "flights_report", "merged_aircraft", "merged_routes"]

AIRCRAFT = """
    tail_number STRING, flights BIGINT, cancelled BIGINT, total_delay_minutes BIGINT,
    worst_delay_minutes INT, minutes_flown BIGINT, last_airport STRING, last_seen TIMESTAMP_NTZ
"""
"""State per aircraft. Delays below zero (left early) count as they are; a cancelled flight has none."""

ROUTES = """
    origin STRING, destination STRING, carrier STRING, flights BIGINT, cancelled BIGINT,
    total_delay_minutes BIGINT, worst_delay_minutes INT, minutes_flown BIGINT
"""
"""State per route and carrier. Flights without a tail number are counted only here."""

LATE_MINUTES = 15
_MEASURES = ("flights", "cancelled", "total_delay_minutes", "minutes_flown")


def merged_aircraft(state: DataFrame, flights: DataFrame) -> DataFrame:
    """The aircraft that flew (or should have flown) that day, with their new totals."""
    place = F.when(F.col("arrived"), F.col("destination")).otherwise(F.col("origin"))
    seen = F.when(
        F.col("departed").isNotNull(), F.struct(F.col("departed").alias("at"), place.alias("airport"))
    )
    of_day = (
        flights.where(F.col("tail_number").isNotNull())
        .groupBy("tail_number")
        .agg(*_measures(), F.max(seen).alias("seen"))
    )
    seen_before = F.when(
        F.col("old.last_seen").isNotNull(),
        F.struct(F.col("old.last_seen").alias("at"), F.col("old.last_airport").alias("airport")),
    )
    # The later of the two: a flight of yesterday, delayed past midnight, may have left after today's.
    last = F.greatest(seen_before, F.col("new.seen"))
    return _joined(state, of_day, ["tail_number"]).select(
        "tail_number",
        *_merged_measures(),
        last.getField("airport").alias("last_airport"),
        last.getField("at").alias("last_seen"),
    )


def merged_routes(state: DataFrame, flights: DataFrame) -> DataFrame:
    """The routes that were served that day, with their new totals."""
    keys = ["origin", "destination", "carrier"]
    of_day = flights.groupBy(*keys).agg(*_measures())
    return _joined(state, of_day, keys).select(*keys, *_merged_measures())


def delays_report(flights: DataFrame, aircraft: DataFrame, tasks: int = 4) -> DataFrame:
    """One row for each flight that left late or not at all, by schedule, with its aircraft's record."""
    order = ["scheduled", "carrier", "flight", "origin"]
    late = flights.where(F.col("cancelled") | (F.col("delay_minutes") >= LATE_MINUTES))
    record = aircraft.select(
        "tail_number",
        F.col("flights").alias("aircraft_flights"),
        F.col("total_delay_minutes").alias("aircraft_delay_minutes"),
    )
    return (
        late.join(record, "tail_number", "left")
        .select(
            F.date_format("scheduled", "yyyy-MM-dd HH:mm").alias("scheduled"),
            *("carrier", "flight", "tail_number", "origin", "destination", "cancelled", "delay_minutes"),
            *("aircraft_flights", "aircraft_delay_minutes"),
        )
        .repartitionByRange(tasks, *order)
        .sortWithinPartitions(*order)
    )


def flights_report(flights: DataFrame, tasks: int = 2) -> DataFrame:
    """The day's flights, cleaned and typed; always in the same order in the same file."""
    return flights.repartition(tasks, "carrier").sortWithinPartitions(
        "carrier", "flight", "origin", "scheduled"
    )


def _measures() -> list[Column]:
    return [
        F.count("*").alias("flights"),
        F.count_if("cancelled").alias("cancelled"),
        F.coalesce(F.sum("delay_minutes"), F.lit(0)).alias("total_delay_minutes"),
        F.max("delay_minutes").alias("worst_delay_minutes"),
        F.coalesce(F.sum("minutes_flown"), F.lit(0)).alias("minutes_flown"),
    ]


def _joined(state: DataFrame, of_day: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Only the rows that the day touched: unchanged rows are not written again."""
    return of_day.alias("new").join(state.alias("old"), list(keys), "left")


def _merged_measures() -> list[Column]:
    added = {name: F.coalesce(F.col(f"old.{name}"), F.lit(0)) + F.col(f"new.{name}") for name in _MEASURES}
    worst = F.greatest(F.col("old.worst_delay_minutes"), F.col("new.worst_delay_minutes"))
    columns = {**added, "worst_delay_minutes": worst}
    order = ("flights", "cancelled", "total_delay_minutes", "worst_delay_minutes", "minutes_flown")
    return [columns[name].alias(name) for name in order]
