"""Kill -9 in the middle of the flights example, again and again, and compare with runs that nothing killed.

    python tests/process/flights_kills.py --moments 10 --seed 1

runs the second day of 2013 ten times with a SIGKILL of the Dagster step process and ten times with one of
the Spark JVM, each at another random moment, executes a failed run again from its failure, and compares the
bytes of every report and every row of the state with a run without kills. The state is read without Spark.

Owns choosing the moments, killing, and comparing. Runs are the example's own (`dstl_flights.runs`).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flights_outcome import Outcome, leftovers, outcome_of, scratch_left
from flights_worker import POLL_SECONDS, Worker, java_below

from dstl_flights.runs import instance_in
from dstl_flights.source import flights_csv

Target = Literal["step", "jvm"]

DAYS = ("2013-01-01", "2013-01-02")
STEPS = ("update", "persist", "confirm", "compose_commit", "cleanup")
_MAX_RUNS = 5
_MAX_DRAWS = 10


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
            time.sleep(POLL_SECONDS)
        assert worker.finish(), f"day 2 failed without any kill; see {whole}/kills.log"
        seconds = {span.step: (span.ended or span.began) - span.began for span in worker.spans()}
    assert update_began is not None
    assert jvm_began is not None, "no java process was seen"
    return Baseline(first, outcome_of(whole), seconds, max(1.0, update_began + seconds["update"] - jvm_began))


def _run_to_end(folder: Path, day: str) -> None:
    with instance_in(folder) as instance:
        assert Worker(instance, folder, day).finish(), f"{day} failed; see {folder}/kills.log"


def copy_folder(source: Path, target: Path) -> None:
    """A copy to resume from. Objects are hard links, by which the local store recognizes its files."""
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


def draw_moment(rng: random.Random, target: Target, baseline: Baseline, pace: float = 1.0) -> Moment:
    """A moment of the day. Half of the steps' are spread over time, half over the steps, which are short.

    `pace` is how long a step is expected to take, beside the baseline's.
    """
    if target == "jvm":
        return Moment("jvm", "update", rng.uniform(0.0, baseline.jvm_seconds * pace))
    weights = [baseline.step_seconds[step] for step in STEPS] if rng.random() < 0.5 else [1.0] * len(STEPS)
    (step,) = rng.choices(STEPS, weights)
    return Moment("step", step, rng.uniform(0.0, baseline.step_seconds[step] * pace))


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
        # A missed moment means that the machine is faster now than during the baseline.
        moment = draw_moment(rng, target, baseline, pace=0.7**draw)
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
            assert success, f"the day failed without any kill; see {folder}/kills.log"
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
        time.sleep(POLL_SECONDS)
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
        print(f"its files are in {root}")
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
