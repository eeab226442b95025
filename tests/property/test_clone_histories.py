"""Random lives of a job and its clone, against a model: what each checkpoint has, and which batches count."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Batch, Checkpoint, CheckpointCoordinator, Opening, materialize
from dstl_dagster.errors import ConflictError, DstlError
from dstl_dagster.jobs import clone_job, drop_job, swap_job
from dstl_dagster.keyed import KeyedState, diff_checkpoints, write_rows
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock

SCHEMA = StateSchema.of(pa.schema({"key": pa.string(), "value": pa.int64()}), ["key"], 8)
OPERATORS = ("a", "b")
ACTIONS = ("batch",) * 8 + ("clean_up",) * 2 + ("restore", "savepoint", "release", "merge", "zombie")
ACTIONS += ("clone", "clone", "swap", "swap", "drop")
Rows = dict[str, int]


@dataclass
class Made:
    """One checkpoint as it should be: by operator its rows, its parent (0: none), the batches it added."""

    rows: dict[str, Rows]
    parent: int
    batches: list[str] = field(default_factory=list)


class Job:
    """A job, and its model."""

    def __init__(self, life: Life, name: str) -> None:
        self.life, self.name = life, name
        self.made: dict[int, Made] = {}
        self.last = 0

    @property
    def coordinator(self) -> CheckpointCoordinator:
        return CheckpointCoordinator(self.name, self.life.store, self.life.options, owner="test")

    def now(self, checkpoint: Checkpoint, made: Made) -> None:
        self.made[checkpoint.checkpoint_id], self.last = made, checkpoint.checkpoint_id

    def rows(self) -> dict[str, Rows]:
        return {each: dict(self.made[self.last].rows[each] if self.last else {}) for each in OPERATORS}

    def batches(self, at: int) -> list[str]:
        found = []
        while at:
            found, at = [*self.made[at].batches, *found], self.made[at].parent
        return found

    def check(self) -> None:
        coordinator = self.coordinator
        latest, view = coordinator.latest(), coordinator.timeline.tail()
        assert (0 if latest is None else latest.checkpoint_id) == self.last
        checkpoints = [*coordinator.list(), *map(coordinator.get, view.savepoints.values())]
        for each in checkpoints:
            assert rows_at(self.life.store, each) == self.made[each.checkpoint_id].rows
        held = set(self.batches(self.last))
        for batch in {batch for made in self.made.values() for batch in made.batches}:
            assert (coordinator.applied(batch) is not None) == (batch in held)
        one, other = (self.life.random.choice(checkpoints) for _ in range(2)) if checkpoints else (None, None)
        if one is not None and other is not None:
            self.check_diff(one, other)

    def check_diff(self, older: Checkpoint, newer: Checkpoint) -> None:
        for operator in OPERATORS:
            before, after = (self.made[each.checkpoint_id].rows[operator] for each in (older, newer))
            if operator in older.manifest.operators or operator in newer.manifest.operators:
                found = [*diff_checkpoints(self.life.store, older.manifest, newer.manifest, operator)]
                gone = {row["key"] for each in found for row in each.removed.to_pylist()}
                new = {
                    row["key"]: row["value"]
                    for each in found
                    for rows in (each.added, each.after)
                    for row in rows.to_pylist()
                }
                assert gone == before.keys() - after.keys()
                assert new == {key: value for key, value in after.items() if before.get(key) != value}


def rows_at(store: MemoryObjectStore, checkpoint: Checkpoint) -> dict[str, Rows]:
    states = {each: KeyedState.of(store, checkpoint.manifest, each) for each in OPERATORS}
    return {
        operator: {
            row["key"]: row["value"]
            for table in (() if state is None else state.tables())
            for row in table.to_pylist()
        }
        for operator, state in states.items()
    }


class Life:
    """A store with the job `live` and its clone `twin`, and what happens to them."""

    def __init__(self, seed: int) -> None:
        self.random, self.store, self.steps = random.Random(seed), MemoryObjectStore(), 0
        self.options = CheckpointOptions(
            num_retained=self.random.choice([1, 2, 3]),
            reader_grace=timedelta(0),
            snapshot_interval=8,
            materialize_max_runs=self.random.choice([2, 3]),
        )
        self.live, self.twin = Job(self, "live"), Job(self, "twin")

    def step(self) -> None:
        self.steps += 1
        job = self.random.choice([self.live, self.twin if self.twin.made else self.live])
        getattr(self, self.random.choice(ACTIONS))(job)
        for each in (self.live, self.twin):
            if each.made:
                each.check()

    def batch(self, job: Job, *, dies: bool = False) -> None:
        key = f"batch {self.random.randint(1, 6)}"
        if key in job.batches(job.last):
            with pytest.raises(ConflictError, match="is already in checkpoint"):
                job.coordinator.trigger(idempotency_key=key)
            return
        rows = job.rows()
        batch = Batch.open(job.coordinator, Opening(key))
        for operator in self.random.sample(OPERATORS, self.random.randint(0, 2)):
            values = [self.random.choice([None, self.random.randint(0, 9)]) for _ in range(5)]
            changed = {f"key {self.random.randint(0, 12)}": value for value in values}
            rows[operator] |= changed  # type: ignore[arg-type] # deleted keys go below
            batch.add(
                write_rows(
                    pa.table([[*changed], [*changed.values()]], schema=SCHEMA.columns),
                    batch.attempt,
                    self.store,
                    operator=operator,
                    schema=SCHEMA,
                    deleted=pa.array([value is None for value in changed.values()]),
                    partitions=self.random.choice([1, 2, 8]),
                    shared=self.random.choice([None, batch.shared_files]),
                )
            )
        if dies:
            rival = CheckpointCoordinator(job.name, self.store, self.options, owner="rival")
            rival.abort(rival.trigger(take_over=True))
            with pytest.raises(DstlError):
                batch.complete()
            return
        batch.merge_due_runs()
        left = {name: {k: v for k, v in each.items() if v is not None} for name, each in rows.items()}
        job.now(batch.complete(), Made(left, job.last, [key]))

    def zombie(self, job: Job) -> None:
        self.batch(job, dies=True)

    def clean_up(self, job: Job) -> None:
        job.coordinator.clean_up()

    def restore(self, job: Job) -> None:
        if job.last:
            job.last = self.random.choice([0, *(each.checkpoint_id for each in job.coordinator.list())])
            job.coordinator.restore(job.last)

    def savepoint(self, job: Job) -> None:
        if job.last and "kept" not in job.coordinator.timeline.tail().savepoints:
            job.coordinator.savepoint(self.random.choice(job.coordinator.list()).checkpoint_id, "kept")

    def release(self, job: Job) -> None:
        job.coordinator.release("kept")

    def merge(self, job: Job) -> None:
        made = materialize(job.coordinator, force=self.random.random() < 0.5)
        if made is not None:
            job.now(made, Made(job.rows(), job.last))

    def clone(self, _: Job) -> None:
        kept = self.live.coordinator.timeline.tail().savepoints.values()
        ids = [*(each.checkpoint_id for each in self.live.coordinator.list()), *kept]
        if ids and not self.twin.made:
            at = self.random.choice(ids)
            owner = f"clone {self.steps}"
            made = clone_job(self.store, "live", "twin", self.options, at=at, owner=owner)
            self.twin.now(made, Made(self.live.made[at].rows, 0, self.live.batches(at)))

    def swap(self, _: Job) -> None:
        live, twin = self.live, self.twin
        if not (live.last and twin.last):
            return
        held, there = live.batches(live.last), twin.batches(twin.last)

        def swapped() -> Checkpoint:
            return swap_job(self.store, "live", "twin", self.options, owner=f"swap {self.steps}")

        if set(held) - set(there):
            with pytest.raises(ConflictError, match="it does not hold"):
                swapped()
        else:
            new = [each for each in there if each not in held]
            live.now(swapped(), Made(twin.rows(), live.last, new))

    def drop(self, _: Job) -> None:
        if self.twin.made:
            drop_job(self.store, "twin", owner="test", clock=VirtualClock())
            assert [*self.store.list("dstl/twin/")] == []
            self.twin = Job(self, "twin")


@pytest.mark.parametrize("seed", range(8))
def test_each_checkpoint_has_what_the_model_has(seed: int) -> None:
    life = Life(seed)
    for _ in range(30):
        life.step()
    for each in (life.live, life.twin):
        if each.made:
            each.coordinator.clean_up()
            assert all(each.coordinator.verify(one.checkpoint_id).ok for one in each.coordinator.list())
            assert each.coordinator.audit().in_order
