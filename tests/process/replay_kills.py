"""Kill -9 in the streaming example, again and again, and compare with what the flights themselves say.

    python tests/process/replay_kills.py --kills 20 --rows-per-batch 12000 --seed 1 [--sink]

replays all 336,776 flights while it kills, at random moments: the driver with its JVM; a Python worker of a
task; the driver between the manifest of a checkpoint and its end, which is inside `commit`. Then it starts
the job again. At the end every row of state and every file must be what the raw data says, computed here
without Spark and without this package's state.

Owns choosing the moments, killing, and the expected outcome.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.keyed import KeyedState
from dstl_dagster.storage import open_store
from dstl_replay.job import JOB, LATE_MINUTES
from dstl_replay.source import replay_file

Target = Literal["driver", "worker", "commit"]

POLL_SECONDS = 0.002
_DEADLINE_SECONDS = 280.0
_MAX_STARTS = 100


@dataclass
class Replay:
    """One run of the job in a folder, over any number of processes."""

    folder: Path
    rows_per_batch: int
    sink: bool
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.starts += 1
        assert self.starts <= _MAX_STARTS, f"does not end; see {self.folder}/replay.log"
        command = [sys.executable, "-m", "dstl_replay.job", "--folder", str(self.folder)]
        command += ["--rows-per-batch", str(self.rows_per_batch), *(["--sink"] if self.sink else [])]
        with (self.folder / "replay.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def ended(self) -> bool:
        """Whether the year is over; starts the job again where it failed."""
        assert self.process is not None
        if self.process.poll() is None:
            return False
        if self.process.returncode == 0:
            return True
        self.start()
        return False

    def until(self, happened: Callable[[], bool]) -> bool:
        """Wait for it; False: the year was over before."""
        end = time.monotonic() + _DEADLINE_SECONDS
        while not happened():
            assert time.monotonic() < end, f"nothing happens; see {self.folder}/replay.log"
            if self.ended():
                return False
            time.sleep(POLL_SECONDS)
        return True

    def names(self, kind: Literal["manifests", "attempts"]) -> set[str]:
        """What the job has of this kind; clean-up takes old ones away."""
        folder = self.folder / "store" / "dstl" / JOB / kind
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def kill(self, target: Target, chance: random.Random) -> bool:
        """Wait for the moment, and kill; False: the year was over before."""
        assert self.process is not None
        # A manifest is written in the midst of a commit, an attempt's first object while tasks run.
        kind: Literal["manifests", "attempts"] = "manifests" if target == "commit" else "attempts"
        before = self.names(kind)
        if not self.until(lambda: bool(self.names(kind) - before)):
            return False
        if target != "commit":
            moment = time.monotonic() + chance.uniform(0, 1.5)
            self.until(lambda: time.monotonic() >= moment)
        if target == "worker":
            workers: list[int] = []
            if not self.until(lambda: bool(workers.extend(_workers(self.process)) or workers)):
                return False
            _kill(chance.choice(workers))
        else:
            self._kill_driver()
        self.kills[target] += 1
        return True

    def _kill_driver(self) -> None:
        assert self.process is not None
        java = [pid for pid in _below(self.process.pid) if "java" in _command(pid).split("\0")[0]]
        for pid in (*java, self.process.pid):
            _kill(pid)
        self.process.wait()
        self.start()

    def finish(self) -> None:
        """Run until the year is over."""
        self.until(lambda: False)

    def stop(self) -> None:
        if self.running:
            assert self.process is not None
            for pid in (*_below(self.process.pid), self.process.pid):
                _kill(pid)
            self.process.wait()


def differences(replay: Replay) -> list[str]:
    """What is other than the raw data says; empty where all is well."""
    flights = _flights(replay.folder)
    store = open_store((replay.folder / "store").as_uri())
    coordinator = CheckpointCoordinator(JOB, store)
    latest = coordinator.latest()
    assert latest is not None
    found: list[str] = []
    batches = -(-len(flights) // replay.rows_per_batch)
    if latest.checkpoint_id != batches:
        found.append(f"{batches} batches made {latest.checkpoint_id} checkpoints")
    operator = "flights" if replay.sink else "aircraft"
    state = KeyedState.of(store, latest.manifest, operator)
    assert state is not None
    rows = [tuple(row.values()) for table in state.tables() for row in table.to_pylist()]
    expected = [tuple(row.values()) for row in flights] if replay.sink else _aircraft(flights)
    if Counter(rows) != Counter(expected):
        found.append(f"state: {len(rows)} rows, expected {len(expected)}, not the same")
    if not replay.sink:
        found += _file_differences(replay, flights, batches)
    coordinator.clean_up()
    alive = {str(entry.completed.attempt) for entry in coordinator.timeline.tail().checkpoints.values()}
    folder = replay.folder / "store" / "dstl" / JOB / "attempts"
    dead = [path.name for path in folder.iterdir() if path.name not in alive and any(path.rglob("*"))]
    return found + [f"attempt {name} left objects" for name in dead]


def _flights(folder: Path) -> list[dict[str, Any]]:
    with pa.memory_map(str(replay_file(folder / "source"))) as file:
        rows: list[dict[str, Any]] = pa.ipc.open_file(file).read_all().to_pylist()
    return rows


def _aircraft(flights: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    totals: dict[str, list[Any]] = {}
    for flight in flights:
        if flight["tail_number"] is not None:
            total = totals.setdefault(flight["tail_number"], [0, 0, flight["scheduled"]])
            total[0] += 1
            total[1] += flight["delay_minutes"] or 0
            total[2] = max(total[2], flight["scheduled"])
    return [(tail, *total) for tail, total in totals.items()]


def _file_differences(replay: Replay, flights: list[dict[str, Any]], batches: int) -> list[str]:
    found = []
    store = replay.folder / "store"
    names = {path.name for path in (store / "late").iterdir()}
    if names != {f"{n:06d}.jsonl" for n in range(1, batches + 1)}:
        found.append(f"files: {sorted(names)}")
        return found
    for n in range(batches):
        batch = flights[n * replay.rows_per_batch : (n + 1) * replay.rows_per_batch]
        late = [
            (each["carrier"], each["flight"], each["origin"], each["delay_minutes"])
            for each in batch
            if (each["delay_minutes"] or 0) >= LATE_MINUTES
        ]
        lines = (store / "late" / f"{n + 1:06d}.jsonl").read_text("utf-8").splitlines()
        parsed = [json.loads(line) for line in lines]
        if [(o["carrier"], o["flight"], o["origin"], o["delay_minutes"]) for o in parsed] != late:
            found.append(f"late/{n + 1:06d}.jsonl is other than the flights")
        parts = sorted((store / "flights" / f"{n + 1:06d}").iterdir())
        written = [tuple(row.values()) for part in parts for row in pq.read_table(part).to_pylist()]
        if Counter(written) != Counter(tuple(each.values()) for each in batch):
            found.append(f"flights/{n + 1:06d} is other than the flights")
    return found


def _workers(process: subprocess.Popen[bytes] | None) -> list[int]:
    """Python processes that run tasks: children of Spark's daemon."""
    assert process is not None
    daemons = [pid for pid in _below(process.pid) if "pyspark.daemon" in _command(pid)]
    return [pid for pid in daemons if any(pid in _children(other) for other in daemons)]


def _below(pid: int) -> list[int]:
    found = []
    for child in _children(pid):
        found += [child, *_below(child)]
    return found


def _children(pid: int) -> list[int]:
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in tasks.read_text().split()]
        except OSError:
            continue
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def replay_with_kills(
    folder: Path, targets: list[Target], *, rows_per_batch: int, seed: int, sink: bool = False
) -> Replay:
    """Run to the end of the year, with a kill for each of `targets` as far as there is time."""
    folder.mkdir(parents=True, exist_ok=True)
    replay_file(folder / "source")
    chance = random.Random(seed)
    replay = Replay(folder, rows_per_batch, sink)
    replay.start()
    try:
        for target in targets:
            if not replay.kill(target, chance):
                break
        replay.finish()
    finally:
        replay.stop()
    return replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows-per-batch", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sink", action="store_true")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    targets: list[Target] = [chance.choice(["driver", "worker", "commit"]) for _ in range(given.kills)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        replay = replay_with_kills(
            Path(scratch) / "r",
            targets,
            rows_per_batch=given.rows_per_batch,
            seed=given.seed,
            sink=given.sink,
        )
        wrong = differences(replay)
        kills = ", ".join(f"{count} {what}" for what, count in sorted(replay.kills.items()))
        seconds = time.monotonic() - began
        print(f"{sum(replay.kills.values())} kills ({kills}), {replay.starts} starts, {seconds:.0f} s")
        for each in wrong:
            print("DIFFERENT:", each)
        sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
