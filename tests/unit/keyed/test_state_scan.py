"""State without Spark: the same rows in every library's form, and no more read than is wanted."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dstl_dagster
from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.format.key_group_ranges import merged_ranges
from dstl_dagster.jobs import write_frame
from dstl_dagster.keyed.read.lookup import as_expression, key_groups_of_filters
from dstl_dagster.state import StateSchema, as_table, key_group_of
from dstl_dagster.state.key_group_hash import SPREAD
from dstl_dagster.storage import LocalObjectStore, MemoryObjectStore

TAILS = [f"N{number:03d}" for number in range(60)]


@pytest.fixture
def keyed_on_disk(keyed_on, tmp_path):
    job = keyed_on(LocalObjectStore(tmp_path / "store", durable=False))
    job.changes([{"tail": tail, "flights": number} for number, tail in enumerate(TAILS)])
    job.changes([{"tail": "N001", "flights": 100}], [{"tail": "N002", "flights": None}])
    return job


@pytest.fixture
def scan(keyed_on_disk):
    job = keyed_on_disk

    def read(at=None, **wanted):
        return dstl_dagster.read_state(job.store.uri, job.coordinator.job, job.OPERATOR, at, **wanted)

    return read


def rows(table) -> list[tuple]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


NOW = sorted([(tail, n) for n, tail in enumerate(TAILS) if n not in (1, 2)] + [("N001", 100)])


def test_all_forms_hold_the_same_rows(scan):
    """A table, a stream, pandas, the Arrow interface; each is read anew."""
    found = scan()
    assert (found.checkpoint_id, found.operator) == (2, "aircraft")
    assert rows(found.to_arrow()) == NOW
    assert rows(found.to_arrow_batch_reader().read_all()) == NOW
    assert sorted(found.to_pandas().itertuples(index=False, name=None)) == NOW
    assert rows(pa.table(found)) == NOW
    assert rows(pickle.loads(pickle.dumps(found)).to_arrow()) == NOW


def test_an_older_checkpoint_is_read_by_at(scan):
    """Before the second one's changes."""
    assert rows(scan(1).to_arrow()) == [(tail, number) for number, tail in enumerate(TAILS)]


def test_columns_and_filters_leave_out_what_is_not_wanted(scan):
    """A filter may use a column that is not read."""
    assert scan(columns=["flights", "tail"]).schema.names == ["flights", "tail"]
    found = scan(columns=["tail"], filters=[("flights", ">=", 58)])
    assert rows(found.to_arrow()) == [("N001",), ("N058",), ("N059",)]
    assert rows(scan(filters=pc.field("flights") == 7).to_arrow()) == [("N007", 7)]
    assert rows(scan(filters="flights = 7 AND tail = 'N007'").to_arrow()) == [("N007", 7)]
    assert scan(filters=[("flights", ">", 10**6)]).to_arrow().num_rows == 0


SEATS = StateSchema.of(
    pa.schema({"tail": pa.string(), "seat": pa.int64(), "n": pa.int64()}), ["tail", "seat"], 16
)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([("tail", "=", None), ("seat", "=", 1)], [(None, 1, 2)]),
        ([("tail", "==", None)], [(None, 1, 2), (None, None, 3)]),
        (
            [("tail", "in", [None, "x"]), ("seat", "in", [None, 1])],
            [(None, 1, 2), (None, None, 3), ("x", 1, 1)],
        ),
        ([("tail", "!=", None)], [("x", 1, 1)]),
        ([("tail", "in", [None])], [(None, 1, 2), (None, None, 3)]),
        ([("tail", "not in", [None])], [("x", 1, 1)]),
        ([("tail", "in", [])], []),
        ([("tail", "not in", ()), ("seat", "in", {None})], [(None, None, 3)]),
        ([[("tail", "=", "x")], [("seat", "=", None)]], [(None, None, 3), ("x", 1, 1)]),
    ],
)
def test_null_is_found_by_what_equals_it(filters, found, keyed_on):
    """In a key column as in any other, where whole keys narrow what is read and where they do not."""
    job, seats = keyed_on(MemoryObjectStore()), [("x", 1, 1), (None, 1, 2), (None, None, 3)]
    job.changes([dict(zip(SEATS.columns.names, each, strict=True)) for each in seats], schema=SEATS)
    read = job.coordinator.read_state(job.OPERATOR, filters=filters).to_arrow().to_pylist()
    assert sorted((tuple(row.values()) for row in read), key=str) == sorted(found, key=str)


def test_a_filter_on_whole_keys_reads_their_key_groups_only(keyed_on_disk, counting_store, keyed_on):
    """One key of 60, of 16 key groups, with a file each: one file is opened, not 16."""
    job = keyed_on(counting_store)
    job.changes([{"tail": tail, "flights": 1} for tail in TAILS], partitions=16)
    counting_store.read.clear()
    one = job.coordinator.read_state(job.OPERATOR, filters=[("tail", "=", "N007")])
    assert rows(one.to_arrow()) == [("N007", 1)]
    of_one = {name for name in counting_store.read if "/changelog/" in name}
    several = job.coordinator.read_state(
        job.OPERATOR, filters=[[("tail", "in", ["N007", "N008"])], [("tail", "=", "x")]]
    )
    assert rows(several.to_arrow()) == [("N007", 1), ("N008", 1)]
    assert len(of_one) == 1
    assert sum(each.number_of_key_groups for each in several.key_groups) <= 3


def test_only_files_with_the_key_group_are_opened(keyed_on_disk, counting_store, keyed_on):
    """Of the files of 30 checkpoints, a key in each, all listed with all 16 key groups."""
    job = keyed_on(counting_store)
    for tail in TAILS[:30]:
        job.changes([{"tail": tail, "flights": 1}], partitions=1)
    handles = job.coordinator.latest().manifest.operators[job.OPERATOR].handles
    assert [handle.key_group_range for handle in handles] == [KeyGroupRange.of(0, 15)] * 30
    counting_store.read.clear()
    one = job.coordinator.read_state(job.OPERATOR, filters=[("tail", "=", "N007")])
    assert rows(one.to_arrow()) == [("N007", 1)]
    groups = key_group_of(pa.table({"tail": TAILS[:30]}), job.SCHEMA).tolist()
    opened = {name for name in counting_store.read if "/changelog/" in name}
    assert len(opened) == groups.count(groups[TAILS.index("N007")])


def test_key_groups_are_read_alone_and_together_are_all(scan):
    """As ranges or as text."""
    parts = [scan(key_groups="0-4,7").to_arrow(), scan(key_groups=KeyGroupRange.of(8, 15)).to_arrow()]
    parts.append(scan(key_groups=[KeyGroupRange.of(5, 6)]).to_arrow())
    assert rows(pa.concat_tables(parts)) == NOW


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"columns": ["tails"]}, "columns names 'tails', but operator 'aircraft' has tail, flights"),
        ({"columns": "tail"}, "expected names in a list"),
        ({"columns": ["tail", "tail"]}, "twice"),
        ({"filters": [("tails", "=", "x")]}, "over the columns tail, flights"),
        ({"filters": [("flights", "=", "x")]}, "filters are an expression"),
        ({"filters": ["tail"]}, "filters are an expression"),
        ({"filters": "tails = 'x'"}, "names column 'tails', and there are tail, flights"),
        ({"filters": [("flights", "~", 1)]}, "filters are an expression"),
        ({"filters": 5}, "filters are an expression"),
        ({"filters": pc.field("nothing") == 1}, "filters are an expression"),
        ({"key_groups": "16"}, "has key groups 0 to 15, not 16 to 16"),
        ({"key_groups": [3]}, "KeyGroupRange.of"),
        ({"as_bytes": ["x"]}, "as_bytes names 'x'"),
        ({"at": "2001-01-05"}, None),
    ],
)
def test_a_mistake_is_named_before_anything_is_read(scan, wanted, says):
    """What, and what is there instead."""
    with pytest.raises((InvalidInputError, NotFoundError), match=says):
        scan(**wanted)


def test_an_operator_without_state_is_named_with_those_that_have_some(keyed_on_disk):
    """As everywhere."""
    with pytest.raises(NotFoundError, match="no state of operator 'aircrafts'; it has aircraft"):
        dstl_dagster.read_state(keyed_on_disk.store.uri, "orders", "aircrafts")


def test_text_that_is_not_utf8_is_refused_or_given_as_bytes(keyed):
    """No library gets a string that is none."""
    raw = pa.array([b"\xff"], pa.binary()).view(pa.string())
    schema = keyed.SCHEMA
    table = pa.table({"tail": raw, "flights": pa.array([1], pa.int64())})
    from dstl_dagster.keyed import write_rows

    attempt = keyed.coordinator.trigger()
    keyed.complete(
        attempt,
        write_rows(
            table, attempt, keyed.store, operator=keyed.OPERATOR, schema=schema, deleted=pa.array([False])
        ),
    )
    with pytest.raises(InvalidInputError, match="as_bytes"):
        keyed.coordinator.read_state(keyed.OPERATOR).to_arrow()
    found = keyed.coordinator.read_state(keyed.OPERATOR, as_bytes=["tail"])
    assert rows(found.to_arrow()) == [(b"\xff", 1)]
    assert found.schema.field("tail").type == pa.binary()


KEYS = StateSchema.of(
    pa.schema({"d": pa.date32(), "n": pa.decimal128(10, 2), "v": pa.int64()}), ["d", "n"], 128
)


def test_only_exact_values_of_every_key_column_narrow_the_key_groups():
    """A hash is of the stored value: what merely equals it, or leaves a key column open, narrows nothing.

    With partition columns the others may stay open.
    """
    day, number = date(2001, 1, 5), Decimal("1.5")
    key = pa.table({"d": [day], "n": pa.array([number], pa.decimal128(10, 2))})
    group = int(key_group_of(key, KEYS)[0])
    whole = [("d", "=", day), ("n", "==", number), ("v", ">", 3)]
    assert key_groups_of_filters(whole, KEYS) == merged_ranges([group])
    assert key_groups_of_filters([whole, whole], KEYS) == merged_ranges([group])
    for open_ended in (
        [("d", "=", day)],
        [whole, [("v", "=", 1)]],
        [("d", "=", day), ("n", "=", 1.5)],
        [("d", "=", day), ("n", "!=", number)],
        [("d", "=", day), ("n", "in", [Decimal(each) for each in range(1001)])],
        pc.field("v") == 1,
    ):
        assert key_groups_of_filters(open_ended, KEYS) is None
    by_day = replace(KEYS, partition_columns=("d",))
    many = pa.table({"d": [day] * 99, "n": pa.array([Decimal(each) for each in range(99)])})
    groups = set(key_group_of(many, by_day).tolist())
    assert len(groups) == SPREAD
    assert key_groups_of_filters([("d", "=", day), ("v", "=", 1)], by_day) == merged_ranges(groups)
    assert key_groups_of_filters([("n", "=", number)], by_day) is None
    (one,) = key_groups_of_filters(whole, by_day)
    assert {*one} == set(key_group_of(key, by_day).tolist())


def test_values_of_in_may_be_a_generator(scan):
    """They are looked at more than once."""
    for column, values in (("tail", ["N007", "N008"]), ("flights", [7, 8])):
        for filters in ([(column, "in", iter(values))], iter([[(column, "in", iter(values))]])):
            assert rows(scan(filters=filters).to_arrow()) == [("N007", 7), ("N008", 8)]


def test_a_time_without_a_zone_is_no_instant():
    """Which is said before anything is read."""
    columns = pa.schema({"at": pa.timestamp("us", "UTC")})
    with pytest.raises(InvalidInputError, match="Cannot compare timestamp with timezone"):
        as_expression([("at", "=", datetime(2020, 1, 1))], columns)


def test_pandas_gets_each_whole_number():
    """Beside a null PyArrow has floating point, which is another number beyond 2**53."""
    pytest.importorskip("pandas")
    coordinator = CheckpointCoordinator("job", MemoryObjectStore())
    long = 2**53 + 1
    rows = pa.table(
        {
            "k": [1, 2],
            "few": [7, None],
            "n": [long, None],
            "s": [{"n": -long}, {"n": None}],
            "l": [[long, None], []],
            "m": pa.array([[("x", long), ("y", None)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    batch = Batch.open(coordinator)
    batch.add(write_frame(rows, batch, operator="op", keys=["k"]))
    batch.complete()
    frame = coordinator.read_state("op").to_pandas().sort_values("k")
    found = as_table(frame.drop(columns=["k", "m"]), "what pandas has").to_pydict()
    assert found == rows.drop_columns(["k", "m"]).to_pydict() | {"few": [7.0, None]}
    assert list(frame["m"]) == [[("x", long), ("y", None)], None]
    assert str(frame["few"].dtype) == "float64"


def test_polars_reads_lazily_and_asks_for_less(scan):
    """The same rows as Arrow's, by columns, predicates and a limit, which stops the scan."""
    polars = pytest.importorskip("polars")
    frame = scan().to_polars()
    assert isinstance(frame, polars.LazyFrame)
    assert sorted(frame.collect().rows()) == NOW
    few = frame.filter(polars.col("flights") >= 58).select("tail").collect()
    assert sorted(few.rows()) == [("N001",), ("N058",), ("N059",)]
    assert len(frame.head(3).collect()) == 3
    assert len(frame.head(30).filter(polars.col("flights") >= 0).collect()) == 30
    assert len(frame.filter(polars.col("flights") >= 58).head(2).collect()) == 2
    assert frame.collect_schema() == {"tail": polars.String, "flights": polars.Int64}


def test_duckdb_queries_a_scan(scan):
    """As a relation, and by its name in a query."""
    duckdb = pytest.importorskip("duckdb")
    state = scan()
    assert state.to_duckdb().aggregate("count(*), sum(flights)").fetchall() == [(59, sum(n for _, n in NOW))]
    assert duckdb.sql("SELECT flights FROM state WHERE tail = 'N001'").fetchall() == [(100,)]


def test_a_relation_of_duckdb_has_its_rows_in_every_query(scan):
    """Of a stream, DuckDB 1.4 shows the first rows, and has what is left of them, or none, for the next."""
    pytest.importorskip("duckdb")
    relation = scan().to_duckdb()
    str(relation)
    assert [len(relation.limit(2).fetchall()), len(relation.fetchall())] == [2, 59]
    assert relation.join(relation.set_alias("again"), "tail").count("*").fetchall() == [(59,)]


def test_a_library_that_is_missing_is_named(scan, monkeypatch):
    """With the command that installs it."""
    import sys

    for name, form in (("polars", "to_polars"), ("duckdb", "to_duckdb"), ("pandas", "to_pandas")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InvalidInputError, match=f"pip install {name}") as caught:
            getattr(scan(), form)()
        assert caught.value.kind == "not_installed"
