"""The part of one day in a checkpoint: state per aircraft and per route, and the day's reports.

Owns the writing. Does not own what is computed (`pipeline`), or running the batch (`assets`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from dstl_dagster.spark import CheckpointBatch
from dstl_flights.pipeline import (
    AIRCRAFT,
    ROUTES,
    delays_report,
    flights_report,
    merged_aircraft,
    merged_routes,
)

__all__ = ["write_day"]


def write_day(batch: CheckpointBatch, flights: DataFrame, reports: str) -> None:
    """Merge a day's flights into the state, and write the day's reports below this URI."""
    session, flights = flights.sparkSession, flights.cache()
    aircraft = merged_aircraft(batch.read_state(session, "aircraft", schema=AIRCRAFT), flights).cache()
    routes = merged_routes(batch.read_state(session, "routes", schema=ROUTES), flights)
    batch.write_state(aircraft, operator="aircraft", keys=["tail_number"])
    batch.write_state(routes, operator="routes", keys=["origin", "destination", "carrier"])
    batch.write_files(delays_report(flights, aircraft), f"{reports}/delays.jsonl", single_file=True)
    batch.write_files(flights_report(flights), f"{reports}/flights", format="parquet")
