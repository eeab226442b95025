"""Ordinary assets on keyed state: what they return is a checkpoint, what they take is the state at theirs."""

# No postponed annotations: Dagster reads them as objects.

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.dagster,
    # Dagster's own, for a resource in a resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")
ORDERS = {"2024-01-01": {"ada": 5, "bob": 1}, "2024-01-02": {"ada": 9}, "2024-01-03": {"cyd": 2}}
SEEN: list[Any] = []

SELF = {
    "latest": dg.AssetIn(
        dagster_type=dg.Nothing,
        partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1),
    )
}


@dg.asset(partitions_def=DAYS, metadata={"dstl/keys": ["customer"]})
def latest(context: dg.AssetExecutionContext) -> pa.Table:
    rows = ORDERS[context.partition_key]
    return pa.table({"customer": list(rows), "total": list(rows.values())})


def _downstream(hint: Any) -> dg.AssetsDefinition:
    def look(context: dg.AssetExecutionContext, latest: Any) -> None:
        SEEN.append((context.partition_key, latest))

    look.__annotations__ = {"context": dg.AssetExecutionContext, "latest": hint, "return": None}
    return dg.asset(name="look", partitions_def=DAYS, io_manager_key="none")(look)


class _Nothing(dg.IOManager):
    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """`look` returns nothing."""

    def load_input(self, context: dg.InputContext) -> Any:
        """Nobody asks."""


def _run(
    assets: list[dg.AssetsDefinition], store: str, instance: dg.DagsterInstance, **more: Any
) -> dg.ExecuteInProcessResult:
    changelog = dstl.ChangelogStorageResource(uri=store)
    resources = {"io_manager": dstl.KeyedStateIOManager(changelog=changelog), "none": _Nothing()}
    defs = dg.Definitions(assets=assets, jobs=[dg.define_asset_job("run", assets)], resources=resources)
    return defs.resolve_job_def("run").execute_in_process(instance=instance, **more)


@pytest.fixture
def instance() -> Any:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def test_each_day_is_a_checkpoint_and_is_read_as_it_was(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """A day's downstream sees the state at that day, also after later days; a day runs again for nothing."""
    store = tmp_path.as_uri()
    for day in ("2024-01-01", "2024-01-02", "2024-01-02"):
        assert _run([latest], store, instance, partition_key=day).success
    coordinator = CheckpointCoordinator("latest", open_store(store))
    assert [each.positions for each in coordinator.list()] == [
        {"asset:latest": "2024-01-02T00:00:00+00:00"},
        {"asset:latest": "2024-01-03T00:00:00+00:00"},
    ]
    SEEN.clear()
    for day in ("2024-01-01", "2024-01-02"):
        look = _downstream(pd.DataFrame)
        defs = dg.Definitions(
            assets=[latest, look],
            jobs=[dg.define_asset_job("only", [look])],
            resources={
                "io_manager": dstl.KeyedStateIOManager(changelog=dstl.ChangelogStorageResource(uri=store)),
                "none": _Nothing(),
            },
        )
        assert defs.resolve_job_def("only").execute_in_process(instance=instance, partition_key=day).success
    first, second = ({row.customer: row.total for row in frame.itertuples()} for _, frame in SEEN)
    assert (first, second) == ({"ada": 5, "bob": 1}, {"ada": 9, "bob": 1})


FORMS = [pa.Table, Any, dstl.StateScan, pd.DataFrame, pl.DataFrame, pa.RecordBatchReader]
FORMS += [duckdb.DuckDBPyRelation]


@pytest.mark.parametrize("hint", FORMS, ids=[*map(str, FORMS)])
def test_an_input_has_the_form_of_its_hint(hint: Any, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """In the run that wrote it."""
    SEEN.clear()
    assert _run([latest, _downstream(hint)], tmp_path.as_uri(), instance, partition_key="2024-01-01").success
    ((_, found),) = SEEN
    table = found.to_arrow() if isinstance(found, dstl.StateScan) else pa.table(found)
    assert sorted(table.to_pylist(), key=str) == [
        {"customer": "ada", "total": 5},
        {"customer": "bob", "total": 1},
    ]


def test_text_of_polars_is_stored_and_read(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Which Arrow has as views; a lazy frame is collected, and a day without rows leaves the types alone."""

    @dg.asset(name="latest", partitions_def=DAYS, metadata={"dstl/keys": ["customer"]})
    def names(context: dg.AssetExecutionContext) -> pl.LazyFrame:
        rows = {} if context.partition_key == "2024-01-02" else ORDERS[context.partition_key]
        return pl.LazyFrame({"customer": list(rows), "note": [f"{name}, of {rows[name]}" for name in rows]})

    SEEN.clear()
    for day in ORDERS:
        both = [names, _downstream(pl.DataFrame)]
        assert _run(both, tmp_path.as_uri(), instance, partition_key=day).success
    first, second, third = (dict(frame.sort("customer").rows()) for _, frame in SEEN)
    assert first == second == {"ada": "ada, of 5", "bob": "bob, of 1"}
    assert third == {**first, "cyd": "cyd, of 2"}


def test_a_day_out_of_order_is_refused(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """As by a batch: the state would miss a day."""
    with pytest.raises(dg.Failure, match="partition 2024-01-02 is out of order"):
        _run([latest], tmp_path.as_uri(), instance, partition_key="2024-01-02")


@pytest.mark.parametrize(
    ("metadata", "result", "message"),
    [
        ({}, pa.table({"a": [1]}), "name the key columns of its state"),
        ({"dstl/keys": "a"}, pa.table({"a": [1]}), "expected names in a list, such as ['a']"),
        ({"dstl/key": ["a"]}, pa.table({"a": [1]}), "metadata dstl/key means nothing; known are dstl/keys"),
        ({"dstl/keys": ["a"], "dstl/schema": "a INT"}, pa.table({"a": [1]}), "belong together"),
        (
            {"dstl/keys": ["a"]},
            [1],
            "operator 'wrong': list is no rows: expected a DataFrame of Spark",
        ),
        (
            {"dstl/keys": ["a"], "dstl/update": {"b": "old.b + new.c"}, "dstl/schema": "a INT, b INT"},
            pa.table({"a": [1]}),
            "operator 'wrong': update of column 'b' by 'old.b + new.c': there is no column new.c",
        ),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    metadata: dict[str, Any], result: Any, message: str, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """And leaves no attempt open."""

    @dg.asset(metadata=metadata)
    def wrong() -> Any:
        return result

    with pytest.raises(Exception, match=re.escape(message)):
        _run([wrong], tmp_path.as_uri(), instance)
    assert CheckpointCoordinator("wrong", open_store(tmp_path.as_uri())).timeline.tail().open_attempt is None


@pytest.mark.parametrize("library", [pa.Table.from_pylist, pl.DataFrame, pd.DataFrame])
def test_rows_of_any_library_are_merged(library: Any, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """By the rule in the asset's metadata, without Spark."""

    @dg.asset(
        name="latest",
        partitions_def=DAYS,
        metadata={
            "dstl/keys": ["customer"],
            "dstl/schema": "customer STRING, total BIGINT",
            "dstl/update": {"total": "coalesce(old.total, 0) + new.amount"},
            "dstl/delete": "old.total > 8",
        },
    )
    def totals(context: dg.AssetExecutionContext) -> Any:
        rows = ORDERS[context.partition_key].items()
        return library([{"customer": name, "amount": amount} for name, amount in rows])

    SEEN.clear()
    for day in ORDERS:
        both = [totals, _downstream(pa.Table)]
        assert _run(both, tmp_path.as_uri(), instance, partition_key=day).success
    found = [{row["customer"]: row["total"] for row in table.to_pylist()} for _, table in SEEN]
    assert found == [{"ada": 5, "bob": 1}, {"ada": 14, "bob": 1}, {"ada": 14, "bob": 1, "cyd": 2}]


@pytest.mark.spark
def test_a_spark_dataframe_is_merged_and_loaded(
    spark: "SparkSession", tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """By the rule in the asset's metadata; downstream gets a DataFrame of the session that runs."""
    from pyspark.sql import DataFrame

    @dg.asset(
        name="latest",
        partitions_def=DAYS,
        metadata={
            "dstl/keys": ["customer"],
            "dstl/schema": "customer STRING, total BIGINT",
            "dstl/update": {"total": "coalesce(old.total, 0) + new.amount"},
        },
    )
    def totals(context: dg.AssetExecutionContext) -> Any:
        rows = ORDERS[context.partition_key].items()
        return spark.createDataFrame(list(rows), "customer STRING, amount BIGINT")

    SEEN.clear()
    for day in ("2024-01-01", "2024-01-02"):
        both = [totals, _downstream(DataFrame)]
        assert _run(both, tmp_path.as_uri(), instance, partition_key=day).success
    assert {row.customer: row.total for row in SEEN[-1][1].collect()} == {"ada": 14, "bob": 1}
