"""`@checkpointed_asset`: a function's DataFrame becomes a checkpoint; what cannot work is refused at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.asset_component import EXAMPLE
from dstl_dagster.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dstl_dagster.testing.gcs_server import GCSServer

pytestmark = pytest.mark.dagster

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-03")
NAMES = dstl.JobAssets("names", state="latest")
MERGE: dict[str, Any] = {
    "keys": ["customer"],
    "schema": "customer STRING, total BIGINT",
    "update": {"total": "coalesce(old.total, 0) + new.amount"},
}


class Rate(dg.Config):
    """What a launchpad may set."""

    factor: int = 1


@dstl.checkpointed_asset("orders", partitions_def=DAYS, source="inbox", owners=["team:data"], **MERGE)
def totals(context: dg.OpExecutionContext, batch: Any, config: Rate, spark: dstl.SparkSessionResource) -> Any:
    """Totals per customer."""
    first = context.partition_key == "2024-01-01"
    rows = "('ada', 5L), ('bob', 1L)" if first else "('ada', 2L)"
    orders = spark.spark_session.sql(f"SELECT * FROM VALUES {rows} AS t(customer, amount)")
    batch.write_files(orders, f"reports/{context.partition_key}.jsonl")
    return orders.selectExpr("customer", f"amount * {config.factor} AS amount")


@dstl.checkpointed_asset(
    dstl.JobAssets("names", state="latest"), keys=["id"], delete="gone", operator="names"
)
def latest(spark: dstl.SparkSessionResource) -> Any:
    return spark.spark_session.sql("SELECT 1 AS id, 'ada' AS name, false AS gone")


def _run(asset: dg.AssetsDefinition, store: str, **more: Any) -> dg.ExecuteInProcessResult:
    resources = {
        "changelog": dstl.ChangelogStorageResource(uri=store),
        "spark": dstl.SparkSessionResource(),
    }
    job = dg.Definitions(assets=[asset], jobs=[dg.define_asset_job("run", [asset])], resources=resources)
    return job.resolve_job_def("run").execute_in_process(**more)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_days_are_merged_in_order_each_once(strict_gcs: GCSServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a bucket: a day that is run again is not applied again, and its function is not called."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", strict_gcs.url)
    strict_gcs.create_bucket("decorated")
    store = "gs://decorated/state"
    config = {"ops": {"orders__state": {"ops": {"totals": {"config": {"factor": 10}}}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        for day in ("2024-01-01", "2024-01-01", "2024-01-02"):
            assert _run(totals, store, partition_key=day, instance=instance, run_config=config).success
    coordinator = CheckpointCoordinator("orders", open_store(store))
    positions = [each.positions for each in coordinator.list()]
    assert positions == [{"inbox": f"2024-01-0{day}T00:00:00+00:00"} for day in (2, 3)]
    latest = coordinator.latest()
    assert latest is not None
    assert latest.manifest.operators["totals"].report.upserts == 1
    assert {stat.name for stat in open_store(store).list("reports/")} == {
        "reports/2024-01-01.jsonl",
        "reports/2024-01-02.jsonl",
    }


@pytest.mark.spark
def test_rows_replace_those_of_their_keys(spark: SparkSession, tmp_path: Path) -> None:
    """Without partitions, and without a context or a batch in the signature."""
    del spark
    with dg.DagsterInstance.ephemeral() as instance:
        assert _run(latest, tmp_path.as_uri(), instance=instance).success
    found = CheckpointCoordinator("names", open_store(tmp_path.as_uri())).latest()
    assert found is not None
    assert found.manifest.operators["names"].report.upserts == 1


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_what_is_scaffolded_runs() -> None:
    """The function that `dg scaffold` writes beside the component, until somebody replaces it."""
    names: dict[str, Any] = {}
    exec(compile(EXAMPLE.format(key="customer"), "rows.py", "exec", dont_inherit=True), names)
    rows = names["rows"](None, dstl.SparkSessionResource())
    assert rows.dtypes == [("customer", "string"), ("amount", "double")]


def test_the_asset_is_the_jobs_state() -> None:
    """Key, description, partitions, owners, and a dependency on its own previous partition."""
    spec = totals.get_asset_spec(dg.AssetKey(["orders", "state"]))
    assert spec.description == "Totals per customer."
    assert spec.partitions_def == DAYS
    assert list(spec.owners) == ["team:data"]
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey(["orders", "state"])]
    assert latest.key == dg.AssetKey(["names", "latest"])
    dg.Definitions.validate_loadable(
        dg.Definitions(
            assets=[totals, latest],
            resources={
                "changelog": dstl.ChangelogStorageResource(uri="memory://x"),
                "spark": dstl.SparkSessionResource(),
            },
        )
    )


def _plain(spark: dstl.SparkSessionResource) -> Any: ...


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "_plain: give `keys`, or take `batch` and write by it"),
        ({"keys": "customer"}, "expected names in a list, such as ['customer']"),
        ({"update": {}}, "`update`, `schema` and `delete` need `keys`"),
        ({"keys": ["a"], "update": {}}, "`update` needs `schema`"),
        ({"keys": ["a"], "schema": "a INT"}, "`schema` is for `update`"),
        ({"keys": ["a"], "delete": 3}, "`delete` names a boolean column"),
        ({"keys": ["a"], "changelog": "file:///x"}, "changelog is a ChangelogStorageResource(uri=...), not"),
        (
            {"keys": ["a"], "changelog": dstl.ChangelogStorageResource(uri="/data")},
            "did you mean the folder file:///data?",
        ),
    ],
)
def test_a_rule_that_cannot_work_is_refused(arguments: dict[str, Any], message: str) -> None:
    """Where the decorator stands, not in the run."""
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        dstl.checkpointed_asset("orders", **arguments)(_plain)


@pytest.mark.parametrize(
    ("keys", "result", "message"),
    [
        (["id"], None, "returned NoneType: expected the DataFrame of its rows"),
        (["id"], [1], "returned list: expected the DataFrame of its rows"),
        ([], [1], "returned list: expected None, because it has no keys"),
    ],
)
def test_a_result_that_is_no_dataframe_is_refused(
    keys: list[str], result: Any, message: str, tmp_path: Path
) -> None:
    """The attempt is aborted: the next run begins anew."""

    @dstl.checkpointed_asset("wrong", keys=keys, retry_policy=dg.RetryPolicy(max_retries=0))
    def wrong(batch: Any) -> Any:
        del batch
        return result

    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(dg.Failure, match=re.escape(message)):
        _run(wrong, tmp_path.as_uri(), instance=instance)
    assert CheckpointCoordinator("wrong", open_store(tmp_path.as_uri())).timeline.tail().open_attempt is None
