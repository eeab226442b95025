"""Running days through a real Dagster instance, seen from outside: progress, and a kill in mid-step.

Owns the instance in a folder, one run of a day, and a thread that watches the run's events. The thread
can send SIGKILL to a step's process, as a machine that fails would.
"""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import dagster as dg

from dstl_flights.assets import FOLDER_VARIABLE, resolved_day_job

__all__ = ["DayRun", "StepEvent", "instance_in", "run_day"]

_SETTINGS = """\
telemetry:
  enabled: false
nux:
  enabled: false
"""
_POLL_SECONDS = 0.2
_RUN_TAG = "dstl/demo_run"
_STEP_EVENTS = {
    dg.DagsterEventType.STEP_START,
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
    dg.DagsterEventType.STEP_RESTARTED,
}


@dataclass(frozen=True)
class StepEvent:
    """What happened to a step (`update`, `persist`, ...), when (epoch seconds), and in which process."""

    step: str
    kind: dg.DagsterEventType
    seconds: float
    pid: int | None


@dataclass(frozen=True)
class DayRun:
    """How one run ended; `failure` is what Dagster says of the first step that failed."""

    run_id: str
    success: bool
    failure: str | None = None


@contextmanager
def instance_in(folder: Path) -> Iterator[dg.DagsterInstance]:
    """A Dagster instance that keeps everything in `folder`/dagster; its steps keep theirs in `folder`."""
    home = folder / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    (home / "dagster.yaml").write_text(_SETTINGS)
    os.environ["DAGSTER_HOME"] = str(home)
    os.environ[FOLDER_VARIABLE] = str(folder)
    with dg.DagsterInstance.get() as instance:
        yield instance


def run_day(
    instance: dg.DagsterInstance,
    day: str,
    *,
    on_event: Callable[[StepEvent], None] = lambda _: None,
    kill_when: Callable[[StepEvent], bool] | None = None,
    failed: DayRun | None = None,
) -> DayRun:
    """Run one day with a process for each step; with `failed`, that run again from where it failed.

    While a step is running `kill_when` is asked again and again, with the event of its start. Once it says
    True the step's process gets SIGKILL, and `kill_when` is asked no more.
    """
    token = str(uuid.uuid4())
    options = None if failed is None else dg.ReexecutionOptions.from_failure(failed.run_id, instance)
    with (
        _Watcher(instance, token, on_event, kill_when),
        dg.execute_job(
            dg.reconstructable(resolved_day_job),
            instance=instance,
            tags={"dagster/partition": day, _RUN_TAG: token},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            reexecution_options=options,
            raise_on_error=False,
        ) as result,
    ):
        failures = [event for event in result.all_events if event.is_step_failure]
        why = failures[0].step_failure_data.error if failures else None
        return DayRun(result.run_id, result.success, None if why is None else why.to_string().splitlines()[0])


class _Watcher:
    """A thread that reads a run's events as they are written."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        token: str,
        on_event: Callable[[StepEvent], None],
        kill_when: Callable[[StepEvent], bool] | None,
    ) -> None:
        self._instance = instance
        self._token = token
        self._on_event = on_event
        self._kill_when = kill_when
        self._ended = threading.Event()
        self._running: dict[str, StepEvent] = {}
        self._cursor: str | None = None
        self._thread = threading.Thread(target=self._watch, name="watch-run", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self._read_events()
            self._kill_if_wanted()
        self._read_events()

    def _read_events(self) -> None:
        runs = self._instance.get_runs(dg.RunsFilter(tags={_RUN_TAG: self._token}), limit=1)
        if not runs:
            return
        page = self._instance.get_records_for_run(runs[0].run_id, cursor=self._cursor, of_type=_STEP_EVENTS)
        self._cursor = page.cursor
        for record in page.records:
            entry = record.event_log_entry
            happened = entry.get_dagster_event()
            step = str(happened.step_key).rpartition(".")[2]
            event = StepEvent(step, happened.event_type, entry.timestamp, happened.pid)
            if event.kind in (dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED):
                self._running[step] = event
            else:
                self._running.pop(step, None)
            self._on_event(event)

    def _kill_if_wanted(self) -> None:
        for event in list(self._running.values()):
            if self._kill_when is not None and event.pid is not None and self._kill_when(event):
                self._kill_when = None
                os.kill(event.pid, signal.SIGKILL)
