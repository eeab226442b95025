"""What a micro-batch in `foreachBatch` asks of a bucket, and whom it believes. Starts no JVM."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, InvalidInputError, UnavailableError
from dstl_dagster.spark.streaming import foreach_batch, serving
from dstl_dagster.spark.streaming.foreach_batch import checkpointed_batches
from dstl_dagster.spark.streaming.micro_batches import POSITION
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.timeline import Timeline
from tests.unit.checkpoint.rounds import Rounds, RoundsStore
from tests.unit.conftest import Job


def rows_of(query: str) -> Any:
    """A micro-batch's rows, as far as the function looks at them: which query they are of."""
    context = SimpleNamespace(getLocalProperty=lambda _: query)
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> RoundsStore:
    return RoundsStore(MemoryObjectStore(), Rounds(monkeypatch))


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(foreach_batch, "_drain", found.append)
    return found


class Driver:
    """One process that runs the query: each has a function of its own."""

    def __init__(
        self, store: RoundsStore, monkeypatch: pytest.MonkeyPatch, query: str = "q", **options: Any
    ) -> None:
        monkeypatch.setattr(foreach_batch, "open_shared_store", lambda *_: store)
        self.store = store
        self.job = Job(store)
        self.query = query
        self.applied: list[int] = []
        self.failing = False
        self.run = checkpointed_batches(self._update, store="gs://b", job="orders", **options)

    def _update(self, batch: Any, rows: Any) -> None:
        batch.add(self.job.changes(batch.attempt))
        if self.failing:
            raise RuntimeError("after it was written")
        self.applied.append(batch.attempt.checkpoint_id)

    def batch(self, number: int) -> tuple[int, int]:
        """The round trips and requests of a micro-batch."""
        return self.store.measured(lambda: self.run(rows_of(self.query), number))[:2]

    @property
    def last(self) -> Any:
        latest = CheckpointCoordinator("orders", self.store).latest()
        assert latest is not None
        return latest.positions[POSITION]["batch_id"], latest.checkpoint_id


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        # One for the changes. Steps 1, 5 and 6: 1 each; step 4: 2 (the file beside the tail; the manifest).
        # Once there is a snapshot, steps 1 and 5 ask the archive for the key before their record.
        # Beside each record, and beside the manifest, the first slot is read: 4.
        (1, (1 + 5, 1 + 6 + 4)),
        (5, (1 + 5, 1 + 6 + 4)),
        (25, (1 + 7, 1 + 8 + 4)),
    ],
)
def test_the_next_micro_batch_takes_at_most_seven(
    store: RoundsStore, monkeypatch: pytest.MonkeyPatch, before: int, expected: tuple[int, int]
) -> None:
    """Steps 1, 4, 5 and 6 together, whatever the past; the first one of a process reads the tail."""
    options = {"dstl.state.materialize.enabled": "false"}
    driver = Driver(store, monkeypatch, clean_up_every=0, options=options)
    for number in range(before):
        driver.batch(number)
    assert driver.batch(before) == expected
    assert driver.last == (before, before + 1)


def test_a_driver_that_others_went_past_reads_the_tail(
    store: RoundsStore, monkeypatch: pytest.MonkeyPatch, drained: list[Any]
) -> None:
    """What it saw last is stale: the slot is taken. A batch that is applied is not applied again."""
    zombie = Driver(store, monkeypatch)
    zombie.batch(0)
    other = Driver(store, monkeypatch)
    other.batch(1)
    zombie.batch(1)
    assert (zombie.applied, len(drained), zombie.last) == ([1], 1, (1, 2))
    zombie.batch(2)
    assert (zombie.applied, zombie.last) == ([1, 3], (2, 3))
    with pytest.raises(ConflictError, match="expects batch 3"):
        zombie.batch(9)


def test_a_batch_before_the_last_is_refused(store: RoundsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is behind, and one whose checkpoint folder is an older copy, has other rows for it."""
    behind, driver = Driver(store, monkeypatch), Driver(store, monkeypatch)
    behind.batch(0)
    for number in (1, 2):
        driver.batch(number)
    for each in (behind, Driver(store, monkeypatch)):
        with pytest.raises(ConflictError, match="the job expects batch 3: its checkpointLocation is"):
            each.batch(1)
    assert driver.last == (2, 3)


def test_a_driver_that_is_told_of_another_query_stops(
    store: RoundsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it saw was its own batch; by now the job is at another query's."""
    zombie = Driver(store, monkeypatch)
    zombie.batch(0)
    Driver(store, monkeypatch, query="another", adopt_after="q:0").batch(0)
    with pytest.raises(ConflictError, match="the job is at batch 0 of query another"):
        zombie.batch(1)
    assert zombie.applied == [1]


def test_an_open_attempt_of_another_owner_refuses_it(
    store: RoundsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened since this driver looked."""
    driver = Driver(store, monkeypatch)
    driver.batch(0)
    rival = Job(store).coordinator("rival")
    theirs = rival.trigger()
    with pytest.raises(ConflictError, match="attempt"):
        driver.batch(1)
    rival.abort(theirs)
    driver.batch(1)
    assert driver.last == (1, 2)


def test_after_an_error_it_begins_as_a_new_process(
    store: RoundsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what failed nothing is kept: the repeat reads the tail, and aborts nothing of others."""
    driver = Driver(store, monkeypatch, clean_up_every=0)
    driver.batch(0)
    driver.failing = True
    with pytest.raises(RuntimeError):
        driver.batch(1)
    driver.failing = False
    repeated, again = driver.batch(1), driver.batch(2)
    assert repeated > again
    assert (driver.applied, driver.last) == ([1, 2, 3], (2, 3))


def test_a_repeated_micro_batch_is_not_applied_again(
    store: RoundsStore, monkeypatch: pytest.MonkeyPatch, drained: list[Any]
) -> None:
    driver = Driver(store, monkeypatch)
    driver.batch(0)
    driver.batch(0)
    assert (driver.applied, len(drained)) == ([1], 1)


def test_a_variant_that_believes_what_it_saw_is_caught(
    store: RoundsStore, monkeypatch: pytest.MonkeyPatch, drained: list[Any]
) -> None:
    """The test of the stale driver can fail: without the tail, it never gets on."""
    zombie = Driver(store, monkeypatch)
    zombie.batch(0)
    Driver(store, monkeypatch).batch(1)
    monkeypatch.setattr(Timeline, "tail_to_append", lambda timeline: timeline.seen())
    with pytest.raises(UnavailableError):
        zombie.batch(1)


def test_spark_connect_wants_the_querys_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends the function to its server, which tells it no query: without a name none is started."""
    refusal = r'query_name="a name"\), and start the query with queryName\("a name"\)'
    sent = checkpointed_batches(print, store="file:///nowhere", job="job")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=refusal):
        sent(SimpleNamespace(sparkSession=SimpleNamespace()), 0)  # type: ignore[arg-type]
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as a session of Connect sets it
    with pytest.raises(InvalidInputError, match=refusal):
        checkpointed_batches(print, store="file:///nowhere", job="job")  # type: ignore[arg-type]


def session_of(**queries: str) -> Any:
    """A session of Connect in which these queries are active, by their names."""
    active = [SimpleNamespace(name=name, id=query) for name, query in queries.items()]
    return SimpleNamespace(streams=SimpleNamespace(active=active))


def test_by_connect_a_query_is_found_by_its_name(store: RoundsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the session that started it, of which the session of the rows is a clone; once a process."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    started = session_of(other="p", orders="q")
    monkeypatch.setattr(serving.SparkSession, "getActiveSession", lambda: started)
    driver = Driver(store, monkeypatch, query_name="orders")
    run: Any = driver.run
    driver.run = replace(run, query=pickle.loads(pickle.dumps(run.query)))
    rows = SimpleNamespace(sparkSession=session_of())
    driver.run(rows, 0)  # type: ignore[arg-type]
    started.streams.active = []
    driver.run(rows, 1)  # type: ignore[arg-type]
    latest = CheckpointCoordinator("orders", store).latest()
    assert latest is not None
    assert latest.positions[POSITION] == {"query_id": "q", "batch_id": 1}


def test_by_connect_a_query_without_that_name_is_refused(
    store: RoundsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written: of which query the micro-batch is, nobody knows."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    driver = Driver(store, monkeypatch, query_name="orders")
    rows = SimpleNamespace(sparkSession=session_of(other="p"))
    with pytest.raises(InvalidInputError, match=r"no query named 'orders' .* queryName\('orders'\)"):
        driver.run(rows, 0)  # type: ignore[arg-type]
    assert CheckpointCoordinator("orders", store).latest() is None


def test_the_function_travels_before_its_first_call() -> None:
    """As Connect sends it: with all of its arguments, and no connection."""
    sent = checkpointed_batches(
        print,  # type: ignore[arg-type]
        store="file:///somewhere",
        job="job",
        options={"gs.retry.max-attempt": "3"},
        adopt_after="q:7",
        clean_up_every=3,
    )
    arrived = cloudpickle.loads(cloudpickle.dumps(sent))
    kept = arrived.kept
    assert (kept._store, kept._job, kept._options) == (sent.kept._store, "job", sent.kept._options)  # type: ignore[attr-defined]
    assert (arrived.adopt_after, arrived.clean_up_every, arrived.take_over) == ("q:7", 3, False)
