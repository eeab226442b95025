"""Streaming queries, batches and runs on one job, mixed up at random, beside an oracle.

    python -m tests.property.queries [--runs N] [--first SEED]

One seed is one world: the right query (which may be handed over to another one on purpose), up to two wrong
ones, a second driver of the right one, and days that a batch or a run writes. They take turns at every
storage request; drivers, tasks and runs die or fail at any of them, and start again. Spark is played by hand:
its log of micro-batches, tasks with three tries, commit, and abort after a commit that raised.

Owns who does what, and Spark's part. What happens is in `queries_world`; what must be true afterwards in
`queries_oracle`: each micro-batch of the right query and each day is in one checkpoint, once and in order,
rows and files are theirs, the wrong queries left nothing and were told why, and where only wrong queries
disturb it, the right one never fails. Does not own crash points of the protocol (`testing.simulation`) or
Spark itself (`tests/spark`).
"""

from __future__ import annotations

import argparse
import logging
import pickle
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql import types as st

from dstl_dagster.checkpoint import Batch, Opening
from dstl_dagster.errors import DstlError, UnavailableError
from dstl_dagster.keyed import write_rows
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark.sink.commit import abort_sink, commit_sink
from dstl_dagster.spark.sink.messages import message_of
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.sink.plan import open_sink
from dstl_dagster.spark.sink.tasks import write_partition
from dstl_dagster.spark.streaming.micro_batches import MicroBatch
from dstl_dagster.state import StateSchema
from dstl_dagster.testing.fault_schedules import Fault, Request, SeededFaults, SimulatedCrash
from dstl_dagster.testing.fault_store import FaultStore
from tests.doubles.interleaving import Interleaving
from tests.property.queries_oracle import faults
from tests.property.queries_world import HEIR, JOB, RIGHT, World, line, rows_of

TRIES = 3
STARTS = 60
"""How often a driver that fails is started again; more means that it would for ever."""
FAULTS = (
    *(Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_LATE),
    *(Fault.ERROR_BEFORE, Fault.LOST_ANSWER, Fault.LATE_EFFECT),
)
ROWS = st.StructType([st.StructField("id", st.LongType()), st.StructField("value", st.StringType())])
LINES = st.StructType([st.StructField("line", st.StringType())])
STATE = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.string()}), ["id"], 128)
_SPARK = "dstl_dagster.spark"
_DOORS = tuple(f"{_SPARK}.{each}.open_store" for each in ("stores", "sink.messages"))


_here = threading.local()
"""The process that the current thread plays: `door` opens the job's store as that process."""


MEANT = "execution.state-recovery.ignore-unclaimed-state"
"""Several programs write to the one job, and each is meant."""


def _door(uri: str, options: object = None) -> FaultStore:
    del uri, options
    store: FaultStore = _here.store
    return store


class FaultsOfItsThread(SeededFaults):
    """Uploads run in threads of their own, whose order no seed replays: these neither fail nor take turns."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._thread = threading.get_ident()

    def decide(self, request: Request) -> Fault | None:
        return super().decide(request) if threading.get_ident() == self._thread else None

    def in_its_thread(self, turn: Callable[[], None]) -> Callable[[], None]:
        return lambda: turn() if threading.get_ident() == self._thread else None


class Actor:
    """One driver or run after another, each a process that may die at a request."""

    def __init__(self, world: World, name: str, number: int, rate: float) -> None:
        self.world = world
        self.name = name
        self.chance = random.Random(f"{world.seed} {number}")
        self.rate = rate
        self.told = world.told.setdefault(name, Counter())
        self.turn: Callable[[], None] = lambda: None

    def act(self) -> None:
        raise NotImplementedError

    def __call__(self, turn: Callable[[], None]) -> None:
        self.turn = turn
        self.act()

    @contextmanager
    def process(self) -> Iterator[FaultStore]:
        """What runs inside is one process. What it sent before it died may arrive late, at its end."""
        schedule = FaultsOfItsThread(self.chance.getrandbits(32), self.rate, FAULTS)
        store = FaultStore(self.world.store, schedule, before_request=schedule.in_its_thread(self.turn))
        outer = getattr(_here, "store", None)
        _here.store = store
        try:
            yield store
        finally:
            _here.store = outer
            store.deliver_late_effects()

    def started(self, life: Callable[[], bool], *, persistent: bool = True) -> None:
        """Run lives until one returns True. A failure is an error that its owner reads, or a death."""
        for _ in range(STARTS if persistent else self.chance.randint(1, 4)):
            try:
                with self.process():
                    if life():
                        return
            except SimulatedCrash:
                self.told["died"] += 1
            except DstlError as error:
                self.told[str(error.kind)] += 1
        assert not persistent, f"{self.name} does not come to an end: {dict(self.told)}"


class Query(Actor):
    """A streaming query: Spark's driver, its tasks, and its log of what was committed."""

    def __init__(
        self, world: World, name: str, number: int, rate: float, query: str, batches: int, **options: str
    ) -> None:
        super().__init__(world, name, number, rate)
        self.query, self.batches = query, batches
        what = {"operator": "op", "keys": "id"}
        if world.files:
            what = {"path": "out/{query}-{batch}.txt", "file_format": "text"}
        given = {"store": world.store.uri, "job": JOB, "dstl.checkpoint.commit-threads": "1"}
        # One name for all: it must not matter.
        given |= {"queryName": "daily", "clean_up_every": "2", MEANT: "true", **what, **options}
        given |= {"dstl.checkpoint.reader-grace": "0 s", "execution.checkpointing.num-retained": "3"}
        self.options = SinkOptions.of(given, streaming=True)
        self.schema = LINES if world.files else ROWS

    def act(self) -> None:
        self.started(self.live)

    def live(self) -> bool:
        """From the first micro-batch that Spark has not logged to the last."""
        log = self.world.spark_log
        while (batch := log.get(self.query, 0)) < self.batches:
            self.run(batch)
            log[self.query] = max(log.get(self.query, 0), batch + 1)
        return True

    def run(self, batch: int) -> None:
        """One micro-batch, as Spark does it."""
        plan = pickle.loads(pickle.dumps(open_sink(self.options, self.schema)))
        partitions = self.chance.randint(1, 3)
        messages = [self.task(plan, batch, each, partitions) for each in range(partitions)]
        try:
            if None in messages:
                raise UnavailableError("a task failed three times")
            commit_sink(self.options, self.schema, messages, batch)
        except DstlError:
            abort_sink(self.options, messages)
            raise

    def task(self, plan: Any, batch: int, partition: int, partitions: int) -> Any:
        """The message of the try that won; `None`: all failed. Others may have done all their work too."""
        micro_batch, won = MicroBatch(self.query, batch), None
        for _ in range(TRIES):
            with self.process():
                try:
                    rows = self.rows(batch, partition, partitions)
                    won = message_of(write_partition(plan, micro_batch, partition, rows), JobOptions())
                except (SimulatedCrash, DstlError):
                    continue
            if self.chance.random() < 0.8:
                break
        return won

    def rows(self, batch: int, partition: int, partitions: int) -> Iterator[pa.RecordBatch]:
        found = rows_of(self.query, batch)
        mine = [row for place, row in enumerate(found) if place % partitions == partition]
        if self.world.files:
            mine = found[len(found) * partition // partitions : len(found) * (partition + 1) // partitions]
            yield pa.record_batch([pa.array([line(row) for row in mine], pa.string())], ["line"])
            return
        yield pa.record_batch(
            [
                pa.array([key for key, _ in mine], pa.int64()),
                pa.array([text for _, text in mine], pa.string()),
            ],
            ["id", "value"],
        )


class RightQuery(Query):
    """It reaches its end, whatever happens; then another one may go on with its job, on purpose."""

    def act(self) -> None:
        try:
            self.reach_the_end()
        finally:
            self.world.over = True

    def reach_the_end(self) -> None:
        super().act()
        world = self.world
        if world.handover is not None:
            after = str(MicroBatch(RIGHT, world.handover - 1))
            rate = self.rate
            heir = Query(world, self.name, 90, rate, HEIR, world.batches, adopt_after=after)
            heir(self.turn)


class WrongQuery(Query):
    """Somebody starts it again and again. It may be that of which the job was taken away."""

    def act(self) -> None:
        while not (self.is_wrong() or self.world.over):
            self.turn()
        self.started(self.live, persistent=False)

    def is_wrong(self) -> bool:
        """On a job without a micro-batch no query is wrong, and the right one is until it hands over."""
        world = self.world
        return world.spark_log.get(HEIR if self.query == RIGHT else RIGHT, 0) > 0


class Day(Actor):
    """A day's batch: written by `save()`, or by the steps of a Dagster run, under its key."""

    def __init__(self, world: World, number: int, rate: float, day: int) -> None:
        super().__init__(world, f"day {day}", number, rate)
        self.day = day

    def act(self) -> None:
        by_steps = not self.world.files and self.chance.random() < 0.5
        self.started(self.run if by_steps else self.save)

    def save(self) -> bool:
        query = Query(self.world, self.name, 80 + self.day, self.rate, f"day {self.day}", 1)
        what = {"path": f"days/{self.day}.txt", "file_format": "text"}
        if not self.world.files:
            what = {"operator": "op", "keys": "id"}
        given = {
            "store": self.world.store.uri,
            "job": JOB,
            "idempotency_key": f"day {self.day}",
            MEANT: "true",
            **what,
        }
        options = SinkOptions.of({**given, "dstl.checkpoint.commit-threads": "1"}, streaming=False)
        plan = open_sink(options, query.schema)
        try:
            message = message_of(write_partition(plan, None, 0, query.rows(0, 0, 1)), JobOptions())
            commit_sink(options, query.schema, [message], None)
        except DstlError:
            abort_sink(options, [], None if plan is None else plan.attempt)
            raise
        return True

    def run(self) -> bool:
        key = f"day {self.day}"
        coordinator = self.world.coordinator(_here.store, owner=f"run {self.day}")
        try:
            batch = Batch.open(coordinator, Opening(key))
        except DstlError as error:
            if error.kind == "already_applied":
                return True
            raise
        with batch.aborted_on_error():
            rows = rows_of(key, 0)
            table = pa.table(
                {"id": [each for each, _ in rows], "value": [text for _, text in rows]}, STATE.columns
            )
            batch.add(
                write_rows(table, batch.attempt, coordinator.store, operator="op", schema=STATE, partitions=2)
            )
        batch.complete()
        return True


def play(world: World) -> None:
    """Run all actors to their end."""
    quiet = 0.0 if world.peaceful else world.rate
    split = world.batches if world.handover is None else world.handover
    actors: list[Actor] = [RightQuery(world, RIGHT, 0, quiet, RIGHT, split)]
    if world.second_driver:
        actors.append(Query(world, RIGHT, 1, quiet, RIGHT, split))
    for each in range(world.wrong):
        take_over = {"take_over": "true"} if random.Random(world.seed + each).random() < 0.3 else {}
        actors.append(
            WrongQuery(world, f"wrong {each}", 10 + each, world.rate, f"wrong {each}", 9, **take_over)
        )
    if world.handover is not None:
        actors.append(WrongQuery(world, "old", 20, world.rate, RIGHT, split + 3))
    actors += [Day(world, 30 + day, quiet, day) for day in range(world.days)]
    with ExitStack() as patched:
        # All processes are threads here, so they do share a store in memory.
        patched.enter_context(mock.patch("dstl_dagster.spark.stores.require_shared"))
        for each in _DOORS:
            patched.enter_context(mock.patch(each, _door))
        for raised in Interleaving(world.seed).run(actors):
            if raised is not None:
                raise raised


def outcome(seed: int) -> list[str]:
    """The faults of one world."""
    world = World.of(seed)
    try:
        play(world)
    except AssertionError as error:
        return [str(error)]
    return faults(world)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    logging.disable()  # of failures that are meant
    wrong = 0
    for seed in range(given.first, given.first + given.runs):
        for each in outcome(seed):
            wrong += 1
            print(f"seed {seed}: {each}", flush=True)
    print(f"{given.runs} worlds, {wrong} faults")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
