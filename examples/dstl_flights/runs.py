"""Running days through a real Dagster instance, observed from outside: progress, and a kill in mid-step.

Owns the instance in a folder, its Spark, one run of a day, a thread that watches a run's events, and a worker
that is killed as a machine that fails would end it: by SIGKILL.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableRepository  # no public name
from pyspark.sql import SparkSession

from dstl_dagster.spark import local_session, stop_session
from dstl_flights.assets import (
    FOLDER_VARIABLE,
    ONE_PROCESS,
    SHORT_SESSION,
    STORE_VARIABLE,
    day_job,
)

__all__ = [
    "LOCATION_TAG",
    "DayRun",
    "RunWatcher",
    "StepEvent",
    "Worker",
    "instance_in",
    "run_day",
    "spark_session",
]

_SETTINGS = """\
telemetry:
  enabled: false
nux:
  enabled: false
"""
_POLL_SECONDS = 0.2
_RUN_TAG = "dstl/demo_run"
LOCATION_TAG = {".dagster/repository": "__repository__@dstl_flights.definitions"}
"""What Dagster's page finds the runs of a code location by, under Overview and Jobs: that of
`dagster dev -m dstl_flights.definitions`, which did not launch these."""
_DEFINITIONS = ReconstructableRepository.for_module("dstl_flights.assets", "build_definitions")
"""As of a run that the page launched: a checkpoint's page links to the jobs beside its own."""
_STEP_EVENTS = {
    dg.DagsterEventType.STEP_START,
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
    dg.DagsterEventType.STEP_RESTARTED,
}


@dataclass(frozen=True)
class StepEvent:
    """An event of a step (`update`, `persist`, ...), and its time (epoch seconds)."""

    step: str
    kind: dg.DagsterEventType
    seconds: float


@dataclass(frozen=True)
class DayRun:
    """How one run ended; `failure` is the root error of the first step that failed."""

    run_id: str
    success: bool
    failure: str | None = None


@contextmanager
def instance_in(folder: Path, store: str | None = None) -> Iterator[dg.DagsterInstance]:
    """A Dagster instance that keeps everything in `folder`/dagster; its steps keep theirs in `folder`.

    Args:
        store: the URI of state and reports; `None`: `store` in `folder`.
    """
    home = folder / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    (home / "dagster.yaml").write_text(_SETTINGS)
    os.environ["DAGSTER_HOME"] = str(home)
    os.environ[FOLDER_VARIABLE] = str(folder)
    os.environ[STORE_VARIABLE] = store or ""
    with dg.DagsterInstance.get() as instance:
        yield instance


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """One Spark for all days that run in this process: only the first one pays for its start."""
    spark = local_session("nyc-flights", cores=2, conf=SHORT_SESSION)
    try:
        yield spark
    finally:
        stop_session(spark)


def run_day(
    instance: dg.DagsterInstance,
    day: str,
    *,
    on_event: Callable[[StepEvent], None] = lambda _: None,
    failed: DayRun | None = None,
    token: str | None = None,
    executor: Mapping[str, Any] = ONE_PROCESS,
) -> DayRun:
    """Run one day, this process being the run's worker.

    With `failed`, re-execute that run from failure. `token` tags the run, so that a watcher finds it.
    `executor` configures where steps run.
    """
    token = token or _next_token(instance, day)
    options = None if failed is None else dg.ReexecutionOptions.from_failure(failed.run_id, instance)
    with (
        RunWatcher(instance, token, on_event),
        dg.execute_job(
            _DEFINITIONS.get_reconstructable_job(day_job.name),
            instance=instance,
            tags={"dagster/partition": day, _RUN_TAG: token, **LOCATION_TAG},
            run_config={
                "execution": {"config": dict(executor)},
                "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
            },
            reexecution_options=options,
            raise_on_error=False,
        ) as result,
    ):
        failures = [event for event in result.all_events if event.is_step_failure]
        return DayRun(result.run_id, result.success, _root_cause(failures[0]) if failures else None)


class Worker:
    """A process that gets its own Dagster and Spark ready, runs one day, and is killed while it does.

    What it leaves behind then is in `scratch`, not in the system's folder for temporary files.
    """

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(exist_ok=True)
        places = {"TMPDIR": str(scratch), "JDK_JAVA_OPTIONS": f'"-Djava.io.tmpdir={scratch}"'}
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, text=True, env={**os.environ, **places}
        )

    def run_and_kill(
        self,
        instance: dg.DagsterInstance,
        day: str,
        kill_when: Callable[[StepEvent], bool],
        *,
        on_event: Callable[[StepEvent], None] = lambda _: None,
        patience_seconds: float = 1800.0,
    ) -> DayRun:
        """Run the day, and send SIGKILL once `kill_when` returns True for the start of a running step.

        It is polled. Then the run is marked as failed, as Dagster's run monitoring would. If it never returns
        True, the run just ends.
        """
        token = _next_token(instance, day)
        assert self._process.stdin is not None
        with self._process.stdin as asked:
            asked.write(f"{day}\t{token}\n")
        deadline = time.monotonic() + patience_seconds
        with RunWatcher(instance, token, on_event) as watcher:
            while self._process.poll() is None and time.monotonic() < deadline:
                if any(kill_when(event) for event in watcher.running()):
                    self._process.kill()
                watcher.wait()
            self._process.kill()
            self._process.wait()
        run = _run_of(instance, token)
        if run is None:
            raise RuntimeError(f"the run of {day} never started; see the demo's log")
        if not run.is_finished:
            instance.report_run_failed(run, "the run's worker was killed")
            run = _run_of(instance, token) or run
        return DayRun(run.run_id, run.is_success, None if run.is_success else "its worker was killed")


def _next_token(instance: dg.DagsterInstance, day: str) -> str:
    """Names the next run of a day among all of the instance, in words that its page shows."""
    tries = len(instance.get_runs(dg.RunsFilter(tags={"dagster/partition": day})))
    return f"{day}, try {tries + 1}"


def _run_of(instance: dg.DagsterInstance, token: str) -> dg.DagsterRun | None:
    return next(iter(instance.get_runs(dg.RunsFilter(tags={_RUN_TAG: token}), limit=1)), None)


def _root_cause(failure: dg.DagsterEvent) -> str:
    """The message of the innermost error, without the errors that wrap it."""
    error = failure.step_failure_data.error
    while error is not None and error.cause is not None:
        error = error.cause
    return "no reason was given" if error is None else error.message.strip().splitlines()[0]


class RunWatcher:
    """A thread that reads a run's events as they are written."""

    def __init__(
        self, instance: dg.DagsterInstance, token: str, on_event: Callable[[StepEvent], None]
    ) -> None:
        self._instance = instance
        self._token = token
        self._on_event = on_event
        self._ended = threading.Event()
        self._running: dict[str, StepEvent] = {}
        self._cursor: str | None = None
        self._thread = threading.Thread(target=self._watch, name="watch-run", daemon=True)

    def __enter__(self) -> RunWatcher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def running(self) -> list[StepEvent]:
        """The start events of the steps that have not ended."""
        return list(self._running.values())

    def wait(self) -> None:
        """Wait until there may be something new."""
        self._ended.wait(_POLL_SECONDS)

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self._read_events()
        self._read_events()

    def _read_events(self) -> None:
        run = _run_of(self._instance, self._token)
        if run is None:
            return
        page = self._instance.get_records_for_run(run.run_id, cursor=self._cursor, of_type=_STEP_EVENTS)
        self._cursor = page.cursor
        for record in page.records:
            entry = record.event_log_entry
            happened = entry.get_dagster_event()
            step = str(happened.step_key).rpartition(".")[2]
            event = StepEvent(step, happened.event_type, entry.timestamp)
            if event.kind in (dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED):
                self._running[step] = event
            else:
                self._running.pop(step, None)
            self._on_event(event)


if __name__ == "__main__":
    with dg.DagsterInstance.get() as own_instance, spark_session():
        day_and_token = sys.stdin.readline().rstrip("\n")
        if day_and_token:  # else the demo has ended
            own_day, _, own_token = day_and_token.partition("\t")
            run_day(own_instance, own_day, token=own_token)
