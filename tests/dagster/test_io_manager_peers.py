"""What the suites of dagster-delta's and dagster-iceberg's IO managers go through, asked of ours.

One test for each scenario, named after it. What is expected is what these tables show; ours have keys.
"""

# No postponed annotations: Dagster reads them as objects.

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dstl_dagster as dstl
from dstl_dagster.errors import InvalidInputError

pytestmark = [
    pytest.mark.dagster,
    # Dagster's own, for a resource in a resource.
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

DAYS = dg.DailyPartitionsDefinition("2022-01-01", end_date="2022-01-10")
HOURS = dg.HourlyPartitionsDefinition(datetime(2022, 1, 1), end_date=datetime(2022, 1, 2))
COLOURS = dg.StaticPartitionsDefinition(["red", "yellow", "blue"])
LETTERS = dg.StaticPartitionsDefinition(["a", "b", "c"])
DAYS_AND_COLOURS = dg.MultiPartitionsDefinition({"date": DAYS, "colour": COLOURS})
SEEN: dict[str, Any] = {}


class World:
    """A store, an instance, and the shortest way to materialize."""

    def __init__(self, store: Path, instance: dg.DagsterInstance) -> None:
        self.store, self.instance = store.as_uri(), instance

    @property
    def resources(self) -> dict[str, Any]:
        changelog = dstl.ChangelogStorageResource(uri=self.store)
        manager = dstl.KeyedStateIOManager(changelog=changelog)
        return {"io_manager": manager, "nothing": dg.mem_io_manager}

    def run(self, *assets: dg.AssetsDefinition, **more: Any) -> dg.ExecuteInProcessResult:
        return dg.materialize(assets, resources=self.resources, instance=self.instance, **more)

    def rows(self, job: str, operator: str, *columns: str) -> list[Any]:
        """All that the state has now, sorted; of one column its values."""
        table = dstl.read_state(self.store, job, operator, columns=columns or None).to_arrow()
        rows = [tuple(row.values()) for row in table.to_pylist()]
        return sorted((row[0] for row in rows) if len(columns) == 1 else rows)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    SEEN.clear()
    with dg.DagsterInstance.ephemeral() as instance:
        yield World(tmp_path, instance)


NOW: dict[str, Any] = {}


def partitioned(name: str, definition: Any, expression: Any, values: Callable[[Any], dict[str, Any]]) -> Any:
    """A table whose partitions have three rows with the value that the test sets, or as many as it says."""
    columns = list(expression.values()) if isinstance(expression, dict) else [expression]

    @dg.asset(
        name=name,
        partitions_def=definition,
        metadata={"partition_expr": expression, "dstl/keys": [*columns, "n"]},
    )
    def made(context: dg.AssetExecutionContext) -> pa.Table:
        count = NOW.get("count", 3)
        same = {name: [value] * count for name, value in values(context.partition_key).items()}
        return pa.table({**same, "n": list(range(count)), "v": [NOW["v"]] * count})

    return made


def loader(name: str, upstream: str, definition: Any = None, mapping: Any = None, **more: Any) -> Any:
    @dg.asset(
        name=name,
        partitions_def=definition,
        ins={"rows": dg.AssetIn(upstream, partition_mapping=mapping, **more)},
        io_manager_key="nothing",
    )
    def load(context: dg.AssetExecutionContext, rows: pa.Table) -> None:
        del context
        SEEN[name] = rows

    return load


def day_of(key: str) -> date:
    return datetime.strptime(key, "%Y-%m-%d").date()


# Operations and assets


def test_each_mapped_step_is_handed_its_own_value(world: World) -> None:
    """Of a dynamic output that goes with the run's events; so does what mapped steps return."""
    seen: list[str] = []

    @dg.op(out=dg.DynamicOut(str))
    def parts() -> Iterator[dg.DynamicOutput[str]]:
        for each in ("a", "b", "c"):
            yield dg.DynamicOutput(each, mapping_key=each)

    @dg.op
    def seen_twice(part: str) -> str:
        seen.append(part)
        return part * 2

    @dg.op
    def collected(parts: list[str]) -> None:
        seen.extend(parts)

    @dg.job(resource_defs=world.resources)
    def mapped() -> None:
        collected(parts().map(seen_twice).collect())

    assert mapped.execute_in_process(instance=world.instance).success
    assert seen == ["a", "b", "c", "aa", "bb", "cc"]


@pytest.mark.parametrize("value", [None, True, 7, 1.5, "", "a", [], [1, None], {}, {"a": [{"b": 1}]}])
def test_what_an_op_returns_is_handed_on(world: World, value: Any) -> None:
    """As it is, to another op of the graph."""
    seen: list[Any] = []

    @dg.op
    def made() -> Any:
        return value

    @dg.op
    def taken(value: Any) -> None:
        seen.append(value)

    @dg.job(resource_defs=world.resources)
    def both() -> None:
        taken(made())

    assert both.execute_in_process(instance=world.instance).success
    assert [(type(each), each) for each in seen] == [(type(value), value)]


@pytest.mark.parametrize("value", [b"a", (1, 2), {1: "a"}, {"a": (1,)}, [float("nan")], pa.table({})])
def test_what_json_changes_is_not_handed_on(world: World, value: Any) -> None:
    """The op below would get a list for a tuple, and text for a number."""

    @dg.op
    def made() -> Any:
        return value

    @dg.job(resource_defs=world.resources)
    def alone() -> None:
        made()

    with pytest.raises(InvalidInputError, match=f"plain JSON does not hold this {type(value).__name__} as"):
        alone.execute_in_process(instance=world.instance)


def test_outputs_of_ops_share_no_state(world: World) -> None:
    """Whatever is alike in the names of graphs, ops and mapping keys: each input has its own rows."""
    seen: list[tuple[str, list[str]]] = []

    def table(name: str) -> pa.Table:
        return pa.table({"a": [name]})

    keyed = dg.Out(metadata={"dstl/keys": ["a"]})

    @dg.op(out=keyed)
    def b() -> pa.Table:
        return table("g.b")

    @dg.op(out=keyed)
    def g_b() -> pa.Table:
        return table("g_b")

    @dg.op(out=keyed)
    def mapped(part: str) -> pa.Table:
        return table(part)

    @dg.op(out=dg.DynamicOut(str))
    def parts() -> Iterator[dg.DynamicOutput[str]]:
        for each in ("b", "_b", "b_", "b__b"):
            yield dg.DynamicOutput(each, mapping_key=each)

    @dg.op
    def see(part: str, rows: pa.Table) -> None:
        seen.append((part, rows.column("a").to_pylist()))

    @dg.op
    def see_both(of_graph: pa.Table, of_op: pa.Table) -> None:
        seen.extend((("g.b", of_graph.column("a").to_pylist()), ("g_b", of_op.column("a").to_pylist())))

    @dg.graph
    def g() -> Any:
        return b()

    @dg.job(resource_defs=world.resources)
    def alike() -> None:
        see_both(g(), g_b())
        parts().map(lambda part: see(part, mapped(part)))

    assert alike.execute_in_process(instance=world.instance).success
    assert all(rows == [name] for name, rows in seen)
    assert len(seen) == 6


def test_ops_of_a_graph(world: World) -> None:
    """Run twice; the job and the name are the op's."""

    @dg.op(out=dg.Out(metadata={"dstl/keys": ["a"]}))
    def a_df() -> pa.Table:
        return pa.table({"a": [1, 2, 3], "b": [4, 5, 6]})

    @dg.op(out=dg.Out(metadata={"dstl/keys": ["a"]}))
    def add_one(df: pa.Table) -> pl.DataFrame:
        return pl.DataFrame(df).with_columns(pl.col("a") + 1)

    @dg.graph
    def both() -> None:
        add_one(a_df())

    for _ in range(2):
        job = both.to_job(resource_defs=world.resources)
        assert job.execute_in_process(instance=world.instance).success
        assert world.rows("both.a_df.result", "a_df", "a") == [1, 2, 3]
        assert world.rows("both.add_one.result", "add_one", "a") == [2, 3, 4]


@dg.asset(key_prefix=["my_schema"], metadata={"dstl/keys": ["a"]})
def b_df() -> pa.Table:
    return pa.table({"a": [1, 2, 3], "b": [4, 5, 6]})


def test_assets_with_a_prefix(world: World) -> None:
    """Run twice, in one run with the asset below."""

    @dg.asset(key_prefix=["my_schema"], metadata={"dstl/keys": ["a"]})
    def b_plus_one(b_df: pd.DataFrame) -> pd.DataFrame:
        return b_df.assign(a=b_df["a"] + 1)

    for _ in range(2):
        assert world.run(b_df, b_plus_one).success
        assert world.rows("my_schema.b_df", "b_df", "a") == [1, 2, 3]
        assert world.rows("my_schema.b_plus_one", "b_plus_one", "a") == [2, 3, 4]


ARROW_ALONE = """
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("pandas", "polars", "duckdb", "pyspark"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())

import dagster as dg
import pyarrow as pa

import dstl_dagster as dstl

rows = pa.table({"a": [1, 2, 3]})


@dg.asset(metadata={"dstl/keys": ["a"]})
def above() -> pa.Table:
    return rows


@dg.asset(metadata={"dstl/keys": ["a"]})
def below(above: pa.Table) -> pa.Table:
    assert above.sort_by("a").equals(rows), above
    return above


for _ in range(2):
    manager = dstl.KeyedStateIOManager(changelog=dstl.ChangelogStorageResource(uri=sys.argv[1]))
    assert dg.materialize([above, below], resources={"io_manager": manager}).success
"""


def test_without_the_other_libraries(world: World) -> None:
    """Where only Arrow is installed, tables of Arrow are written and loaded, twice."""
    command = [sys.executable, "-W", "ignore", "-c", ARROW_ALONE, world.store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert world.rows("below", "below", "a") == [1, 2, 3]


def test_lazy_frames(world: World) -> None:
    """Polars' are collected, and loaded as such by their hint."""

    @dg.asset(metadata={"dstl/keys": ["a"]})
    def above() -> pl.LazyFrame:
        return pl.LazyFrame({"a": [1, 2, 3], "b": [4, 5, 6]})

    @dg.asset(metadata={"dstl/keys": ["a"]})
    def below(above: pl.LazyFrame) -> pl.LazyFrame:
        return above.with_columns(a=pl.col("a") + 1)

    for _ in range(2):
        assert world.run(above, below).success
        assert world.rows("above", "above", "a") == [1, 2, 3]
        assert world.rows("below", "below", "a") == [2, 3, 4]


def test_columns_of_an_input(world: World) -> None:
    """Those that `AssetIn` names; an unknown one is named."""
    key = dg.AssetKey(["my_schema", "b_df"])

    def loading(columns: list[str]) -> dg.AssetsDefinition:
        @dg.asset(
            ins={"rows": dg.AssetIn(key, metadata={"columns": columns})}, metadata={"dstl/keys": columns}
        )
        def of_columns(rows: pa.Table) -> pa.Table:
            SEEN["rows"] = rows
            return rows

        return of_columns

    assert world.run(b_df, loading(["a"])).success
    assert SEEN["rows"].column_names == ["a"]
    with pytest.raises(dg.Failure, match=r"input from asset my_schema/b_df: columns names 'z', but operator"):
        world.run(b_df, loading(["z"]))


def test_a_type_that_is_no_rows(world: World) -> None:
    """Refused in one sentence, as an output and as an input."""

    @dg.asset(metadata={"dstl/keys": ["a"]})
    def number() -> int:
        return 1

    with pytest.raises(dg.Failure, match=r"state of asset number: .* int is no rows"):
        world.run(number)

    of_pandas_on_spark = type("DataFrame", (), {"__module__": "pyspark.pandas.frame"})
    for hint, named in ((int, "builtins.int"), (of_pandas_on_spark, "pyspark.pandas.frame.DataFrame")):

        def below(rows: Any) -> Any:
            return rows

        below.__annotations__["rows"] = hint
        upstream = dg.AssetIn(["my_schema", "b_df"])
        reader = dg.asset(below, ins={"rows": upstream}, metadata={"dstl/keys": ["a"]})
        with pytest.raises(dg.Failure, match=f"an input of keyed state cannot be a {named}:"):
            world.run(b_df, reader)


def test_modes(world: World) -> None:
    """Merged by key, or overwritten as a whole; a run may say so by the output's metadata."""

    @dg.asset(metadata={"dstl/keys": ["a"]})
    def rows(context: dg.AssetExecutionContext) -> pa.Table:
        if "mode" in NOW:
            context.add_output_metadata({"mode": NOW["mode"]})
        return pa.table({"a": NOW["a"]})

    @dg.asset(metadata={"dstl/keys": ["a"], "mode": "overwrite"})
    def whole() -> pa.Table:
        return pa.table({"a": NOW["a"]})

    NOW.clear()
    for a, merged in (([1, 2], [1, 2]), ([2, 3], [1, 2, 3])):
        NOW["a"] = a
        assert world.run(rows, whole).success
        assert (world.rows("rows", "rows"), world.rows("whole", "whole")) == (
            [(n,) for n in merged],
            [(n,) for n in a],
        )
    NOW.update(a=[7], mode="overwrite")
    assert world.run(rows).success
    assert world.rows("rows", "rows") == [(7,)]
    NOW["mode"] = "append"
    with pytest.raises(dg.Failure, match="asset rows: mode 'append' is none of merge, overwrite"):
        world.run(rows)


# Partitions: each is run, run again with other rows, and with fewer


def replaced(world: World, asset: Any, first: Any, second: Any) -> None:
    """Another partition stays as it is, whichever was run last."""
    name = asset.key.path[-1]
    NOW.clear()
    for partition, value in ((first, "1"), (second, "2"), (first, "3")):
        NOW["v"] = value
        assert world.run(asset, partition_key=partition).success
    assert world.rows(name, name, "v") == ["2"] * 3 + ["3"] * 3
    NOW.update(v="4", count=1)
    assert world.run(asset, partition_key=second).success
    assert world.rows(name, name, "v") == ["3"] * 3 + ["4"]
    NOW["count"] = 0
    assert world.run(asset, partition_key=first).success
    assert world.rows(name, name, "v") == ["4"]
    made = world.instance.fetch_materializations(asset.key, limit=9).records
    assert [str(each.partition_key) for each in reversed(made)] == [
        *map(str, (first, second, first, second, first))
    ]


def test_daily_partitions(world: World) -> None:
    replaced(
        world,
        partitioned("daily", DAYS, "time", lambda key: {"time": day_of(key)}),
        "2022-01-02",
        "2022-01-01",
    )


def test_hourly_partitions(world: World) -> None:
    """Begun at the second hour."""
    values = lambda key: {"hour": datetime.strptime(key, "%Y-%m-%d-%H:%M")}  # noqa: E731
    replaced(world, partitioned("hourly", HOURS, "hour", values), "2022-01-01-01:00", "2022-01-01-03:00")


def test_static_partitions(world: World) -> None:
    replaced(world, partitioned("static", COLOURS, "colour", lambda key: {"colour": key}), "red", "blue")


def test_dynamic_partitions(world: World) -> None:
    fruits = dg.DynamicPartitionsDefinition(name="fruits")
    world.instance.add_dynamic_partitions("fruits", ["apple", "orange"])
    replaced(world, partitioned("dynamic", fruits, "fruit", lambda key: {"fruit": key}), "apple", "orange")


def of_both(key: Any) -> dict[str, Any]:
    found = key.keys_by_dimension
    return {"day": day_of(found["date"]), "colour": found["colour"]}


MULTI = partitioned("multi", DAYS_AND_COLOURS, {"date": "day", "colour": "colour"}, of_both)


def both(day: str, colour: str) -> dg.MultiPartitionKey:
    return dg.MultiPartitionKey({"date": day, "colour": colour})


def test_multi_dimensional_partitions(world: World) -> None:
    replaced(world, MULTI, both("2022-01-01", "red"), both("2022-01-01", "blue"))


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize(
    ("definition", "expression", "partitions"),
    [
        (DAYS, "time", {"2022-01-01": {"time": date(2022, 1, 1)}, "2022-01-03": {"time": date(2022, 1, 3)}}),
        (
            HOURS,
            "time",
            {
                "2022-01-01-01:00": {"time": datetime(2022, 1, 1, 1)},
                "2022-01-01-03:00": {"time": datetime(2022, 1, 1, 3)},
            },
        ),
        (
            DAYS_AND_COLOURS,
            {"date": "day", "colour": "colour"},
            {
                f"{colour}|2022-01-0{day}": {"day": date(2022, 1, day), "colour": colour}
                for day in (1, 2)
                for colour in ("red", "blue")
            },
        ),
    ],
    ids=["daily", "hourly", "multi"],
)
def test_tables_of_any_library(
    library: Any, definition: Any, expression: Any, partitions: Any, world: World
) -> None:
    """One row a partition, of a frame of this library; a second run of one replaces its row alone."""

    @dg.asset(
        name="frames",
        partitions_def=definition,
        metadata={"partition_expr": expression, "dstl/keys": list(next(iter(partitions.values())))},
    )
    def frames() -> Any:
        return library([{**partitions[NOW["key"]], "v": NOW["v"]}])

    NOW.clear()
    for value, key in enumerate([*partitions, next(iter(partitions))]):
        NOW.update(v=value, key=key)
        assert world.run(frames, partition_key=key).success
    assert world.rows("frames", "frames", "v") == list(range(1, len(partitions) + 1))


def test_an_input_of_the_same_partition(world: World) -> None:
    """It has the rows of that partition alone."""
    daily = partitioned("daily", DAYS, "time", lambda key: {"time": day_of(key)})
    below = loader("below", "daily", DAYS)
    resources = {**world.resources, "nothing": dg.mem_io_manager}
    for number, day in enumerate(("2022-01-01", "2022-01-03")):
        NOW.clear()
        NOW["v"] = str(number)
        assert dg.materialize(
            [daily, below], partition_key=day, instance=world.instance, resources=resources
        ).success
        assert SEEN["below"].column("v").to_pylist() == [str(number)] * 3


def test_inputs_by_mapping(world: World) -> None:
    """Several dimensions to one, to none, and to others."""
    NOW.clear()
    for day, colour in (("2022-01-01", "red"), ("2022-01-02", "red"), ("2022-01-01", "blue")):
        NOW["v"] = f"{day} {colour}"
        assert world.run(MULTI, partition_key=both(day, colour)).success
    by_day = loader("by_day", "multi", DAYS, dg.MultiToSingleDimensionPartitionMapping("date"))
    by_colour = loader("by_colour", "multi", COLOURS, dg.MultiToSingleDimensionPartitionMapping("colour"))
    whole = loader("whole", "multi")
    mapped = loader(
        "mapped",
        "multi",
        dg.MultiPartitionsDefinition({"date": DAYS, "letter": LETTERS}),
        dg.MultiPartitionMapping(
            {
                "colour": dg.DimensionPartitionMapping(
                    "letter", dg.StaticPartitionMapping({"blue": "a", "red": "b", "yellow": "c"})
                ),
                "date": dg.DimensionPartitionMapping(
                    "date", dg.SpecificPartitionsPartitionMapping(["2022-01-01"])
                ),
            }
        ),
    )
    resources = {**world.resources, "nothing": dg.mem_io_manager}
    for asset, partition in (
        (by_day, "2022-01-01"),
        (by_colour, "red"),
        (whole, None),
        (mapped, dg.MultiPartitionKey({"date": "2022-01-05", "letter": "a"})),
    ):
        assert dg.materialize(
            [MULTI, asset],
            selection=[asset],
            partition_key=partition,
            instance=world.instance,
            resources=resources,
        ).success
    found = {name: sorted(set(rows.column("v").to_pylist())) for name, rows in SEEN.items()}
    assert found == {
        "by_day": ["2022-01-01 blue", "2022-01-01 red"],
        "by_colour": ["2022-01-01 red", "2022-01-02 red"],
        "whole": ["2022-01-01 blue", "2022-01-01 red", "2022-01-02 red"],
        "mapped": ["2022-01-01 blue"],
    }


@pytest.mark.parametrize(
    ("written", "read", "says"),
    [
        ({"partition_expr": "date"}, {}, "where column date says .* add this partition_expr to its metadata"),
        ({}, {"partition_expr": "date"}, "as the state of all its partitions, .* take partition_expr out"),
    ],
)
def test_what_another_code_location_says_of_an_asset(
    world: World, written: dict[str, str], read: dict[str, str], says: str
) -> None:
    """Of which rows a partition has must be what it is written by."""

    @dg.asset(name="days", partitions_def=DAYS, metadata={"dstl/keys": ["date"], **written})
    def days(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"date": [day_of(context.partition_key)]})

    for day in ("2022-01-01", "2022-01-02"):
        assert world.run(days, partition_key=day).success
    below = loader("below", "days", DAYS)
    for metadata in (read, written):
        above = dg.AssetSpec("days", partitions_def=DAYS, metadata=metadata)
        found = world.run(
            above, below, partition_key="2022-01-01", selection=["below"], raise_on_error=metadata is written
        )
        assert found.success == (metadata is written)
        if metadata is read:
            (event,) = (event for event in found.all_events if event.is_step_failure)
            assert re.search(says, event.step_failure_data.user_failure_data.description)  # type: ignore[union-attr, arg-type]
    assert SEEN["below"].num_rows == 1


def test_a_range_in_one_run(world: World) -> None:
    """Its days are replaced in one checkpoint, others stay, and each of them has a materialization."""

    @dg.asset(
        partitions_def=DAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        metadata={"partition_expr": "time", "dstl/keys": ["time"]},
    )
    def ranged(context: dg.AssetExecutionContext) -> pa.Table:
        days = [day_of(key) for key in context.partition_keys if key not in NOW.get("leave_out", ())]
        return pa.table({"time": pa.array(days, pa.date32()), "v": [NOW["v"]] * len(days)})

    def run(start: str, end: str) -> dg.ExecuteInProcessResult:
        tags = {"dagster/asset_partition_range_start": start, "dagster/asset_partition_range_end": end}
        return world.run(ranged, tags=tags)

    NOW.clear()
    NOW["v"] = 1
    assert run("2022-01-01", "2022-01-05").success
    NOW.update(v=2, leave_out=["2022-01-03"])
    result = run("2022-01-02", "2022-01-04")
    assert len(result.asset_materializations_for_node("ranged")) == 3
    assert world.rows("ranged", "ranged") == [
        (date(2022, 1, 1), 1), (date(2022, 1, 2), 2), (date(2022, 1, 4), 2), (date(2022, 1, 5), 1),
    ]  # fmt: skip


def test_an_asset_that_loads_its_own_previous_partition(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    """`None` the first time, then the rows of the day before; and no warning that its version is new."""

    @dg.asset(
        name="own",
        partitions_def=DAYS,
        metadata={"partition_expr": "time", "dstl/keys": ["time"]},
        ins={
            "own": dg.AssetIn(partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1))
        },
    )
    def own_before(context: dg.AssetExecutionContext, own: pa.Table | None) -> pa.Table:
        count = 0 if own is None else sum(own.column("count").to_pylist())
        SEEN[context.partition_key] = None if own is None else own.num_rows
        return pa.table({"time": [day_of(context.partition_key)], "count": [count + 1]})

    for day in ("2022-01-01", "2022-01-02", "2022-01-01", "2022-01-05"):
        assert world.run(own_before, partition_key=day).success
    assert SEEN == {"2022-01-01": 0, "2022-01-02": 1, "2022-01-05": 0}
    assert [count for _, count in world.rows("own", "own")] == [1, 2, 1]
    assert "WARNING" not in capfd.readouterr().err
