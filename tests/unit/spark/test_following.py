"""A stream that follows a job, without Spark: its offsets, its micro-batches, and crashes between them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamReader

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.jobs import clone_job, swap_job
from dstl_dagster.keyed import KeyedState, write_rows
from dstl_dagster.settings import CheckpointOptions, StateTtlConfig
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.spark.source.source import changes_schema, state_at, states_between
from dstl_dagster.spark.streaming.following import ChangesStreamReader, stream_reader
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import open_store

COLUMNS = pa.schema({"name": pa.string(), "value": pa.int32(), "seen": pa.timestamp("us", "UTC")})
SCHEMA = StateSchema.of(COLUMNS, ["name"], 4)
MINUTE = 60_000_000
ALL: Any = object()
"""A limit of Spark's that is not ours, such as `ReadAllAvailable`, which PySpark 4.1 does not have."""
SAYS_WHERE = hasattr(DataSourceStreamReader, "getDefaultReadLimit")  # since PySpark 4.2


class Source:
    """The job that is followed."""

    def __init__(self, folder: Path, spark_says_where: bool) -> None:
        self.spark_says_where = spark_says_where
        self.store = open_store(folder.as_uri())
        options = CheckpointOptions(num_retained=3, reader_grace=timedelta(0), commit_threads=1)
        self.coordinator = CheckpointCoordinator("job", self.store, options, owner="test")
        self.options = {"store": folder.as_uri(), "job": "job", "operator": "op", "table": "changes"}

    def write(self, rows: dict[str, int | None], ttl: StateTtlConfig | None = None) -> int:
        """One checkpoint: a value for each key (None: deleted), which is also its time in minutes."""
        batch = Batch.open(self.coordinator)
        values = list(rows.values())
        table = pa.table(
            {
                "name": pa.array(rows, pa.string()),
                "value": pa.array(values, pa.int32()),
                "seen": pa.array(
                    [None if n is None else n * MINUTE for n in values], COLUMNS.field("seen").type
                ),
            }
        )
        deleted = pa.array([n is None for n in values], pa.bool_())
        state_ttl = batch.ttl_to_write("op", SCHEMA, ttl)
        batch.add(
            write_rows(
                table,
                batch.attempt,
                self.store,
                operator="op",
                schema=SCHEMA,
                deleted=deleted,
                partitions=2,
                ttl=state_ttl,
            )
        )
        batch.merge_due_runs()
        return batch.complete().checkpoint_id

    def swap(self, rows: dict[str, int | None], clone: str) -> None:
        """The job goes on from the state of a clone that went on by itself."""
        live = self.coordinator
        clone_job(self.store, "job", clone, owner="test")
        self.coordinator = CheckpointCoordinator(clone, self.store, live.options, owner="test")
        self.write(rows)
        self.coordinator = live
        swap_job(self.store, "job", clone, owner="test")

    def rows(self, checkpoint_id: int) -> dict[str, int]:
        state = KeyedState.of(self.store, self.coordinator.get(checkpoint_id).manifest, "op")
        assert state is not None
        return {row["name"]: row["value"] for table in state.tables() for row in table.to_pylist()}

    def reader(self, **options: str) -> ChangesStreamReader:
        parsed = SourceOptions.of({**self.options, **options}, streaming=True)
        states = states_between(parsed)
        return stream_reader(parsed, changes_schema(states), states)


@pytest.fixture(params=[False, True] if SAYS_WHERE else [False], ids="says_where={}".format)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    """Followed from PySpark 4.1 and, if it is a later one that is installed, from 4.2."""
    found = Source(tmp_path, request.param)
    yield found
    found.store.close()


class Follower:
    """What Spark does for a query: its log of offsets, and micro-batches that are told at least once."""

    def __init__(self, source: Source, **options: str) -> None:
        self.source, self.options = source, options
        self.log: list[dict[str, Any]] = []
        self.mirror: dict[str, int] = {}
        self.told = 0
        self.start_again()

    def start_again(self) -> None:
        """A new driver, with the query's own checkpointLocation."""
        self.reader = self.source.reader(**self.options)
        if not self.source.spark_says_where and len(self.log) > 1:
            assert self.reader.partitions(self.log[-1], self.log[-1]) == []
        self.log = self.log or [self.reader.initialOffset()]

    def planned(self) -> bool:
        """Log the end of the next micro-batch; False: there is nothing to tell."""
        if len(self.log) == self.told + 1:
            start_and_limit = (
                (self.log[-1], self.reader.getDefaultReadLimit()) if self.source.spark_says_where else ()
            )
            end = self.reader.latestOffset(*start_and_limit)
            if end == self.log[-1]:
                return False
            self.log.append(end)
        return True

    def batch(self) -> list[dict[str, Any]]:
        """The rows of the micro-batch that is logged and not applied yet."""
        found = self.reader.partitions(*self.log[self.told : self.told + 2])
        task = self.source.reader(**self.options)
        return [row for each in found for batch in task.read(each) for row in batch.to_pylist()]

    def apply(self) -> None:
        """Exactly once: the sink knows the micro-batch's number."""
        rows = self.batch()
        before = {
            row["name"]: row["value"] for row in rows if row["_change_type"] in ("delete", "update_before")
        }
        assert {name: self.mirror.get(name) for name in before} == before or len(self._ids(rows)) > 1
        for row in sorted(rows, key=lambda row: row["_checkpoint_id"]):
            match row["_change_type"]:
                case "insert" | "update_after":
                    self.mirror[row["name"]] = row["value"]
                case "delete":
                    del self.mirror[row["name"]]
        self.told += 1

    @staticmethod
    def _ids(rows: list[dict[str, Any]]) -> set[int]:
        return {row["_checkpoint_id"] for row in rows}

    @property
    def at(self) -> int:
        return int(self.log[self.told]["checkpoint_id"])

    def follow(self) -> list[int]:
        """All that there is; the checkpoints at which the micro-batches ended."""
        ends = []
        while self.planned():
            self.apply()
            assert self.mirror == self.source.rows(self.at)
            ends.append(self.at)
        return ends


def test_a_micro_batch_for_each_checkpoint(source: Source) -> None:
    """First the whole state at the newest; then each checkpoint's changes, also of rows that expire."""
    source.write({"a": 1}, StateTtlConfig.event_time("seen", "10 min"))
    source.write({"b": 2})
    follower = Follower(source)
    assert follower.follow() == [2]
    source.write({"a": 3, "c": 4})
    source.write({"b": None, "d": 13})
    assert follower.follow() == [3, 4]
    assert follower.mirror == {"c": 4, "d": 13}
    assert follower.follow() == []
    assert follower.reader.reportLatestOffset() == follower.log[-1]


def test_an_idle_look_reads_the_tail_alone(source: Source) -> None:
    """However long the job is: the query looks at it again and again."""
    for n in range(12):
        source.write({"a": n})
    follower = Follower(source)
    follower.follow()
    before = follower.reader._job.cost
    assert not follower.planned()
    spent = follower.reader._job.cost - before
    assert (spent.class_a, spent.class_b, spent.free) == (0, 1, 1)


def test_several_checkpoints_in_a_micro_batch(source: Source) -> None:
    """Each row tells its checkpoint; `Trigger.Once` takes all, and `availableNow` none that came later."""
    first = source.write({"a": 1})
    follower = Follower(source, maxCheckpointsPerTrigger="2", startingCheckpoint=str(first))
    follower.mirror = source.rows(first)
    for n in range(2, 7):
        source.write({"a": n, f"k{n}": n})
    assert follower.planned()
    assert [(row["name"], row["_change_type"], row["_checkpoint_id"]) for row in follower.batch()].count(
        ("a", "update_after", 3)
    ) == 1
    assert follower.follow() == [3, 5, 6]
    assert follower.reader.latestOffset(follower.log[0], ALL)["checkpoint_id"] == 6
    follower.reader.prepareForTriggerAvailableNow()
    source.write({"a": 7})
    assert follower.follow() == []


def test_a_stream_may_begin_at_the_latest_or_with_everything(source: Source) -> None:
    """By a word, as of other sources."""
    source.write({"a": 1})
    latest, earliest = (Follower(source, startingCheckpoint=word) for word in ("latest", "earliest"))
    assert [each.follow() for each in (latest, earliest)] == [[], [1]]
    source.write({"a": 2})
    assert latest.planned()
    assert [(row["_change_type"], row["_checkpoint_id"]) for row in latest.batch()] == [
        ("update_before", 2),
        ("update_after", 2),
    ]


def test_a_crash_tells_the_same_again(source: Source) -> None:
    """A micro-batch that was logged leads to the same state in a new driver, whatever the job did since."""
    source.write({"a": 1, "b": 1})
    follower = Follower(source)
    follower.follow()
    source.write({"a": 2})
    assert follower.planned()
    told = follower.batch()
    source.write({"a": 3})
    follower.start_again()
    assert follower.batch() == told
    assert follower.follow() == [2, 3]


def test_a_restore_is_told_only_on_purpose(source: Source) -> None:
    """The stream is at a checkpoint that no longer counts: one sentence, and an option that goes on."""
    source.write({"a": 1})
    source.write({"a": 2, "b": 2})
    follower = Follower(source)
    follower.follow()
    source.coordinator.restore(1)
    with pytest.raises(ConflictError, match="followRestores=true") as told:
        follower.planned()
    assert told.value.kind == ErrorKind.ABANDONED
    follower.options = {"followRestores": "true"}
    follower.start_again()
    assert follower.follow() == []
    source.write({"c": 3})
    assert follower.follow() == [3]
    assert follower.mirror == {"a": 1, "c": 3}


def test_a_micro_batch_that_a_restore_abandoned_is_finished_first(source: Source) -> None:
    """It was logged: Spark repeats it, and what the restore changed comes with the next."""
    source.write({"a": 1})
    follower = Follower(source, followRestores="true")
    follower.follow()
    for n in (2, 3):
        source.write({"a": n, f"k{n}": n})
    follower.options["maxCheckpointsPerTrigger"] = "2"
    follower.start_again()
    assert follower.planned()
    source.coordinator.restore(1)
    follower.start_again()
    follower.apply()
    assert follower.mirror == {"a": 3, "k2": 2, "k3": 3}
    source.write({"b": 4})
    assert follower.follow() == [4]
    assert follower.mirror == {"a": 1, "b": 4}


def test_what_was_cleaned_up_cannot_be_told(source: Source) -> None:
    """The error says what to do; it is not taken for an empty stream."""
    source.write({"a": 1})
    follower = Follower(source)
    follower.follow()
    for n in range(2, 7):
        source.write({"a": n})
    source.coordinator.clean_up()
    with pytest.raises(NotFoundError, match=r"was cleaned up .* new checkpointLocation.* retention") as told:
        follower.planned()
    assert told.value.kind == ErrorKind.CHECKPOINT_GONE
    other = dict(follower.log[-1], checkpoint_id=6)
    with pytest.raises(NotFoundError, match="of another job, or of one of that name"):
        follower.reader.latestOffset(other, ALL)


@pytest.mark.parametrize("seed", range(4))
def test_any_history_is_followed(source: Source, seed: int) -> None:
    """Writes, deletes, restores, clean-ups and swaps beside a driver that dies at any moment: the mirror
    agrees.
    """
    chance = random.Random(seed)
    source.write({"a": 0})
    most = str(chance.randint(1, 3))
    follower = Follower(source, followRestores="true", maxCheckpointsPerTrigger=most)
    for n in range(1, 18):
        match chance.randint(0, 8):
            case 8:
                source.swap({"d": n, "e": None}, f"beside-{n}")
            case 0:
                kept = [each.checkpoint_id for each in source.coordinator.list()]
                source.coordinator.restore(chance.choice(kept))
            case 1 if follower.planned():
                follower.start_again()  # died after it was logged
            case 2 if follower.planned():
                follower.batch()
                follower.start_again()  # died while it was told
            case 3:
                follower.follow()
                source.coordinator.clean_up()
            case _:
                keys = chance.sample("abcdef", chance.randint(0, 4))
                source.write({key: chance.choice([n, n, None]) for key in keys})
    source.write({"z": 1})
    follower.follow()
    assert follower.at == source.coordinator.latest().checkpoint_id  # type: ignore[union-attr]


def test_checkpoints_without_changes_are_passed_over(source: Source) -> None:
    """A state without rows, the same rows again, no rows, a key that is not there; then one that is."""
    source.write({})
    follower = Follower(source)
    assert follower.follow() == [1]
    for rows in ({"a": 1}, {"a": 1}, {}, {"gone": None}, {"b": 1}):
        source.write(rows)
        follower.start_again()
        assert follower.follow() == [source.coordinator.latest().checkpoint_id]  # type: ignore[union-attr]
    assert follower.mirror == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"startingCheckpoint": "99"},
            "has no checkpoint '99': neither an id, of which it has those up to 2",
        ),
        ({"startingCheckpoint": "-1"}, "has no checkpoint '-1'"),
        ({"startingCheckpoint": "0"}, "option startingCheckpoint: checkpoint ids are numbers from 1 on"),
        ({"startingCheckpoint": "soon"}, "has no checkpoint 'soon'"),
        ({"startingCheckpoint": "2020-01-01T00:00Z"}, "had no checkpoint yet at 2020-01-01"),
        ({"startingCheckpoint": "2999-01-01T00:00Z"}, "2999-01-01T00:00Z is in the future"),
        ({"from_checkpoint": "99"}, "has no checkpoint '99'"),
        ({"to_checkpoint": "99"}, "has no checkpoint '99'"),
        ({"to_checkpoint": "2020-01-01T00:00Z"}, "had no checkpoint yet at 2020-01-01"),
        ({"from_checkpoint": "2", "to_checkpoint": "1"}, "from_checkpoint 2 is later than to_checkpoint 1"),
        ({"table": "state", "versionAsOf": "99"}, "has no checkpoint '99'"),
        ({"table": "state", "timestampAsOf": "2020-01-01T00:00Z"}, "had no checkpoint yet at 2020-01-01"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_named(options: dict[str, str], said: str, tmp_path: Path) -> None:
    """Of a stream, a range of changes, a state: never an empty answer."""
    source = Source(tmp_path, spark_says_where=True)
    source.write({"a": 1})
    source.write({"a": 2})
    with pytest.raises((NotFoundError, InvalidInputError), match=said):
        asked(source, options)
    source.store.close()


def asked(source: Source, options: dict[str, str]) -> None:
    """As Spark asks: a query, a read of changes or of a state."""
    if "startingCheckpoint" in options:
        Follower(source, **options).planned()
    parsed = SourceOptions.of({**source.options, **options}, streaming=False)
    if parsed.table == "state":
        state_at(parsed, parsed.checkpoint)
    states_between(parsed)


def test_a_state_with_a_column_of_the_feed_is_read_as_state_alone(tmp_path: Path) -> None:
    """In any case of letters, which Spark may not tell apart."""
    schema = StateSchema.of(pa.schema({"name": pa.string(), "_CHANGE_TYPE": pa.string()}), ["name"], 4)
    source = Source(tmp_path, spark_says_where=True)
    batch = Batch.open(source.coordinator)
    rows = pa.table({"name": ["a"], "_CHANGE_TYPE": ["x"]}, schema.columns)
    batch.add(write_rows(rows, batch.attempt, source.store, operator="op", schema=schema, partitions=1))
    batch.complete()
    with pytest.raises(
        InvalidInputError, match="'_CHANGE_TYPE', a name that the changes table reserves: rename"
    ):
        source.reader()
    source.store.close()


@pytest.mark.parametrize(
    ("options", "streaming", "said"),
    [
        ({"table": "state"}, True, 'set option table="changes"'),
        ({"from_checkpoint": "1"}, True, "option from_checkpoint is of spark.read; .* startingCheckpoint"),
        ({"startingCheckpoint": "1"}, False, "is of spark.readStream; .* from_checkpoint"),
        ({"maxCheckpointsPerTrigger": "0"}, True, "maxcheckpointspertrigger"),
        ({"followRestores": "perhaps"}, True, "followRestores"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], streaming: bool, said: str) -> None:
    """Before anything is read."""
    known = {"store": "file:///x", "job": "job", "operator": "op", "table": "changes"}
    with pytest.raises(InvalidInputError, match=said):
        SourceOptions.of({**known, **options}, streaming=streaming)
