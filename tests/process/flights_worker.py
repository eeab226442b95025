"""One run of one day of the flights in a session of processes of its own, watched from outside.

Owns the worker, finding its processes in /proc, and ending what is left of them. Knows nothing of kills
at chosen moments (`flights_kills`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from flights_outcome import temporary_folder

POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 240.0
_ORPHAN_SECONDS = 30.0
_TOKEN = "dstl/demo_run"  # the tag by which `run_day` lets others find its run
_WORKER = """
import sys
import dagster as dg
from dstl_flights.runs import DayRun, run_day
day, token, failed = sys.argv[1:4]
# Each step in a process of its own, with its own Spark: one kill hits one step.
preloaded = ["dstl_flights.assets", "dstl_flights.day", "dagster._core.storage.sqlite_storage"]
steps = {"multiprocess": {"start_method": {"forkserver": {"preload_modules": preloaded}}}}
with dg.DagsterInstance.get() as instance:
    before = DayRun(failed, False) if failed else None
    ended = run_day(instance, day, token=token, failed=before, executor=steps)
sys.exit(0 if ended.success else 3)
"""


@dataclass(frozen=True)
class StepSpan:
    """When a step began and ended (epoch seconds; `None`: it did not), and the process of its last try."""

    step: str
    began: float
    ended: float | None
    pid: int


class Worker:
    """A run of one day: its own session of processes, watched through the instance's event log."""

    def __init__(self, instance: dg.DagsterInstance, folder: Path, day: str, failed: str = "") -> None:
        self._instance = instance
        self._token = str(uuid.uuid4())
        self.run_id: str | None = None
        self._log = (folder / "kills.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, day, self._token, failed],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "TMPDIR": str(temporary_folder(folder))},
            start_new_session=True,
        )

    def spans(self) -> list[StepSpan]:
        """The steps that began so far, in order."""
        if self.run_id is None:
            runs = self._instance.get_runs(dg.RunsFilter(tags={_TOKEN: self._token}), limit=1)
            if not runs:
                return []
            self.run_id = runs[0].run_id
        spans: dict[str, StepSpan] = {}
        kinds = {
            dg.DagsterEventType.STEP_START,
            dg.DagsterEventType.STEP_RESTARTED,
            dg.DagsterEventType.STEP_SUCCESS,
            dg.DagsterEventType.STEP_FAILURE,
            dg.DagsterEventType.STEP_UP_FOR_RETRY,
        }
        for record in self._instance.get_records_for_run(self.run_id, of_type=kinds).records:
            entry = record.event_log_entry
            event = entry.get_dagster_event()
            step = str(event.step_key).rpartition(".")[2]
            if event.event_type in (dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED):
                spans[step] = StepSpan(step, entry.timestamp, None, int(event.pid or 0))
            elif step in spans:
                before = spans[step]
                spans[step] = StepSpan(step, before.began, entry.timestamp, before.pid)
        return list(spans.values())

    def running(self) -> StepSpan | None:
        """The step that is running now."""
        return next((span for span in self.spans() if span.ended is None and span.pid), None)

    def finish(self) -> bool:
        """Wait for the run's end; whether it succeeded."""
        try:
            return self.process.wait(_PATIENCE_SECONDS) == 0
        finally:
            self.close()

    def orphans(self) -> list[int]:
        """Processes of this run that are still there some time after its end."""
        gone = wait_for(lambda: not session_members(self.process.pid), _ORPHAN_SECONDS)
        return [] if gone else session_members(self.process.pid)

    def close(self) -> None:
        """End what still runs, by the ids of its own session."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            for pid in session_members(self.process.pid):
                os.kill(pid, signal.SIGKILL)
        self._log.close()


def session_members(session_id: int) -> list[int]:
    """Living processes of one session: a worker and everything below it, orphans too."""
    return [pid for pid, _parent, session, state in _processes() if session == session_id and state != "Z"]


def java_below(pid: int) -> int | None:
    """A `java` process among the descendants of `pid`; `None` if there is none."""
    parents = {each: parent for each, parent, _session, state in _processes() if state != "Z"}
    for each in parents:
        above: int | None = parents.get(each)
        while above is not None and above > 1 and above != pid:
            above = parents.get(above)
        if above == pid and _program(each) == "java":
            return each
    return None


def _processes() -> list[tuple[int, int, int, str]]:
    """(pid, parent, session, state) of every process."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in parentheses may hold anything, so what follows is counted from its end.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found.append((int(entry.name), int(fields[1]), int(fields[3]), fields[0]))
    return found


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true before the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
