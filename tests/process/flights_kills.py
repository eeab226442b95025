"""Kill -9 in the middle of the flights example, again and again, and compare with runs that nothing killed.

    python tests/process/flights_kills.py --moments 10 --seed 1

runs the second day of 2013 ten times with a SIGKILL of the Dagster step process and ten times with one of
the Spark JVM, each at another random moment, executes a failed run again from its failure, and compares the
bytes of every report and every row of the state with a run without kills. The state is read without Spark.

Owns choosing the moments, killing, and comparing. Runs are the example's own (`dstl_flights.runs`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import dagster as dg

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.format.names import COMPONENTS_PREFIX, JobNames
from dstl_dagster.spark.state_tasks import ReadStateTask
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import open_store
from dstl_flights.assets import JOB
from dstl_flights.runs import instance_in
from dstl_flights.source import flights_csv

Target = Literal["step", "jvm"]

DAYS = ("2013-01-01", "2013-01-02")
STEPS = ("update", "persist", "confirm", "compose_commit", "cleanup")
_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 240.0
_ORPHAN_SECONDS = 30.0
_MAX_RUNS = 5
_MAX_DRAWS = 10
_TOKEN = "dstl/demo_run"  # the tag by which `run_day` lets others find its run
_WORKER = """
import sys
import dagster as dg
from dstl_flights.runs import DayRun, run_day
day, token, failed = sys.argv[1:4]
with dg.DagsterInstance.get() as instance:
    ended = run_day(instance, day, token=token, failed=DayRun(failed, False) if failed else None)
sys.exit(0 if ended.success else 3)
"""


# ---- what is compared ----


@dataclass(frozen=True)
class Outcome:
    """All that the days made: reports by name as SHA-256, rows by operator, and the positions."""

    reports: dict[str, str]
    state: dict[str, list[str]]
    positions: dict[str, object]
    checkpoints: list[int]

    def differences(self, other: Outcome) -> list[str]:
        """What is not the same in the other, in words; empty where everything is."""
        found = [
            f"report {name}"
            for name in sorted(self.reports.keys() | other.reports.keys())
            if self.reports.get(name) != other.reports.get(name)
        ]
        for operator in sorted(self.state.keys() | other.state.keys()):
            ours, theirs = self.state.get(operator, []), other.state.get(operator, [])
            if ours != theirs:
                found.append(f"state {operator}: {len(set(ours) ^ set(theirs))} rows")
        if self.positions != other.positions:
            found.append(f"positions {self.positions} and {other.positions}")
        if self.checkpoints != other.checkpoints:
            found.append(f"checkpoints {self.checkpoints} and {other.checkpoints}")
        return found


def outcome_of(folder: Path) -> Outcome:
    """Everything in the store below `folder`, read without Spark and without Dagster."""
    store = open_store((folder / "store").as_uri())
    coordinator = CheckpointCoordinator(JOB.job, store)
    latest = coordinator.latest()
    assert latest is not None, f"no checkpoint in {folder}"
    reports = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "store" / "reports").rglob("*"))
        if path.is_file()
    }
    state = {operator: _rows(coordinator, operator) for operator in latest.manifest.operators}
    return Outcome(
        reports, state, dict(latest.positions), [each.checkpoint_id for each in coordinator.list()]
    )


def _rows(coordinator: CheckpointCoordinator, operator: str) -> list[str]:
    latest = coordinator.latest()
    assert latest is not None
    state = coordinator.operator_state(latest, operator)
    assert state is not None
    newest = state.newest
    task = ReadStateTask(
        store_uri=coordinator.store.uri,
        job=coordinator.job,
        checkpoint_id=latest.checkpoint_id,
        operator=operator,
        schema=StateSchema.from_parts(newest.schema, newest.key_columns, newest.max_parallelism),
        ranges=(),
        handles=state.handles,
    )
    everything = KeyGroupRange.of(0, newest.max_parallelism - 1)
    return sorted(repr(row) for batch in task._read(everything) for row in batch.to_pylist())


def leftovers(folder: Path) -> list[str]:
    """Objects of dead attempts that a clean-up leaves behind: none is right."""
    store = open_store((folder / "store").as_uri())
    coordinator = CheckpointCoordinator(JOB.job, store)
    coordinator.clean_up()
    names = JobNames(JOB.job)
    alive = {each.attempt for each in coordinator.list()}
    components = [stat.name for stat in store.list(COMPONENTS_PREFIX)]
    attempts = [stat.name for stat in store.list(names.attempts_prefix)]
    manifests = [stat.name for stat in store.list(names.manifests_prefix)]
    return [
        *components,
        *(name for name in attempts if names.attempt_of_folder(name) not in alive),
        *(name for name in manifests if names.attempt_of_manifest(name) not in alive),
    ]


def scratch_left(folder: Path) -> list[str]:
    """Folders of Spark sessions that nobody removed, also not those of killed processes."""
    return [path.name for path in _temporary(folder).glob("dstl-spark-*")]


def _temporary(folder: Path) -> Path:
    path = folder / "tmp"
    path.mkdir(exist_ok=True)
    return path


# ---- processes, as the kernel shows them ----


def session_members(session_id: int) -> list[int]:
    """Living processes of one session: a worker and everything below it, orphans too."""
    return [pid for pid, _parent, session, state in _processes() if session == session_id and state != "Z"]


def java_below(pid: int) -> int | None:
    """A `java` process among the descendants of `pid`; `None` where there is none."""
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
        time.sleep(_POLL_SECONDS)
    return True


# ---- one run of a day in a worker process of its own ----


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
            env={**os.environ, "TMPDIR": str(_temporary(folder))},
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


# ---- the baseline, and one killed day ----


@dataclass(frozen=True)
class Baseline:
    """A folder after day 1, what day 2 makes without kills, and how long its steps took."""

    after_first: Path
    expected: Outcome
    step_seconds: dict[str, float]
    jvm_seconds: float


def make_baseline(root: Path) -> Baseline:
    """Run both days without a kill."""
    first, whole = root / "day-1", root / "days-1-2"
    first.mkdir(parents=True)
    flights_csv(first / "source")
    _run_to_end(first, DAYS[0])
    copy_folder(first, whole)
    with instance_in(whole) as instance:
        worker = Worker(instance, whole, DAYS[1])
        update_began, jvm_began = None, None
        while worker.process.poll() is None:
            running = worker.running()
            if running is not None and running.step == "update" and jvm_began is None:
                update_began = running.began
                jvm_began = time.time() if java_below(running.pid) is not None else None
            time.sleep(_POLL_SECONDS)
        assert worker.finish(), f"day 2 failed without any kill; see {whole}/kills.log"
        seconds = {span.step: (span.ended or span.began) - span.began for span in worker.spans()}
    assert update_began is not None
    assert jvm_began is not None, "no java process was seen"
    return Baseline(first, outcome_of(whole), seconds, max(1.0, update_began + seconds["update"] - jvm_began))


def _run_to_end(folder: Path, day: str) -> None:
    with instance_in(folder) as instance:
        assert Worker(instance, folder, day).finish(), f"{day} failed; see {folder}/kills.log"


def copy_folder(source: Path, target: Path) -> None:
    """A copy to go on from. Objects are hard links, by which the local store knows its files again."""
    target.mkdir()
    shutil.copytree(source / "dagster", target / "dagster")
    (target / "source").symlink_to(source / "source")

    def copy(one: str, other: str) -> None:
        # What the store writes in place, its own records and locks, must not be shared.
        if ".dstl-store" in Path(one).parts:
            shutil.copy2(one, other)
        else:
            os.link(one, other)

    shutil.copytree(source / "store", target / "store", copy_function=copy)


@dataclass(frozen=True)
class Moment:
    """When to kill: so many seconds after the step began, or after its JVM was there."""

    target: Target
    step: str
    seconds: float


def draw_moment(rng: random.Random, target: Target, baseline: Baseline) -> Moment:
    """A moment of the day. Half of the steps' are spread over time, half over the steps, which are short."""
    if target == "jvm":
        return Moment("jvm", "update", rng.uniform(0.0, baseline.jvm_seconds))
    weights = [baseline.step_seconds[step] for step in STEPS] if rng.random() < 0.5 else [1.0] * len(STEPS)
    (step,) = rng.choices(STEPS, weights)
    return Moment("step", step, rng.uniform(0.0, baseline.step_seconds[step]))


@dataclass(frozen=True)
class Killed:
    """What became of one moment; `differences` and `orphans` are empty where everything is right."""

    moment: Moment
    hit: str
    runs: int
    seconds: float
    differences: list[str]
    orphans: list[int]


def kill_and_recover(baseline: Baseline, folder: Path, rng: random.Random, target: Target) -> Killed:
    """Run day 2 on a copy with one kill, execute it again until it succeeds, and compare."""
    for draw in range(_MAX_DRAWS):
        moment = draw_moment(rng, target, baseline)
        copy = folder / f"try-{draw}"
        folder.mkdir(parents=True, exist_ok=True)
        copy_folder(baseline.after_first, copy)
        killed = _one_day(baseline, copy, moment)
        if killed is not None:
            return killed
    raise AssertionError(f"{_MAX_DRAWS} times the day was over before the kill")


def _one_day(baseline: Baseline, folder: Path, moment: Moment) -> Killed | None:
    started = time.monotonic()
    orphans: list[int] = []
    with instance_in(folder) as instance:
        worker = Worker(instance, folder, DAYS[1])
        try:
            hit = _kill_at(worker, moment)
        except BaseException:
            worker.close()
            raise
        success = worker.finish()
        orphans += worker.orphans()
        if hit is None:
            return None
        runs = 1
        while not success and runs < _MAX_RUNS:
            assert worker.run_id is not None
            worker = Worker(instance, folder, DAYS[1], failed=worker.run_id)
            runs += 1
            success = worker.finish()
            worker.spans()
            orphans += worker.orphans()
    assert success, f"{_MAX_RUNS} runs failed; see {folder}/kills.log"
    left = [f"left behind: {name}" for name in leftovers(folder) + scratch_left(folder)]
    differences = baseline.expected.differences(outcome_of(folder)) + left
    return Killed(moment, hit, runs, time.monotonic() - started, differences, orphans)


def _kill_at(worker: Worker, moment: Moment) -> str | None:
    """Kill, and say what was hit; `None` where the moment did not come."""
    since: float | None = None
    while worker.process.poll() is None:
        running = worker.running()
        victim = None
        if running is not None and running.step == moment.step:
            victim = running.pid if moment.target == "step" else java_below(running.pid)
            since = since or (running.began if moment.target == "step" else time.time())
        if victim is not None and since is not None and time.time() >= since + moment.seconds:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                return None
            return f"{moment.target} {victim} in {moment.step} after {time.time() - since:.2f} s"
        time.sleep(_POLL_SECONDS)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moments", type=int, default=10, help="kills of each kind")
    parser.add_argument("--seed", type=int, default=1, help="the first moment's seed; the others count up")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="flights-kills-"))
    began = time.monotonic()
    baseline = make_baseline(root)
    steps = ", ".join(f"{step} {baseline.step_seconds[step]:.1f} s" for step in STEPS)
    print(f"without kills: {steps}; the JVM lives {baseline.jvm_seconds:.1f} s", flush=True)
    wrong = 0
    targets: tuple[Target, ...] = ("step", "jvm")
    for number in range(2 * arguments.moments):
        target, seed = targets[number % 2], arguments.seed + number
        killed = kill_and_recover(baseline, root / f"seed-{seed}", random.Random(seed), target)
        problems = killed.differences + [f"process {pid} still there" for pid in killed.orphans]
        wrong += bool(problems)
        print(
            f"seed {seed}: killed {killed.hit}; {killed.runs} runs, {killed.seconds:.0f} s: "
            + ("; ".join(problems) or "same reports, same state"),
            flush=True,
        )
        if not problems:
            shutil.rmtree(root / f"seed-{seed}")
    print(f"{2 * arguments.moments} kills, {wrong} wrong, {time.monotonic() - began:.0f} s", flush=True)
    if wrong:
        print(f"everything is kept in {root}")
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
