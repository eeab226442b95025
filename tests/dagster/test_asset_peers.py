"""Scenarios of the tests of Dagster's integrations, asked of `@checkpointed_asset`: tests/peers."""

# No postponed annotations here: Dagster reads the types of an asset's arguments as objects.

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import dstl_dagster as dstl
from tests.dagster.memory_store import MemoryStore

pytestmark = [pytest.mark.dagster, pytest.mark.filterwarnings("ignore::dagster.PreviewWarning")]

ROWS = pa.table({"id": [1, 2], "name": ["ada", "bob"]})
PROCESS = dg.AssetKey(["orders", "process"])


def is_of_the_first_checkpoint(event: dg.AssetMaterialization) -> bool:
    return (event.tags or {})["dstl/checkpoint_id"] == "1" and "checkpoint" in event.metadata


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[MemoryStore]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield MemoryStore(f"memory://asset-peers/{abs(hash(request.node.nodeid))}", instance)


# ---- a process that the asset's function starts by Dagster Pipes ----


def reports() -> None:
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes() as pipes:
        pipes.log.info("hello world")
        pipes.report_asset_materialization(
            metadata={
                "bar": {"raw_value": pipes.get_extra("bar"), "type": "md"},
                "url": {"raw_value": "https://example.com", "type": "url"},
                "json": {"raw_value": ["bar"], "type": "json"},
                "int": {"raw_value": 1, "type": "int"},
                "asset": {"raw_value": "bar/baz", "type": "asset"},
            }
        )
        pipes.report_asset_check("found", passed=True, severity="WARN", metadata={"n": 1})
        pipes.report_custom_message({"some": "junk"})


def logs() -> None:
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes() as pipes:
        pipes.log.info("nothing to report")


def never_closes() -> None:
    from dagster_pipes import open_dagster_pipes

    open_dagster_pipes().report_asset_materialization()


def raises() -> None:
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes():
        raise RuntimeError("oops")


def has_a_version() -> None:
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes() as pipes:
        pipes.report_asset_materialization(data_version="alpha")


def started(program: Callable[[], None], folder: Path, how: str = "results", **more: Any) -> Any:
    """An asset whose function writes its rows, and starts `program`."""
    script = folder / "program.py"
    source = inspect.getsource(program)
    script.write_text(textwrap.dedent(f"{source}\n{program.__name__}()\n"), encoding="utf-8")

    @dstl.checkpointed_asset("orders", keys=["id"], retry_policy=dg.RetryPolicy(max_retries=0), **more)
    def process(context: dg.AssetExecutionContext, client: dg.PipesSubprocessClient, batch: Any) -> Any:
        batch.write_state(ROWS, operator="process", keys=["id"])
        done = client.run(command=[sys.executable, str(script)], context=context, extras={"bar": "baz"})
        if how == "messages":
            assert list(done.get_custom_messages()) == [{"some": "junk"}]
        return done.get_results() if how == "results" else done.get_materialize_result()

    return process


def launched(
    store: MemoryStore, asset: Any, client: Any = None, partition: str | None = None
) -> dg.ExecuteInProcessResult:
    resources = {"client": client or dg.PipesSubprocessClient()}
    return store.run(asset, partition=partition, resources=resources, raise_on_error=False)


@pytest.mark.parametrize(
    ("injector", "how"),
    [
        (None, "messages"),
        pytest.param(dg.PipesTempFileContextInjector(), "results", marks=pytest.mark.soak),
        pytest.param(dg.PipesEnvContextInjector(), "result", marks=pytest.mark.soak),
    ],
)
def test_a_process_reports(
    injector: Any, how: str, store: MemoryStore, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its metadata stand beside ours, its check is a check, its log is the run's."""
    found = [dg.AssetCheckSpec("found", asset=PROCESS)]
    asset = started(reports, tmp_path, how, check_specs=found)
    result = launched(store, asset, dg.PipesSubprocessClient(context_injector=injector))
    assert result.success
    event = store.event(PROCESS)
    assert is_of_the_first_checkpoint(event)
    metadata = event.metadata
    assert metadata["bar"] == dg.MetadataValue.md("baz")
    assert metadata["url"] == dg.MetadataValue.url("https://example.com")
    assert metadata["json"] == dg.MetadataValue.json(["bar"])
    assert metadata["int"].value == 1
    assert metadata["asset"] == dg.MetadataValue.asset(dg.AssetKey(["bar", "baz"]))
    (check,) = (each for each in result.get_asset_check_evaluations() if each.check_name == "found")
    assert (check.passed, check.metadata["n"].value) == (True, 1)
    assert len([each for each in result.get_asset_materialization_events() if each.asset_key == PROCESS]) == 1
    assert re.search(r"INFO[^\n]*hello world", capfd.readouterr().err)


@pytest.mark.parametrize("program", [logs, pytest.param(never_closes, marks=pytest.mark.soak)])
def test_a_process_that_reports_little(
    program: Callable[[], None], store: MemoryStore, tmp_path: Path
) -> None:
    """No materialization of its own, or no end of its messages: the checkpoint counts."""
    assert launched(store, started(program, tmp_path)).success
    assert is_of_the_first_checkpoint(store.event(PROCESS))


def test_a_process_that_fails(store: MemoryStore, tmp_path: Path) -> None:
    """The attempt is aborted, with what was written."""
    result = launched(store, started(raises, tmp_path))
    assert not result.success
    (failed,) = (each for each in result.all_events if each.is_step_failure)
    assert "External execution process failed" in str(failed.event_specific_data)
    coordinator = store.changelog.coordinator("orders")
    assert coordinator.list() == []
    assert coordinator.timeline.tail().open_attempt is None


@pytest.mark.soak
def test_a_process_with_a_data_version_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    result = launched(store, started(has_a_version, tmp_path))
    (failed,) = (each for each in result.all_events if each.is_step_failure)
    assert "leave `data_version` out" in str(failed.event_specific_data)


@pytest.mark.soak
def test_a_process_for_a_dynamic_partition(store: MemoryStore, tmp_path: Path) -> None:
    store.instance.add_dynamic_partitions("shops", ["north"])
    shops = dg.DynamicPartitionsDefinition(name="shops")
    asset = started(logs, tmp_path, partitions_def=shops)
    assert launched(store, asset, partition="north").success
    assert store.event(PROCESS).partition == "north"


def test_a_process_of_an_asset_that_is_called(tmp_path: Path, store: MemoryStore) -> None:
    """With a context that a test has built."""
    asset = started(logs, tmp_path)
    asset(dg.build_asset_context(), changelog=store.changelog, client=dg.PipesSubprocessClient())
    assert [each.checkpoint_id for each in store.changelog.coordinator("orders").list()] == [1]


# ---- the decorator ----


def test_a_table_shows_its_rows_and_columns(store: MemoryStore) -> None:
    @dstl.checkpointed_asset("people", keys=["id"])
    def names() -> pa.Table:
        return ROWS

    assert store.run(names).success
    metadata = store.event(names.key).metadata
    assert metadata["dagster/row_count"].value == 2
    columns = metadata["dagster/column_schema"].value.columns
    assert [(each.name, each.type, each.description) for each in columns] == [
        ("id", "int64", "key"),
        ("name", "string", None),
    ]


def test_no_rows_are_refused(store: MemoryStore) -> None:
    @dstl.checkpointed_asset("people", keys=["id"])
    def names() -> None: ...

    (failed,) = (each for each in store.run(names, raise_on_error=False).all_events if each.is_step_failure)
    assert "names() returned None: return its rows" in str(failed.event_specific_data)


FROM_2024 = dg.DailyPartitionsDefinition("2024-01-01")
LETTERS = dg.StaticPartitionsDefinition(["a", "b"])


@pytest.mark.parametrize("definition", [FROM_2024, LETTERS])
def test_a_run_without_a_partition_is_refused(store: MemoryStore, definition: Any) -> None:
    @dstl.checkpointed_asset("people", keys=["id"], partitions_def=definition)
    def names() -> pa.Table:
        return ROWS

    (failed,) = (each for each in store.run(names, raise_on_error=False).all_events if each.is_step_failure)
    assert "job 'people' has partitions, but this run has none" in str(failed.event_specific_data)


def test_two_functions_of_one_name(store: MemoryStore) -> None:
    """By `name`, and by `key`."""

    def of(job: str, **more: Any) -> dg.AssetsDefinition:
        @dstl.checkpointed_asset(job, keys=["id"], **more)
        def names() -> pa.Table:
            return ROWS

        return names

    assets = [of("a"), of("b"), of("c", name="other"), of("d", key=["whole", "key"])]
    dg.Definitions.validate_loadable(dg.Definitions(assets, resources={"changelog": store.changelog}))
    assert [each.key.to_user_string() for each in assets] == ["a/names", "b/names", "c/other", "whole/key"]
    assert assets[2].op.name == "c__other"


def test_attributes_are_replaced(store: MemoryStore) -> None:
    """By `map_asset_specs`, as by a translator."""

    @dstl.checkpointed_asset("people", keys=["id"], deps=["log"])
    def names() -> pa.Table:
        return ROWS

    def shown(spec: dg.AssetSpec) -> dg.AssetSpec:
        spec = spec.replace_attributes(
            group_name="g", description="d", owners=["team:data"], tags={**spec.tags, "x": "y"}, kinds={"gcs"}
        )
        spec = spec.replace_attributes(automation_condition=dg.AutomationCondition.eager(), code_version="3")
        return spec.replace_attributes(deps=[]).merge_attributes(metadata={"m": 1})

    mapped = names.map_asset_specs(shown)
    (spec,) = mapped.specs
    assert (
        spec.group_name,
        spec.description,
        spec.owners,
        spec.tags["x"],
        spec.kinds,
        spec.metadata["m"],
    ) == (
        "g",
        "d",
        ["team:data"],
        "y",
        {"gcs"},
        1,
    )
    assert list(spec.deps) == []
    assert spec.automation_condition == dg.AutomationCondition.eager()
    assert store.run(mapped).success
    event = store.event(names.key)
    assert is_of_the_first_checkpoint(event)
    assert (event.tags or {})["dagster/code_version"] == "3"


@pytest.mark.parametrize("before", [None, LETTERS])
def test_partitions_are_replaced(store: MemoryStore, before: Any) -> None:
    """Those of the asset as it is now count: time partitions are applied in order, others in any."""

    @dstl.checkpointed_asset("people", keys=["id"], partitions_def=before)
    def names() -> pa.Table:
        return ROWS

    daily = names.map_asset_specs(lambda spec: spec.replace_attributes(partitions_def=FROM_2024))
    late = store.run(daily, partition="2024-01-03", raise_on_error=False)
    (failed,) = (each for each in late.all_events if each.is_step_failure)
    assert "partition 2024-01-03 is out of order" in str(failed.event_specific_data)
    assert store.run(daily, partition="2024-01-01").success
    lettered = daily.map_asset_specs(lambda spec: spec.replace_attributes(partitions_def=LETTERS))
    of_letters = store.run(lettered, partition="b", raise_on_error=False)
    (failed,) = (each for each in of_letters.all_events if each.is_step_failure)
    assert "is applied by time partitions" in str(failed.event_specific_data)


def test_its_resources_may_have_any_name(store: MemoryStore) -> None:
    """By `required_resource_keys`; the same definitions make the same job each time."""

    @dstl.checkpointed_asset("people", keys=["id"], required_resource_keys={"my_own"})
    def names(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"id": [context.resources.my_own]})

    assert store.run(names, resources={"my_own": 7}).success
    assert dstl.read_state(store.changelog.uri, "people", "names").to_arrow().to_pylist() == [{"id": 7}]


def test_what_is_below_names_the_asset(store: MemoryStore) -> None:
    """By the asset itself, and by its key."""

    @dstl.checkpointed_asset("people", keys=["id"], deps=["a.b", dg.AssetKey(["log", "c.d"])])
    def names() -> pa.Table:
        return ROWS

    @dg.asset(deps=[names])
    def one() -> None: ...

    @dg.asset(deps=[dg.AssetKey(["people", "names"])])
    def other() -> None: ...

    graph = dg.Definitions([names, one, other], resources={"changelog": store.changelog})
    jobs = [graph.resolve_implicit_global_asset_job_def() for _ in range(2)]
    assert len({each.get_job_snapshot_id() for each in jobs}) == 1
    nodes = jobs[0].asset_layer.asset_graph
    assert nodes.get(names.key).child_keys == {one.key, other.key}
    assert nodes.get(names.key).parent_keys == {dg.AssetKey("a.b"), dg.AssetKey(["log", "c.d"])}


def test_two_assets_of_one_key_are_refused(store: MemoryStore) -> None:
    def of(job: str) -> dg.AssetsDefinition:
        return dstl.checkpointed_asset(job, keys=["id"], key=["whole", "key"])(lambda: ROWS)

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="Duplicate asset key"):
        dg.Definitions.validate_loadable(
            dg.Definitions([of("a"), of("b")], resources={"changelog": store.changelog})
        )
