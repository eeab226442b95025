"""Random lives of a job in an operator's hands, against dictionaries: rows, batches and published files.

python tests/property/test_operators_lives.py 0 100     so many seeds, and what went wrong with each

Beside days it draws restores, corrections, renames, drops, clones of clones, another retention, moved and
copied stores, files that a consumer takes, damaged manifests, and kills at any request.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import (
    Attempt,
    Checkpoint,
    CheckpointCoordinator,
    FileReport,
    change_names,
    materialize,
)
from dstl_dagster.errors import DstlError
from dstl_dagster.jobs import clone_job, correct, drop_job, plan_correction
from dstl_dagster.keyed import KeyedState, NameChange, write_rows
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ANY, LocalObjectStore, MemoryObjectStore, ObjectStore
from dstl_dagster.testing.fault_schedules import AtRequests, Fault, SimulatedCrash
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.virtual_clock import VirtualClock

JOB, TWIN, TWINS_TWIN = "live", "twin", "twins-twin"
SCHEMA = StateSchema.of(pa.schema({"key": pa.string(), "value": pa.int64()}), ["key"], 8)
DAYS = [f"day-{number}" for number in range(9)]
ACTIONS = ("run_day",) * 10 + ("clean_up",) * 2
ACTIONS += ("restore", "savepoint", "release", "retain", "merge", "rename", "drop_operator", "take_file")
ACTIONS += ("move_store", "correct", "clone", "damage")
STEPS = 40
Rows = dict[str, int]
T = TypeVar("T")


@dataclass
class Made:
    """One checkpoint as it should be: by operator its rows, the files since the beginning, its chain."""

    rows: dict[str, Rows] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    days: list[str] = field(default_factory=list)

    def copy(self) -> Made:
        return Made({name: dict(rows) for name, rows in self.rows.items()}, dict(self.files), [*self.days])


class Life:
    """A store with one job, and what its operator does."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.folder, self.moves = random.Random(seed), folder, 0
        local = self.random.random() < 0.5
        self.store: ObjectStore = (
            LocalObjectStore(folder / "0", durable=False) if local else MemoryObjectStore()
        )
        self.retained = 2
        self.made = {0: Made()}
        self.last = 0
        self.saved: int | None = None
        self.taken: set[str] = set()

    @property
    def now(self) -> Made:
        return self.made[self.last]

    def options(self) -> CheckpointOptions:
        return CheckpointOptions(
            num_retained=self.retained,
            reader_grace=timedelta(0),
            snapshot_interval=8,
            materialize_max_runs=2,
        )

    def job(self, store: ObjectStore | None = None, name: str = JOB) -> CheckpointCoordinator:
        return CheckpointCoordinator(name, store or self.store, self.options(), owner="operator")

    def repeated(self, act: Callable[[ObjectStore], T]) -> T:
        """Do it, after up to two processes that were killed at some request of it."""
        for _ in range(2):
            if self.random.random() < 0.4:
                fault = self.random.choice([Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
                process = FaultStore(self.store, AtRequests({self.random.randint(0, 60): fault}))
                try:
                    return act(process)
                except (SimulatedCrash, DstlError):
                    if not process.crashed:
                        raise
        return act(self.store)

    # -- a day

    def run_day(self) -> None:
        self.run(self.random.choice(DAYS))

    def run(self, day: str) -> None:
        if day in self.now.days:
            return
        has_file = self.random.random() < 0.7
        values = [self.random.choice([None, self.random.randint(0, 9)]) for _ in range(3)]
        changed = {f"key {self.random.randint(0, 6)}": value for value in values}
        operator = self.random.choice([*self.now.rows, "a"])
        parts = [str(self.random.randint(0, 9)).encode() for _ in range(self.random.randint(1, 3))]
        name = f"out/{day}"

        def act(store: ObjectStore) -> Checkpoint:
            job = self.job(store)
            if job.applied(day) is None:
                attempt = job.trigger(idempotency_key=day)
                table = pa.table([[*changed], [*changed.values()]], schema=SCHEMA.columns)
                gone = pa.array([value is None for value in changed.values()])
                rows = write_rows(table, attempt, store, operator=operator, schema=SCHEMA, deleted=gone)
                files = [written(store, attempt, name, parts)] if has_file else []
                job.record(attempt, [rows], files, {"source": day})
                job.confirm(attempt)
            job.compose_commit()
            return job.at(f"partition:{day}")

        made = self.now.copy()
        rows = {**made.rows.get(operator, {}), **changed}
        made.rows[operator] = {key: value for key, value in rows.items() if value is not None}
        made.days.append(day)
        if has_file:
            made.files[name] = b"".join(parts)
            self.taken.discard(name)
        self.went_on(self.repeated(act), made)

    def went_on(self, checkpoint: Checkpoint, made: Made) -> None:
        self.last = checkpoint.checkpoint_id
        self.made[self.last] = made

    # -- commands

    def clean_up(self) -> None:
        self.repeated(lambda store: self.job(store).clean_up())

    def retain(self) -> None:
        self.retained = self.random.choice([1, 2, 3, 6])

    def savepoint(self) -> None:
        if self.last and self.saved is None:
            self.saved = self.random.choice(self.job().list()).checkpoint_id
            self.repeated(lambda store: self.job(store).savepoint(self.saved, "saved"))

    def release(self) -> None:
        self.saved = None
        self.repeated(lambda store: self.job(store).release("saved"))

    def restore(self) -> None:
        if self.last:
            self.go_back(self.random.choice([0, *(each.checkpoint_id for each in self.job().list())]))

    def go_back(self, checkpoint_id: int) -> None:
        planned = self.job().plan_restore(checkpoint_id).files
        assert {file.name for file in planned} >= self.now.files.keys() - self.made[
            checkpoint_id
        ].files.keys()
        self.repeated(lambda store: self.job(store).restore(checkpoint_id))
        self.went_back(checkpoint_id)

    def went_back(self, checkpoint_id: int) -> None:
        self.last = checkpoint_id
        self.taken &= self.now.files.keys()

    def correct(self) -> None:
        held = [*self.now.days]
        if held:
            plan = plan_correction(self.job(), self.random.choice(held))
            if plan.restore_to is not None:
                self.job().restore(plan.restore_to)
                self.went_back(plan.restore_to)
            correct(self.job(), plan, self.run)
            assert set(held) <= set(self.now.days)

    def merge(self) -> None:
        if self.last:
            force = self.random.random() < 0.5
            self.repeated(lambda store: materialize(self.job(store), force=force))
            self.job().compose_commit()
            for record in self.job().timeline.records():
                if record.kind == "completed" and record.checkpoint_id not in self.made:
                    self.went_on(self.job().get(record.checkpoint_id), self.now.copy())

    def rename(self) -> None:
        self.change_operator(self.random.choice("abcd"))

    def drop_operator(self) -> None:
        if len(self.now.rows) > 1:
            self.change_operator(None)

    def change_operator(self, new: str | None) -> None:
        if not self.now.rows or new in self.now.rows:
            return
        old = self.random.choice([*self.now.rows])

        def act(store: ObjectStore) -> Checkpoint:
            job = self.job(store)
            latest = job.at()
            if old in latest.manifest.operators:
                return change_names(job, latest, NameChange(operators={old: new}))
            job.compose_commit()
            return latest

        made = self.now.copy()
        rows = made.rows.pop(old)
        if new is not None:
            made.rows[new] = rows
        self.went_on(self.repeated(act), made)

    def clone(self) -> None:
        if not self.last:
            return
        at = self.random.choice([each.checkpoint_id for each in self.job().list()])
        for job, new, of in ((JOB, TWIN, at), (TWIN, TWINS_TWIN, None)):
            self.repeated(lambda store: clone_job(store, job, new, at=of, owner="clone"))  # noqa: B023 - called at once
        for name in self.random.sample([TWIN, TWINS_TWIN], 2):
            assert rows_at(self.store, self.job(name=name).at()) == present(self.made[at])
            self.repeated(lambda store: self.drop(store, name))  # noqa: B023 - as above

    def drop(self, store: ObjectStore, name: str) -> None:
        if any(store.list(f"dstl/{name}/")):
            drop_job(store, name, owner="drop", clock=VirtualClock())

    # -- from outside

    def take_file(self) -> None:
        left = sorted(self.now.files.keys() - self.taken)
        if left:
            self.taken.add(self.random.choice(left))
            for name in self.taken:
                self.store.delete(name, precondition=ANY)

    def move_store(self) -> None:
        if not isinstance(self.store, LocalObjectStore) or not self.last:
            return
        self.moves += 1
        there = self.folder / str(self.moves)
        how = self.random.choice([shutil.copy, shutil.copy2, None])
        if how is None:
            self.store.root.rename(there)
        else:
            shutil.copytree(self.store.root, there, copy_function=how)
        self.store = LocalObjectStore(there, durable=False)

    def damage(self) -> None:
        """The newest manifest, which no restore needs: the job goes back to before it."""
        there = self.job().list()
        if len(there) < 2 or there[-1].checkpoint_id == self.saved:
            return
        name = there[-1].entry.completed.manifest
        if self.random.random() < 0.5:
            self.store.put(name, b"damaged", precondition=ANY)
        else:
            self.store.delete(name, precondition=ANY)
        assert not self.job().audit().in_order
        found, _ = self.job().newest_verified()
        assert found is not None
        assert found.checkpoint_id == there[-2].checkpoint_id
        self.go_back(found.checkpoint_id)

    # -- what is there

    def check(self) -> None:
        job = self.job()
        latest, view = job.latest(), job.timeline.tail()
        assert (0 if latest is None else latest.checkpoint_id) == self.last
        for each in [*job.list(), *map(job.get, view.savepoints.values())]:
            assert rows_at(self.store, each) == present(self.made[each.checkpoint_id])
        assert {day for day in DAYS if job.applied(day) is not None} == set(self.now.days)
        published = {stat.name: self.store.get(stat.name) for stat in self.store.list("out/")}
        assert published == {name: self.now.files[name] for name in self.now.files.keys() - self.taken}
        assert not view.slot or job.audit().in_order
        assert latest is None or job.verify(latest.checkpoint_id).ok

    def end(self) -> None:
        """Once what is left open is aborted, two clean-ups leave nothing that no checkpoint needs."""
        opened = self.job().timeline.tail().open_attempt
        if opened is not None:
            self.job().abort(Attempt(opened.checkpoint_id, opened.attempt, opened.parent, JOB), "the end")
        if self.last:
            self.run(next(day for day in [*DAYS, "the last day"] if day not in self.now.days))
            for _ in range(2):
                self.job().clean_up()
            garbage = self.job().audit().garbage
            assert garbage is not None
            assert garbage.objects == 0
            assert [*self.store.list(".inprogress/")] == []


def written(store: ObjectStore, attempt: Attempt, name: str, parts: list[bytes]) -> FileReport:
    stream = GSRecoverableWriter(store, attempt=attempt.attempt).open(store.uri_of(name))
    for part in parts:
        stream.write(part)
        stream.sync()
    committer = stream.close_for_commit()
    return FileReport(committer.recoverable, tuple(committer.components), rows=1, format="text")


def rows_at(store: ObjectStore, checkpoint: Checkpoint) -> dict[str, Rows]:
    states = {each: KeyedState.of(store, checkpoint.manifest, each) for each in checkpoint.manifest.operators}
    found = {
        operator: {
            row["key"]: row["value"]
            for table in (() if state is None else state.tables())
            for row in table.to_pylist()
        }
        for operator, state in states.items()
    }
    return {operator: rows for operator, rows in found.items() if rows}


def present(made: Made) -> dict[str, Rows]:
    return {operator: rows for operator, rows in made.rows.items() if rows}


def live(seed: int, done: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="dstl-tests-") as folder:
        life = Life(seed, Path(folder))
        for _ in range(STEPS):
            done.append(life.random.choice(ACTIONS))
            getattr(life, done[-1])()
            life.check()
        life.end()


@pytest.mark.parametrize("seed", range(3))
def test_a_job_is_what_its_operator_made_it(seed: int) -> None:
    """Whatever was killed in between: after each step, by every way to look."""
    live(seed, [])


if __name__ == "__main__":
    wrong = 0
    for number in range(*map(int, sys.argv[1:])):
        steps: list[str] = []
        try:
            live(number, steps)
        except Exception:
            wrong += 1
            print(f"seed {number}: {' '.join(steps)}", flush=True)
            traceback.print_exc(limit=-4)
    sys.exit(f"{wrong} seeds went wrong" if wrong else 0)
