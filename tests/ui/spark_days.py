"""Days of the flights example as it is: its own job, on Spark, for the pictures of the documentation.

Owns what happens in the folder that is photographed. Takes minutes: the tests look at `flights_days`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.keyed import load_report
from dstl_dagster.spark import CheckpointBatch
from dstl_dagster.storage import open_store
from dstl_flights import source
from dstl_flights.assets import (
    JOB,
    SOURCE,
    build_definitions,
    reports_of,
)
from dstl_flights.day import write_day
from dstl_flights.runs import StepEvent, instance_in, run_day, spark_session
from tests.ui.flights_days import IN_DAGSTER, OUTSIDE, RETRIED, UNTIL, run_of

__all__ = [
    "AIRCRAFT_KEYS",
    "IN_DAGSTER",
    "OUTSIDE",
    "RETRIED",
    "RETRY_REASON",
    "ROUTE_KEYS",
    "make_folder",
    "make_outside",
    "run_of",
]

AIRCRAFT_KEYS, ROUTE_KEYS = "tail_number", "origin, destination, carrier"
RETRY_REASON = "PATH_NOT_FOUND"


def make_folder(folder: Path) -> None:
    """As `flights_days.make_folder`: four days, a retried step in the last, the checks."""
    inbox = folder / "source"
    (folder / "store").mkdir(parents=True, exist_ok=True)
    with instance_in(folder) as instance, spark_session():
        for day in IN_DAGSTER:
            with _late(source.day_csv(inbox, day)) if day == RETRIED else _in_time() as seen:
                ended = run_day(instance, day, on_event=seen)
            assert ended.success, ended.failure
        checks = build_definitions().resolve_job_def("nyc_flights_checks")
        assert checks.execute_in_process(instance=instance).success


@contextlib.contextmanager
def _in_time() -> Iterator[Callable[[StepEvent], None]]:
    yield lambda _event: None


@contextlib.contextmanager
def _late(csv: Path) -> Iterator[Callable[[StepEvent], None]]:
    """The day's file arrives only once a step has missed it."""
    away = csv.with_suffix(".late")
    csv.rename(away)

    def arrives(event: StepEvent) -> None:
        if event.kind == dg.DagsterEventType.STEP_UP_FOR_RETRY and away.exists():
            away.rename(csv)

    yield arrives


def make_outside(folder: Path) -> None:
    """The update of the example in a program of its own: nothing tells Dagster of it."""
    store = (folder / "store").as_uri()
    coordinator = CheckpointCoordinator(JOB.job, open_store(store), owner="spark-submit")
    with spark_session() as session, CheckpointBatch(coordinator, idempotency_key=OUTSIDE) as batch:
        batch.move_position(SOURCE, UNTIL)
        csv = source.day_csv(folder / "source", OUTSIDE)
        write_day(batch, source.read_day(session, csv, OUTSIDE), f"{reports_of(store)}/{OUTSIDE}")
    coordinator.record_report(batch.attempt, load_report(coordinator.store, batch.attempt))
    coordinator.confirm(batch.attempt)
    coordinator.compose_commit()
