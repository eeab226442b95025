"""A stream that follows a job whose columns change: told in the right columns and types, or ended in time.

The oracle is plain Python: columns by an identity of its own, rows as dicts. It shares no code with ours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.jobs import clone_job, swap_job
from dstl_dagster.keyed import write_rows
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.spark.source.source import (
    ChangesReader,
    StateReader,
    changes_schema,
    state_at,
    states_between,
)
from dstl_dagster.spark.streaming.following import ChangesStreamReader, stream_reader
from dstl_dagster.state import ColumnChanges, StateSchema
from dstl_dagster.storage import LocalObjectStore

TYPES = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
}
SPARK_TYPES = {
    "INT": st.IntegerType(),
    "SMALLINT": st.ShortType(),
    "BIGINT": st.LongType(),
    "FLOAT": st.FloatType(),
    "DOUBLE": st.DoubleType(),
    "STRING": st.StringType(),
    "BINARY": st.BinaryType(),
}
WIDER = {"int": ("bigint", "double"), "float": ("double",)}
MARKS = "_change_type STRING, _checkpoint_id BIGINT"


def struct(ddl: str) -> st.StructType:
    """Spark parses it only with a session."""
    pairs = [each.split() for each in ddl.split(", ")]
    return st.StructType([st.StructField(name, SPARK_TYPES[kind]) for name, kind in pairs])


def value_of(kind: str, chance: random.Random) -> Any:
    """One that the narrower type does not hold, where there is one."""
    match kind:
        case "int":
            return chance.randint(-(2**31), 2**31 - 1)
        case "bigint":
            return chance.randint(-(2**62), 2**62)
        case "float":
            return chance.randint(-(2**20), 2**20) / 1024
        case "double":
            return chance.choice([0.1, 1e300, -1 / 3, chance.random()])
    return chance.choice(["", "x", "zwölf"])


@dataclass
class Column:
    """One column for its life: `number` is its identity, its name and kind may change."""

    number: int
    name: str
    kind: str


@dataclass
class Followed:
    """The job that is followed, and the oracle of each of its checkpoints."""

    coordinator: CheckpointCoordinator
    columns: list[Column] = field(default_factory=list)
    rows: dict[str, dict[int, Any]] = field(default_factory=dict)
    columns_at: dict[int, list[Column]] = field(default_factory=dict)
    rows_at: dict[int, dict[str, dict[int, Any]]] = field(default_factory=dict)
    made: int = 0

    def add(self, name: str, kind: str) -> Column:
        self.made += 1
        self.columns.append(Column(self.made, name, kind))
        return self.columns[-1]

    def write(
        self, changed: dict[str, dict[str, Any] | None], drop: tuple[str, ...] = (), **rename: str
    ) -> int:
        """One checkpoint: the columns as they are now, and these rows by name; None: deleted."""
        schema = pa.schema([(each.name, TYPES[each.kind]) for each in self.columns])
        key = self.columns[0].name
        batch = Batch.open(self.coordinator)
        before = batch.schema("op")
        state = StateSchema.of(schema, [key], 4)
        if before is not None:
            state = ColumnChanges.of(drop, rename).applied_to(before).evolved_to(state)
        table = pa.Table.from_pylist([{key: k, **(row or {})} for k, row in changed.items()], schema)
        deleted = pa.array([row is None for row in changed.values()], pa.bool_())
        store = self.coordinator.store
        batch.add(
            write_rows(
                table, batch.attempt, store, operator="op", schema=state, deleted=deleted, partitions=2
            )
        )
        checkpoint_id = batch.complete().checkpoint_id
        numbers = {each.name: each.number for each in self.columns}
        for k, row in changed.items():
            self.rows.pop(k, None)
            if row is not None:
                self.rows[k] = {numbers[name]: value for name, value in row.items()}
        self.rows_at[checkpoint_id] = {k: dict(row) for k, row in self.rows.items()}
        self.columns_at[checkpoint_id] = [Column(**vars(each)) for each in self.columns]
        return checkpoint_id

    @property
    def options(self) -> dict[str, str]:
        return {"store": self.coordinator.store.uri, "job": "job", "operator": "op", "table": "changes"}

    def loaded(self, asked: str = "", **options: str) -> ChangesStreamReader:
        """What `load()` and `start()` make; `asked`: by `.schema(...)`."""
        parsed = SourceOptions.of({**self.options, **options}, streaming=True)
        if asked:
            return stream_reader(parsed, struct(f"{asked}, {MARKS}"))
        states = states_between(parsed)
        return stream_reader(parsed, changes_schema(states), states)


@dataclass
class Follower:
    """A query and its checkpointLocation; what it was told, by the oracle's identity of columns."""

    source: Followed
    options: dict[str, str] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    mirror: dict[str, dict[int, Any]] = field(default_factory=dict)
    told: int = 0
    known: list[Column] = field(default_factory=list)

    def start(self) -> None:
        self.reader = self.source.loaded(**self.options)
        self.known = self.source.columns_at[max(self.source.columns_at)]
        self.log = self.log or [self.reader.initialOffset()]

    @property
    def at(self) -> int:
        return int(self.log[self.told]["checkpoint_id"])

    def planned(self) -> bool:
        if len(self.log) == self.told + 1:
            end = self.reader.latestOffset(self.log[-1], self.reader.getDefaultReadLimit())
            if end == self.log[-1]:
                return False
            self.log.append(end)
        return True

    def apply(self) -> None:
        partitions = self.reader.partitions(*self.log[self.told : self.told + 2])
        batches = [batch for each in partitions for batch in self.reader.read(each)]
        for batch in batches:
            for each in self.known:
                assert batch.schema.field(each.name).type == TYPES[each.kind]
        rows = [row for batch in batches for row in batch.to_pylist()]
        for row in sorted(rows, key=lambda row: row["_checkpoint_id"]):
            by_number = {each.number: row[each.name] for each in self.known}
            key = by_number[1]
            match row["_change_type"]:
                case "insert":
                    assert key not in self.mirror
                    self.mirror[key] = by_number
                case "update_after":
                    self.mirror[key] = by_number
                case "update_before":
                    assert self.seen(self.mirror[key]) == by_number
                case "delete":
                    assert self.seen(self.mirror.pop(key)) == by_number
        self.told += 1

    def seen(self, row: dict[int, Any]) -> dict[int, Any]:
        """The row in the columns that the query has."""
        return {each.number: row.get(each.number) for each in self.known}

    def check(self) -> None:
        expected = {key: self.seen(row) for key, row in self.source.rows_at.get(self.at, {}).items()}
        assert {key: self.seen(row) for key, row in self.mirror.items()} == expected

    def follow(self) -> list[int]:
        """To the end, or to the error."""
        ends = []
        while self.planned():
            self.apply()
            self.check()
            ends.append(self.at)
        return ends


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Followed]:
    """Columns `k STRING` (the key), `v INT` and `w FLOAT`; one row."""
    store = LocalObjectStore(tmp_path / "store", durable=False)
    made = Followed(CheckpointCoordinator("job", store, {"execution.checkpointing.num-retained": "99"}))
    for name, kind in (("k", "string"), ("v", "int"), ("w", "float")):
        made.add(name, kind)
    made.write({"a": {"k": "a", "v": 1, "w": 0.5}})
    yield made
    store.close()


def renamed(source: Followed, old: str, new: str) -> None:
    column = next(each for each in source.columns if each.name == old)
    column.name = new
    source.write({}, (), **{old: new})


@pytest.fixture
def follower(source: Followed) -> Follower:
    """At checkpoint 1."""
    made = Follower(source)
    made.start()
    assert made.follow() == [1]
    return made


@pytest.mark.parametrize(("old", "new"), [("v", "value"), ("k", "key")])
def test_a_renamed_column_ends_the_query_and_never_is_null(source, follower, old, new):
    """What came before it is told; started again, the query goes on by itself."""
    source.write({"b": {"k": "b", "v": 2, "w": 1.5}})
    renamed(source, old, new)
    key = source.columns[0].name
    source.write({"a": {key: "a", source.columns[1].name: 3, "w": 2.5}})
    with pytest.raises(
        InvalidInputError, match=rf"checkpoint 3 .*'{old}' is now '{new}'.* start the query again"
    ) as e:
        follower.follow()
    assert (e.value.kind, follower.at) == (ErrorKind.SCHEMA_CHANGE, 2)
    follower.start()
    assert follower.follow() == [3, 4]


def test_each_change_of_columns_is_said(source, follower):
    """A column that is added, widened or dropped, all in one checkpoint of several in a micro-batch."""
    follower.options = {"maxCheckpointsPerTrigger": "5"}
    follower.start()
    source.write({"b": {"k": "b", "v": 2, "w": 1.5}})
    source.add("x", "string")
    source.columns[1].kind = "bigint"
    del source.columns[2]
    source.write({"c": {"k": "c", "v": 2**40, "x": "new"}}, ("w",))
    with pytest.raises(
        InvalidInputError, match=r"'v' is now BIGINT and was INT, 'w' is gone \(.*drop it .*\), 'x' was added"
    ):
        follower.follow()
    assert follower.at == 2
    follower.start()
    assert follower.follow() == [3]


def test_a_micro_batch_that_was_logged_is_told_in_the_new_columns(source, follower):
    """Spark gives it up for nothing: the query dies with it, and finds other columns when it comes back."""
    source.write({"a": {"k": "a", "v": 2, "w": 1.5}})
    assert follower.planned()
    renamed(source, "v", "value")
    follower.start()
    follower.apply()
    follower.check()
    assert follower.follow() == [3]


def test_a_dataframe_of_before_the_change_cannot_go_on(source, follower):
    """It has the old columns, however often it is started, and says what to do."""
    renamed(source, "v", "value")
    after = Follower(source)
    after.start()
    after.follow()
    with pytest.raises(InvalidInputError, match="Load the DataFrame again"):
        follower.reader.partitions(follower.log[0], after.log[-1])


def test_a_restore_that_takes_a_wider_type_back(source):
    """A query of the wider type tells the rows that went; one of the narrower type cannot hold them."""
    follower = Follower(source, {"followRestores": "true"})
    follower.start()
    follower.follow()
    source.columns[1].kind = "bigint"
    source.write({"b": {"k": "b", "v": 2**40, "w": 1.5}})
    follower.start()
    follower.follow()
    source.coordinator.restore(1)
    source.rows, source.columns[1].kind = source.rows_at[1], "int"
    source.write({"c": {"k": "c", "v": 3, "w": 1.5}})
    narrower = Follower(source, follower.options, list(follower.log), dict(follower.mirror), follower.told)
    narrower.start()
    with pytest.raises(InvalidInputError, match=r"is BIGINT at checkpoint 2 and INT now.* new checkpointLoc"):
        narrower.follow()
    assert follower.follow() == [3]


def taken_back(source: Followed, back: str) -> None:
    """Checkpoint 1 again, by a restore or a swap, and a row more."""
    if back == "restore":
        source.coordinator.restore(1)
    else:
        clone_job(source.coordinator.store, "job", "clone", at=1, owner="test")
        swap_job(source.coordinator.store, "job", "clone", owner="test")
    source.rows = {key: dict(row) for key, row in source.rows_at[1].items()}
    source.columns = [Column(**vars(each)) for each in source.columns_at[1]]
    source.rows_at[3], source.columns_at[3] = source.rows_at[1], source.columns_at[1]
    source.write({"b": {"k": "b", "v": 2, "w": 1.5}})


def all_changes(source: Followed) -> list[dict[str, Any]]:
    """Of a batch, since the oldest checkpoint."""
    options = SourceOptions.of(source.options, streaming=False)
    states = states_between(options)
    reader = ChangesReader(options, states, changes_schema(states))
    return [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]


@pytest.mark.parametrize("back", ["restore", "swap"])
def test_a_column_that_was_dropped_and_is_back_is_refused(source, back):
    """Changes do not have its values in rows that stay. A query that begins then has them."""
    follower = Follower(source, {"followRestores": "true"})
    source.columns.pop()
    source.write({"z": {"k": "z", "v": 1}}, ("w",))
    follower.start()
    follower.follow()
    taken_back(source, back)
    follower.start()
    with pytest.raises(InvalidInputError, match=r"'w' of .* was dropped at checkpoint 2.* new checkpointLoc"):
        follower.follow()
    if back == "swap":
        with pytest.raises(InvalidInputError, match="'w' of operator 'op' was dropped at checkpoint 2"):
            states_between(SourceOptions.of({**source.options, "from_checkpoint": "2"}))
        rows = all_changes(source)
        assert {row["k"]: row["w"] for row in rows} == {"a": 0.5, "b": 1.5}
        assert {row["_change_type"] for row in rows} == {"insert"}
    begun = Follower(source)
    begun.start()
    begun.follow()
    assert [each.name for each in begun.known] == ["k", "v", "w"]


@pytest.mark.parametrize("back", ["restore", "swap"])
def test_a_column_that_was_added_and_is_not_there_any_more(source, back):
    """It ends the query once, which goes on without it."""
    follower = Follower(source, {"followRestores": "true"})
    source.add("x", "string")
    source.write({"a": {"k": "a", "v": 1, "w": 0.5, "x": "new"}})
    follower.start()
    follower.follow()
    taken_back(source, back)
    with pytest.raises(InvalidInputError, match="'x' is gone"):
        follower.follow()
    follower.start()
    follower.follow()
    source.write({"c": {"k": "c", "v": 3, "w": 1.5}})
    assert [row["k"] for row in all_changes(source)] == ["a", "b", "c"]
    assert follower.follow() == [5 if back == "swap" else 4]


def test_a_name_that_had_another_type_before_a_swap(source):
    """A new query, and a batch of all changes, begin after it."""
    source.add("x", "string")
    source.write({"a": {"k": "a", "v": 1, "w": 0.5, "x": "old"}})
    taken_back(source, "swap")
    source.add("x", "int")
    source.write({"c": {"k": "c", "v": 3, "w": 1.5, "x": 7}})
    assert {row["k"]: row["x"] for row in all_changes(source)} == {"a": None, "b": None, "c": 7}
    begun = Follower(source)
    begun.start()
    assert begun.follow() == [5]


ASKED = [
    ("k STRING, v INT, w DOUBLE", {"k": "a", "v": 1, "w": 0.5}, {"v": 3}),
    ("w FLOAT, v BIGINT, k STRING", {"w": 0.5, "v": 1, "k": "a"}, {"v": 3}),
    ("K STRING, V INT", {"K": "a", "V": 1}, {"V": 3}),
]


@pytest.mark.parametrize(("asked", "first", "later"), ASKED)
def test_a_schema_that_is_asked_for_is_met(source, asked, first, later):
    """In its order, spelling and types, which may be wider: by a state, by changes, by a stream."""
    source.write({"a": {"k": "a", "v": 3, "w": 0.5}})
    schema = struct(asked)
    options = SourceOptions.of({**source.options, "table": "state", "at": "1"})
    reader = StateReader(options, state_at(options, 1), schema)
    (row,) = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
    assert (row, list(row)) == (first, list(first))

    marked = struct(f"{asked}, {MARKS}")
    options = SourceOptions.of(source.options)
    changes = ChangesReader(options, states_between(options), marked)
    told = [row for each in changes.partitions() for batch in changes.read(each) for row in batch.to_pylist()]
    stream = source.loaded(asked, startingCheckpoint="1")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    parts = stream.partitions(start, end)
    streamed = [row for each in parts for batch in stream.read(each) for row in batch.to_pylist()]
    assert told == [{**first, "_change_type": "insert", "_checkpoint_id": 1}, *streamed]
    assert streamed == [
        {**first, "_change_type": "update_before", "_checkpoint_id": 2},
        {**first, **later, "_change_type": "update_after", "_checkpoint_id": 2},
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("k STRING, v SMALLINT", "column 'v' .* is INT, and the schema asks for SMALLINT"),
        ("k STRING, v FLOAT", "column 'v' .* is INT, and the schema asks for FLOAT"),
        ("k STRING, d FLOAT", "column 'd' .* is DOUBLE, and the schema asks for FLOAT"),
        ("k BINARY", "column 'k' .* is STRING, and the schema asks for BINARY"),
        ("k STRING, old INT", "asks for column 'old', and the state of operator 'op' has k, v, w, d, new"),
        ("k STRING, x INT", "asks for column 'x'"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_when_the_query_is_planned(source, asked, said):
    """Of a renamed column it would be null, of a narrower type another number."""
    source.add("d", "double")
    source.add("old", "int")
    source.write({"a": {"k": "a", "v": 1, "w": 0.5, "d": 1e300, "old": 4}})
    renamed(source, "old", "new")
    options = SourceOptions.of({**source.options, "table": "state"})
    for plan in (
        lambda: StateReader(options, state_at(options, None), struct(asked)),
        lambda: ChangesReader(
            SourceOptions.of(source.options),
            states_between(SourceOptions.of(source.options)),
            struct(f"{asked}, {MARKS}"),
        ),
        lambda: source.loaded(asked),
    ):
        with pytest.raises(InvalidInputError, match=said) as refused:
            plan()
        assert refused.value.kind == ErrorKind.SCHEMA_CHANGE
    with pytest.raises(InvalidInputError, match="'_checkpoint_id' of changes is BIGINT, and the"):
        stream_reader(
            SourceOptions.of(source.options),
            struct("k STRING, _change_type STRING, _checkpoint_id INT"),
        )


def test_a_query_with_a_schema_of_its_own_ends_only_for_its_columns(source):
    """A column that it did not ask for may come and go; one that it did may become as wide as asked for."""
    stream = source.loaded("k STRING, v BIGINT", startingCheckpoint="1")
    at = stream.initialOffset()
    source.add("x", "string")
    source.columns[1].kind = "bigint"
    del source.columns[2]
    source.write({"b": {"k": "b", "v": 2**40, "x": "new"}}, ("w",))
    end = stream.latestOffset(at, ReadAllAvailable())
    rows = [row for each in stream.partitions(at, end) for b in stream.read(each) for row in b.to_pylist()]
    assert [(row["k"], row["v"]) for row in rows] == [("b", 2**40)]
    renamed(source, "v", "value")
    with pytest.raises(InvalidInputError, match="'v' is now 'value'"):
        stream.latestOffset(end, ReadAllAvailable())
    with pytest.raises(InvalidInputError, match="asks for column 'v'"):
        source.loaded("k STRING, v BIGINT")


def test_a_schema_may_be_asked_for_before_there_is_a_job(tmp_path):
    """The first state that comes has to fit it."""
    store = LocalObjectStore(tmp_path / "store", durable=False)
    source = Followed(CheckpointCoordinator("job", store))
    good, bad = source.loaded("k STRING, v BIGINT"), source.loaded("k STRING, v SMALLINT")
    begin = good.initialOffset()
    assert good.latestOffset(begin, ReadAllAvailable()) == begin
    source.add("k", "string")
    source.add("v", "int")
    source.write({"a": {"k": "a", "v": 1}})
    end = good.latestOffset(begin, ReadAllAvailable())
    (part,) = good.partitions(begin, end)
    (batch,) = good.read(part)
    assert batch.to_pylist() == [{"k": "a", "v": 1, "_change_type": "insert", "_checkpoint_id": 1}]
    with pytest.raises(InvalidInputError, match=r"column 'v' .* is INT, and the schema asks for SMALLINT"):
        bad.latestOffset(begin, ReadAllAvailable())


@pytest.mark.parametrize(
    ("other", "error", "said"),
    [
        (
            {"operator": "b"},
            InvalidInputError,
            "is of operator 'b', not of 'op': follow 'b' again, or",
        ),
        ({"timeline": "0123456789abcdef"}, NotFoundError, "is of another job, or of one of that name"),
        ({"attempt": "another"}, NotFoundError, "is of another job, or of one of that name"),
        ({"checkpoint_id": 9}, NotFoundError, "is of another job, or of one of that name"),
    ],
)
def test_a_checkpoint_folder_of_another_stream_is_refused(follower, other, error, said):
    """By the operator, the timeline and the attempt in its offset, also where it was cleaned up."""
    start = {**follower.log[-1], **other}
    with pytest.raises(error, match=said):
        follower.reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(error, match=said):
        follower.reader.partitions(start, follower.log[-1])


def test_a_checkpoint_folder_of_another_source_is_refused(follower):
    """Such as of Kafka."""
    with pytest.raises(InvalidInputError, match="checkpointLocation is of another source"):
        follower.reader.latestOffset({"topic": {"0": 7}}, ReadAllAvailable())


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 60))]
)
def test_any_history_of_columns_is_followed(source: Followed, seed: int) -> None:
    """Columns added, renamed, widened, dropped, and names taken again, while a driver comes and goes."""
    chance = random.Random(seed)
    follower = Follower(source, {"maxCheckpointsPerTrigger": str(chance.randint(1, 3))})
    follower.start()
    ended = 0
    for _ in range(24):
        values = source.columns[1:]
        names = [name for name in ("v", "w", "x", "y") if name not in {each.name for each in source.columns}]
        drop: tuple[str, ...] = ()
        rename: dict[str, str] = {}
        match chance.randint(0, 9):
            case 0 if names:
                source.add(chance.choice(names), chance.choice([*TYPES]))
            case 1 if names:
                column = chance.choice(values or source.columns)
                rename = {column.name: chance.choice(names)}
                column.name = rename[column.name]
            case 2:
                key = source.columns[0]
                rename = {key.name: "id" if key.name == "k" else "k"}
                key.name = rename[key.name]
            case 3:
                for column in values:
                    column.kind = chance.choice(WIDER.get(column.kind, (column.kind,)))
            case 4 if values:
                column = chance.choice(values)
                source.columns.remove(column)
                drop = (column.name,)
            case 5:
                follower.start()
            case 6 if not source_changed(source, follower) and follower.planned():
                follower.start()  # died after it was logged
        changed = {
            key: None
            if chance.random() < 0.2
            else {
                each.name: key if each is source.columns[0] else value_of(each.kind, chance)
                for each in source.columns
            }
            for key in chance.sample("abcdef", chance.randint(0, 3))
        }
        source.write(changed, drop, **rename)
        if chance.random() < 0.5:
            ended += follow_on(follower)
    follow_on(follower)
    assert follower.at == max(source.rows_at)
    assert ended


def source_changed(source: Followed, follower: Follower) -> bool:
    """Whether a checkpoint that was not told yet has other columns than the query."""
    return any(known != follower.known for at, known in source.columns_at.items() if at > follower.at)


def follow_on(follower: Follower) -> int:
    """Follow to the end; how often the query had to be started again, each time for a change of columns."""
    ended = 0
    while True:
        try:
            follower.follow()
            return ended
        except InvalidInputError as error:
            if error.kind != ErrorKind.SCHEMA_CHANGE:
                raise
            ended += 1
            # A query's first micro-batch is the newest state; one that was logged may be of several.
            logged = int(follower.log[-1]["checkpoint_id"])
            last = max(logged, follower.at + 1) if follower.at else max(follower.source.columns_at)
            after = [known for at, known in follower.source.columns_at.items() if follower.at < at <= last]
            assert any(by_name(known) != by_name(follower.known) for known in after), "it ended for nothing"
            follower.start()


def by_name(columns: list[Column]) -> set[tuple[int, str, str]]:
    return {(each.number, each.name, each.kind) for each in columns}
