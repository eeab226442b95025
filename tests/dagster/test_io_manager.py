"""Ordinary assets on keyed state: what they return is a checkpoint, what they take is the state at theirs."""

# No postponed annotations: Dagster reads them as objects.

import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster._core.execution.api import execute_run  # no public name

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.jobs import plan_correction
from dstl_dagster.orchestration.report.findings import partitions_finding
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.dagster,
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
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
    """A day's downstream sees the state at that day, also after later days; the newest day is replaced."""
    store = tmp_path.as_uri()
    for day in ("2024-01-01", "2024-01-02", "2024-01-02"):
        assert _run([latest], store, instance, partition_key=day).success
    coordinator = CheckpointCoordinator("latest", open_store(store))
    assert [each.positions for each in coordinator.list()] == [
        {"asset:latest": "2024-01-02T00:00:00+00:00"},
        {"asset:latest": "2024-01-03T00:00:00+00:00"},
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


def test_a_day_that_is_refused_is_not_shown_as_failed(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Nothing was written of it: the run fails, and the day stays missing, or materialized."""
    store, key = tmp_path.as_uri(), latest.key
    refused = _run([latest], store, instance, partition_key="2024-01-02", raise_on_error=False)
    assert not refused.success
    assert not any(instance.get_status_by_partition(key, ["2024-01-02"], DAYS).values())
    for day in ("2024-01-01", "2024-01-02"):
        assert _run([latest], store, instance, partition_key=day).success
    again = _run([latest], store, instance, partition_key="2024-01-01", raise_on_error=False)
    assert not again.success
    days = ["2024-01-01", "2024-01-02"]
    status = instance.get_status_by_partition(key, days, DAYS)
    assert status == dict.fromkeys(days, dg.AssetPartitionStatus.MATERIALIZED)


@pytest.mark.parametrize(
    ("metadata", "result", "message"),
    [
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
        (
            {"dstl/keys": ["a"]},
            pd.DataFrame({"a": [1], "b": [2]}).set_index("b"),
            "operator 'wrong': 'b' is the frame's index, which is not stored: return frame.reset_index()",
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


# A cumulative state: partitions that run again, and inputs of others than one partition


def _days(**metadata: Any) -> dg.AssetsDefinition:
    @dg.asset(name="latest", partitions_def=DAYS, metadata={"dstl/keys": ["customer"], **metadata})
    def days(context: dg.AssetExecutionContext) -> pa.Table:
        rows = NOW[context.partition_key]
        return pa.table(
            {"customer": pa.array(rows, pa.string()), "total": pa.array(rows.values(), pa.int64())}
        )

    return days


NOW: dict[str, dict[str, int]] = {}


def _state(store: str, job: str = "latest", **more: Any) -> dict[str, int]:
    scan = dstl.read_state(store, job, "latest", **more)
    return {row["customer"]: row["total"] for row in scan.to_arrow().to_pylist()}


def test_the_newest_day_is_replaced(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """In one checkpoint: what its second run does not give is gone, and the former one is history."""
    store = tmp_path.as_uri()
    NOW.update({"2024-01-01": {"ada": 1, "bob": 2}, "2024-01-02": {"bob": 3, "cyd": 4}})
    for day in ("2024-01-01", "2024-01-02"):
        assert _run([_days()], store, instance, partition_key=day).success
    NOW["2024-01-02"] = {"ada": 7}
    assert _run([_days()], store, instance, partition_key="2024-01-02").success
    assert _state(store) == {"ada": 7, "bob": 2}
    assert _state(store, at=2) == {"ada": 1, "bob": 3, "cyd": 4}
    NOW["2024-01-03"] = {}
    assert _run([_days()], store, instance, partition_key="2024-01-03").success
    assert _state(store) == {"ada": 7, "bob": 2}


@pytest.mark.parametrize(
    ("metadata", "tags", "day", "why"),
    [
        ({}, {}, "2024-01-01", "and later ones build on it"),
        ({"dstl/rerun": "refuse"}, {}, "2024-01-02", "and dstl/rerun is refuse"),
        ({}, {"dstl/fail_if_applied": "true"}, "2024-01-02", "and this run has the tag dstl/fail_if_applied"),
    ],
)
def test_a_day_that_cannot_be_replaced_is_red(
    metadata: dict[str, str],
    tags: dict[str, str],
    day: str,
    why: str,
    tmp_path: Path,
    instance: dg.DagsterInstance,
) -> None:
    """It fails with the command that corrects it, changes nothing, and shows no materialization."""
    store = tmp_path.as_uri()
    NOW.update({"2024-01-01": {"ada": 1}, "2024-01-02": {"bob": 3}})
    for each in ("2024-01-01", "2024-01-02"):
        assert _run([_days()], store, instance, partition_key=each).success
    before = _state(store)
    NOW[day] = {"eve": 9}
    said = f"{re.escape(why)}: nothing was changed. .*: dstl checkpoints correct {day}"
    with pytest.raises(dg.Failure, match=said):
        _run([_days(**metadata)], store, instance, partition_key=day, tags=tags)
    assert _state(store) == before
    assert len(instance.fetch_materializations(dg.AssetKey("latest"), limit=9).records) == 2


SUMS = {
    "dstl/keys": ["customer"],
    "dstl/schema": "customer STRING, total BIGINT",
    "dstl/update": {"total": "coalesce(old.total, 0) + new.total"},
}


class _DiesOnce(dstl.KeyedStateIOManager):
    """Fails behind step 6, before Dagster has an event."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        super().handle_output(context, obj)
        if FAILURES:
            raise FAILURES.pop()


FAILURES: list[Exception] = []


@dg.asset(name="latest", metadata=SUMS, retry_policy=dg.RetryPolicy(max_retries=1))
def retried() -> pa.Table:
    return pa.table({"customer": ["ada"], "total": [1]})


@dg.asset(name="latest", metadata=SUMS)
def sums() -> pa.Table:
    return pa.table({"customer": ["ada"], "total": [1]})


@dg.asset(deps=[sums], io_manager_key="none")
def after() -> None:
    if AFTER:
        raise AFTER.pop()


AFTER: list[Exception] = []


def sums_job() -> dg.JobDefinition:
    """By a function, so that Dagster can build it again for a re-execution."""
    manager = _DiesOnce(changelog=dstl.ChangelogStorageResource(uri=dg.EnvVar("SUMS_STORE")))
    defs = dg.Definitions(
        assets=[sums, after],
        jobs=[dg.define_asset_job("again", [sums, after], executor_def=dg.in_process_executor)],
        resources={"io_manager": manager, "none": dg.mem_io_manager},
    )
    return defs.resolve_job_def("again")


def test_a_retry_of_the_step_finds_its_batch_applied(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """It adds nothing twice, and the materialization that the first try owed is written."""
    FAILURES[:] = [RuntimeError("killed")]
    manager = _DiesOnce(changelog=dstl.ChangelogStorageResource(uri=tmp_path.as_uri()))
    assert dg.materialize([retried], resources={"io_manager": manager}, instance=instance).success
    assert _state(tmp_path.as_uri()) == {"ada": 1}
    assert len(instance.fetch_materializations(dg.AssetKey("latest"), limit=9).records) == 1


def test_a_resume_adds_nothing_and_a_whole_re_execution_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster says by a tag, or by the steps that are left, that a run resumes another one."""
    store = tmp_path.as_uri()
    monkeypatch.setenv("SUMS_STORE", store)
    with dg.instance_for_test() as instance:
        job = dg.reconstructable(sums_job)
        FAILURES[:] = [RuntimeError("killed")]
        with dg.execute_job(job, instance) as failed:
            assert not failed.success
        resume = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
        with dg.execute_job(job, instance, reexecution_options=resume) as resumed:
            assert resumed.success
        assert _state(store) == {"ada": 1}
        whole = dg.ReexecutionOptions(parent_run_id=resumed.run_id)
        with dg.execute_job(job, instance, reexecution_options=whole) as again:
            assert again.success
        assert _state(store) == {"ada": 2}
        # The last: a retry of Dagster's own, of all steps where its strategy says so.
        for tagged in {"dagster/is_resume_retry": "true"}, {"dagster/retry_number": "1"}:
            with dg.execute_job(job, instance, reexecution_options=whole, tags=tagged) as resumed:
                assert resumed.success
            assert _state(store) == {"ada": 2}


@pytest.mark.parametrize("tag", ["dagster/retry_number", "dagster/is_asset_resume_retry"])
def test_a_tag_of_the_run_before_is_no_retry(
    tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster copies these to whatever a person re-executes: all steps, or those chosen on the page."""
    monkeypatch.setenv("SUMS_STORE", tmp_path.as_uri())
    with dg.instance_for_test() as instance:
        job = dg.reconstructable(sums_job)

        def run_again(before: Any, *steps: str, **tags: str) -> Any:
            again = dg.ReexecutionOptions(parent_run_id=before.run_id, step_selection=steps)
            with dg.execute_job(job, instance, reexecution_options=again, tags=tags) as result:
                return result

        FAILURES[:] = [RuntimeError("killed")]
        with dg.execute_job(job, instance) as failed:
            assert not failed.success
        AFTER[:] = [RuntimeError("killed")]
        retried = run_again(failed, **{tag: "1"})
        assert not retried.success
        assert _state(tmp_path.as_uri()) == {"ada": 1}
        resumed = run_again(retried, "after", **{tag: "2"})
        for total, steps in (2, []), (3, ["latest"]):
            assert run_again(resumed, *steps, **{tag: "2"}).success
            assert _state(tmp_path.as_uri()) == {"ada": total}


@dg.asset(
    name="latest", metadata=SUMS, check_specs=[dg.AssetCheckSpec("none_owes", asset="latest", blocking=True)]
)
def checked() -> Iterator[Any]:
    (total,) = NOW["checked"].values()
    yield dg.Output(pa.table({"customer": ["ada"], "total": [total]}))
    yield dg.AssetCheckResult(passed=total >= 0)


def checked_job() -> dg.JobDefinition:
    manager = dstl.KeyedStateIOManager(changelog=dstl.ChangelogStorageResource(uri=dg.EnvVar("SUMS_STORE")))
    jobs = [dg.define_asset_job("again", [checked], executor_def=dg.in_process_executor)]
    defs = dg.Definitions(assets=[checked], jobs=jobs, resources={"io_manager": manager})
    return defs.resolve_job_def("again")


@pytest.mark.parametrize("button", ["from failure", "all steps"])
def test_the_rows_of_the_last_try_count(button: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a check has failed behind the first one's checkpoint, and the source was repaired."""
    store = tmp_path.as_uri()
    monkeypatch.setenv("SUMS_STORE", store)
    with dg.instance_for_test() as instance:
        job = dg.reconstructable(checked_job)

        def run(total: int, before: str | None = None) -> Any:
            NOW["checked"] = {"ada": total}
            if before is not None and button == "from failure":
                resume = dg.ReexecutionOptions.from_failure(before, instance)
                with dg.execute_job(job, instance, reexecution_options=resume) as result:
                    return result
            made = instance.create_run_for_job(job.get_definition(), parent_run_id=before, root_run_id=before)
            instance.delete_run(made.run_id)
            return execute_run(job, instance.add_run(made._replace(step_keys_to_execute=None)), instance)

        assert run(1).success
        failed = run(-5)
        assert (failed.success, _state(store)) == (False, {"ada": -4})
        repaired = run(7, failed.run_id)
        assert (repaired.success, _state(store)) == (True, {"ada": 8})
        failed = run(-5)
        assert run(2).success
        assert not run(9, failed.run_id).success, "a later run builds on it"
        assert _state(store) == {"ada": 5}, "8 - 5 + 2"


@dg.op(name="sums", out=dg.Out(pa.Table, metadata=SUMS))
def summed() -> pa.Table:
    return pa.table({"customer": ["ada"], "total": [1]})


@dg.op(out=dg.Out(io_manager_key="none"))
def look(sums: pa.Table) -> None:
    SEEN.append(sums["total"].to_pylist())
    if AFTER:
        raise AFTER.pop()


def looking_job() -> dg.JobDefinition:
    manager = dstl.KeyedStateIOManager(changelog=dstl.ChangelogStorageResource(uri=dg.EnvVar("SUMS_STORE")))
    resources = {"io_manager": manager, "none": dg.mem_io_manager}

    @dg.job(resource_defs=resources, executor_def=dg.in_process_executor)
    def looks() -> None:
        look(summed())

    return looks


def test_an_op_is_handed_what_its_run_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what a later run made of it, before this one was re-executed from failure: twice."""
    monkeypatch.setenv("SUMS_STORE", tmp_path.as_uri())
    SEEN.clear()
    with dg.instance_for_test() as instance:
        job = dg.reconstructable(looking_job)

        def run(before: Any = None, *failures: Exception) -> Any:
            AFTER[:] = failures
            resume = before and dg.ReexecutionOptions.from_failure(before.run_id, instance)
            with dg.execute_job(job, instance, reexecution_options=resume) as result:
                return result

        first = run(None, RuntimeError("killed"))
        assert run().success
        second = run(first, RuntimeError("killed"))
        assert run(second).success
    assert SEEN == [[1], [2], [1], [1]]


def test_an_op_of_an_asset_has_one_state_in_all_jobs(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Launched from the catalog, or by a job that selects the asset."""

    @dg.op(out=dg.Out(pa.Table, metadata=SUMS))
    def sums() -> pa.Table:
        return pa.table({"customer": ["ada"], "total": [1]})

    @dg.op(out=dg.Out(io_manager_key="none"))
    def count(rows: pa.Table) -> int:
        return int(rows["total"][0].as_py())

    @dg.graph_asset
    def counted() -> Any:
        return count(sums())

    manager = dstl.KeyedStateIOManager(changelog=dstl.ChangelogStorageResource(uri=tmp_path.as_uri()))
    defs = dg.Definitions(
        assets=[counted],
        jobs=[dg.define_asset_job("daily", [counted])],
        resources={"io_manager": manager, "none": dg.mem_io_manager},
    )
    for total, name in enumerate(("daily", "__ASSET_JOB", "daily"), 1):
        result = defs.resolve_job_def(name).execute_in_process(instance=instance)
        assert result.output_for_node("counted.count") == total


PLACES = dg.StaticPartitionsDefinition(["north", "south", "west"])


@dg.asset(name="latest", partitions_def=PLACES, metadata={"dstl/keys": ["customer"]})
def places(context: dg.AssetExecutionContext) -> pa.Table:
    return pa.table({"customer": [context.partition_key], "total": [1]})


def _loaded(
    upstream: dg.AssetsDefinition,
    store: str,
    instance: dg.DagsterInstance,
    *,
    definition: Any = None,
    mapping: Any = None,
    hint: Any = pa.Table,
    **more: Any,
) -> Any:
    SEEN.clear()

    def load(rows: Any) -> None:
        SEEN.append(rows)

    load.__annotations__ = {"rows": hint, "return": None}
    ins = {"rows": dg.AssetIn("latest", partition_mapping=mapping)}
    below = dg.asset(name="below", partitions_def=definition, ins=ins, io_manager_key="none")(load)
    changelog = dstl.ChangelogStorageResource(uri=store)
    resources = {"io_manager": dstl.KeyedStateIOManager(changelog=changelog), "none": _Nothing()}
    assert dg.materialize(
        [upstream, below], selection=[below], resources=resources, instance=instance, **more
    ).success
    return SEEN[0]


def test_an_input_of_several_partitions(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The newest checkpoint that holds any, in whichever order they ran; those in none are named."""
    store = tmp_path.as_uri()
    to_both = dg.StaticPartitionMapping({"north": "west", "south": "west"})

    def load() -> Any:
        return _loaded(places, store, instance, definition=PLACES, mapping=to_both, partition_key="west")

    assert _run([places], store, instance, partition_key="south").success
    with pytest.raises(
        dg.Failure, match="no checkpoint of job 'latest' holds partition north: materialize them first"
    ):
        load()
    assert _run([places], store, instance, partition_key="north").success
    assert _run([places], store, instance, partition_key="west").success
    assert sorted(load().column("customer").to_pylist()) == ["north", "south"]


def test_an_input_of_no_partition_is_empty(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """As yesterday of the first day: with the state's columns; `None` before there is a state."""
    store = tmp_path.as_uri()
    NOW.update({"2024-01-01": {"ada": 1}})
    yesterday = dg.TimeWindowPartitionMapping(
        start_offset=-1, end_offset=-1, allow_nonexistent_upstream_partitions=True
    )
    more: dict[str, Any] = {"definition": DAYS, "mapping": yesterday, "partition_key": "2024-01-01"}
    assert _loaded(_days(), store, instance, hint=pa.Table | None, **more) is None
    assert _run([_days()], store, instance, partition_key="2024-01-01").success
    found = _loaded(_days(), store, instance, **more)
    assert (found.num_rows, found.column_names) == (0, ["customer", "total"])
    assert _loaded(_days(), store, instance, hint=pd.DataFrame, **more).empty


def test_an_asset_without_partitions_gets_the_newest_state(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Also while days of the definition have not run; by a mapping to one day the state at that day."""
    store = tmp_path.as_uri()
    NOW.update({"2024-01-01": {"ada": 1}, "2024-01-02": {"ada": 2}})
    with pytest.raises(dg.Failure, match="nothing was written to 'latest' of job 'latest' yet"):
        _loaded(_days(), store, instance)
    assert _run([_days()], store, instance, partition_key="2024-01-01").success
    first = [{"customer": "ada", "total": 1}]
    assert _loaded(_days(), store, instance).to_pylist() == first
    assert _run([_days()], store, instance, partition_key="2024-01-02").success
    assert _loaded(_days(), store, instance).column("total").to_pylist() == [2]
    the_first = dg.SpecificPartitionsPartitionMapping(["2024-01-01"])
    assert _loaded(_days(), store, instance, mapping=the_first).to_pylist() == first


def test_a_cumulative_asset_begins_without_its_previous_day(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """It gets `None`, and afterwards the state at the day before."""
    seen: list[Any] = []

    @dg.asset(
        name="latest",
        partitions_def=DAYS,
        metadata={"dstl/keys": ["customer"]},
        ins={"latest": dg.AssetIn(partition_mapping=SELF["latest"].partition_mapping)},
    )
    def own(context: dg.AssetExecutionContext, latest: pl.DataFrame | None) -> pl.DataFrame:
        seen.append(None if latest is None else latest.sort("customer")["customer"].to_list())
        return pl.DataFrame({"customer": [context.partition_key], "total": [1]})

    for day in ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-03"):
        assert _run([own], tmp_path.as_uri(), instance, partition_key=day).success
    days = ["2024-01-01", "2024-01-02"]
    assert seen == [None, days[:1], days, days]


REDEFINED = {
    "it begins where the state stands": dg.DailyPartitionsDefinition("2024-01-03"),
    "it leaves out a day that is in": dg.DailyPartitionsDefinition(
        "2024-01-01",
        exclusions=[datetime(2024, 1, 2)],
    ),
    "its days become hours": dg.HourlyPartitionsDefinition("2024-01-01-00:00"),
}


@pytest.mark.parametrize("name", REDEFINED)
def test_a_cumulative_asset_loads_what_it_builds_on(
    name: str, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """All that is in the state, also where none of its partitions is the one before."""
    seen: list[Any] = []

    def own(definition: Any) -> dg.AssetsDefinition:
        @dg.asset(
            name="latest",
            partitions_def=definition,
            metadata={"dstl/keys": ["customer"]},
            ins={"latest": dg.AssetIn(partition_mapping=SELF["latest"].partition_mapping)},
        )
        def latest(context: dg.AssetExecutionContext, latest: pa.Table | None) -> pa.Table:
            seen.append(latest and sorted(latest["customer"].to_pylist()))
            return pa.table({"customer": [context.partition_key], "total": [1]})

        return latest

    for day in ("2024-01-01", "2024-01-02"):
        assert _run([own(DAYS)], tmp_path.as_uri(), instance, partition_key=day).success
    following = "2024-01-03-00:00" if "hours" in name else "2024-01-03"
    for _ in range(2):  # the second one takes the place of the first
        assert _run([own(REDEFINED[name])], tmp_path.as_uri(), instance, partition_key=following).success
    assert seen[2:] == [["2024-01-01", "2024-01-02"]] * 2


def test_a_range_of_a_cumulative_asset_is_refused(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """In one sentence that names both ways out."""
    tags = {
        "dagster/asset_partition_range_start": "2024-01-01",
        "dagster/asset_partition_range_end": "2024-01-02",
    }

    @dg.asset(name="latest", partitions_def=DAYS, metadata={"dstl/keys": ["customer"]})
    def rows() -> pa.Table:
        return pa.table({"customer": ["ada"]})

    with pytest.raises(
        dg.Failure, match=r"holds one: give the asset BackfillPolicy.multi_run\(1\); or partition_expr"
    ):
        _run([rows], tmp_path.as_uri(), instance, tags=tags)


def test_each_partition_of_a_range_is_a_batch(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """By its name it is found, and a correction runs it; a retry of the range finds that done."""

    @dg.asset(name="latest", partitions_def=DAYS, metadata={"dstl/keys": ["day"], "partition_expr": "day"})
    def rows(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [*context.partition_keys]})

    days = DAYS.get_partition_keys()
    tags = {
        "dagster/asset_partition_range_start": days[0],
        "dagster/asset_partition_range_end": days[-1],
    }
    assert _run([rows], tmp_path.as_uri(), instance, tags=tags).success
    coordinator = CheckpointCoordinator("latest", open_store(tmp_path.as_uri()))
    assert [coordinator.applied(day) for day in days] == [1, 1, 1]
    assert plan_correction(coordinator, days[1]).batches == (*days,)
    batch = coordinator.at().entry.completed.batch
    assert batch is not None
    applied = coordinator.applied_attempt(batch)
    assert applied is not None
    assert applied.batch == batch
    assert coordinator.applied(replace(batch, window="run:another")) is None


def test_a_row_of_another_partition_is_refused(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """A run writes rows of its own partitions, or nothing."""

    @dg.asset(
        name="latest", partitions_def=PLACES, metadata={"dstl/keys": ["place"], "partition_expr": "place"}
    )
    def wrong() -> pa.Table:
        return pa.table({"place": ["north", "south"]})

    said = r"asset latest: .* the row of key \(place='south'\) is not in partition north, which this batch"
    with pytest.raises(dg.Failure, match=said):
        _run([wrong], tmp_path.as_uri(), instance, partition_key="north")
    assert not instance.fetch_materializations(dg.AssetKey("latest"), limit=1).records


class _Restored:
    """Two assets, each with a day of its own that a restore undoes, and one with two of them in one run."""

    def __init__(self, store: str, instance: dg.DagsterInstance, version: str | None) -> None:
        self.instance, changelog = instance, dstl.ChangelogStorageResource(uri=store)
        self.version = version
        self.resources = {"changelog": changelog, "io_manager": dstl.KeyedStateIOManager(changelog=changelog)}
        keys = {"dstl/keys": ["day"], "dstl/job": "both"}
        self.assets = [
            dg.asset(name="one", partitions_def=DAYS, metadata={**keys, "dstl/operator": "one"})(self._rows),
            dg.asset(name="other", partitions_def=DAYS, metadata={**keys, "dstl/operator": "other"})(
                self._rows
            ),
            dg.asset(
                name="table",
                partitions_def=DAYS,
                metadata={"dstl/keys": ["day"], "partition_expr": "day"},
                backfill_policy=dg.BackfillPolicy.single_run(),
            )(self._rows),
        ]
        self.sensors = [dstl.build_checkpoint_sensor(job, partitions_def=DAYS) for job in ("both", "table")]
        jobs = [dstl.build_maintenance(job, "restore", partitions_def=DAYS) for job in ("both", "table")]
        self.defs = dg.Definitions(self.assets, jobs=jobs, resources=self.resources, sensors=self.sensors)
        self.coordinators = {
            job: CheckpointCoordinator(job, open_store(store), owner="a person") for job in ("both", "table")
        }

    def _rows(self, context: dg.AssetExecutionContext) -> Any:
        rows = pa.table({"day": [*context.partition_keys], "total": [1] * len(context.partition_keys)})
        return rows if self.version is None else dg.Output(rows, data_version=dg.DataVersion(self.version))

    def run(self, name: str, first: str, last: str = "", tags: dict[str, str] | None = None) -> None:
        tags = {
            **(tags or {}),
            "dagster/asset_partition_range_start": first,
            "dagster/asset_partition_range_end": last or first,
        }
        job = self.defs.resolve_implicit_global_asset_job_def()
        key = dg.AssetKey(name)
        assert job.execute_in_process(instance=self.instance, tags=tags, asset_selection=[key]).success

    def tick(self, cursor: str | None = None) -> int:
        """Of each sensor, from the beginning; how much was reported of the assets."""
        reported = 0
        for sensor in self.sensors:
            with dg.build_sensor_context(
                instance=self.instance, resources=self.resources, definitions=self.defs, cursor=cursor
            ) as context:
                found = sensor(context)
            assert isinstance(found, dg.SensorResult)
            assert not found.run_requests
            for event in found.asset_events:
                reported += len(event.asset_key.path) == 1
                self.instance.report_runless_asset_event(event)
        return reported

    def found(self, job: str) -> str:
        """By the check, where there is a difference."""
        nodes = self.defs.get_repository_def().asset_graph.asset_nodes
        page = Page(dstl.JobAssets(job).found_in(nodes), self.instance, DAYS)
        finding = partitions_finding(page, self.coordinators[job].timeline.tail())
        return "" if finding.passed else finding.text

    def failed(self, name: str) -> list[str]:
        shown = self.instance.get_status_by_partition(dg.AssetKey(name), [*ORDERS], DAYS)
        return [day for day, status in shown.items() if status is dg.AssetPartitionStatus.FAILED]


OTHER_VERSION = str(uuid.UUID(int=1))
"""A data version of the user's that looks like an attempt's."""


@pytest.mark.parametrize(
    ("by", "version"), [("sensor", None), ("job", None), ("sensor", OTHER_VERSION)], ids=str
)
def test_what_a_restore_undid_is_shown_as_failed(
    by: str,
    version: str | None,
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each asset its own days, also of a run of several, until they run again; whatever version of its
    data the asset names.
    """
    world, (first, second, third) = _Restored(tmp_path.as_uri(), instance, version), ORDERS
    for name, *days in (("one", first), ("other", first), ("one", second), ("other", second)):
        world.run(name, *days)
    world.run("table", first)
    world.run("table", second, third)
    assert world.tick() == 0, "Dagster shows what the runs have made"
    assert [world.found("both"), world.found("table")] == ["", ""]
    where = "dstl_dagster.orchestration.code_location.code_location"
    monkeypatch.setattr(where, lambda _: world.defs.get_repository_def())
    for job, last, to in (("both", 4, 2), ("table", 2, 1)):
        if by == "sensor":
            world.coordinators[job].restore(to)
        else:
            instance.add_dynamic_partitions(f"{job}_checkpoints", [f"chk-{to:08}"])
            ran = world.defs.resolve_job_def(f"{job}_restore").execute_in_process(
                instance=instance, partition_key=f"chk-{to:08}", run_config=dstl.restore_run_config(last, to)
            )
            assert ran.success
    if by == "sensor":
        assert world.tick() == 2, "of each job the checkpoint that counts again"
    assert [world.failed(name) for name in ("one", "other", "table")] == [[second], [second], [second, third]]
    of_one, of_two = (
        f"{days} in no checkpoint any more, and shown as failed"
        for days in (f"{second} is", f"{second}, {third} are")
    )
    assert world.found("both").startswith(of_one)
    assert world.found("table").startswith(of_two)
    world.run("other", second)
    world.run("table", third)
    world.tick()
    assert [world.failed(name) for name in ("one", "other", "table")] == [[second], [], [second]]


def test_days_of_one_run_are_known_in_a_copy(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """A job starts over in an older copy of its store: days that the copy has are not shown as failed, though
    no batch has the name of one.
    """
    stores, (first, second, third) = [tmp_path / "live", tmp_path / "copy"], ORDERS
    world = _Restored(stores[0].as_uri(), instance, None)
    world.run("table", first, second)
    world.tick()
    shutil.copytree(*stores)
    world.run("table", third)
    world.tick()
    copied = _Restored(stores[1].as_uri(), instance, None)
    copied.sensors = copied.sensors[1:]
    copied.tick('{"start_over": true}')
    assert copied.failed("table") == [third]


@pytest.mark.parametrize("ticked", [False, True])
def test_days_of_another_store_are_shown_as_failed(
    ticked: bool, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """By the run that starts over, whether a sensor has shown the job before or not."""
    world, (first, second, third) = _Restored((tmp_path / "live").as_uri(), instance, None), ORDERS
    world.run("table", first, second)
    if ticked:
        world.tick()
    other = _Restored((tmp_path / "other").as_uri(), instance, None)
    other.run("table", third, tags={"dstl/start_over": "true"})
    assert other.failed("table") == [first, second]
    other.run("table", second)
    other.tick()
    assert other.failed("table") == [first]
