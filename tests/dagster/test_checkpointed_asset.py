"""`@checkpointed_asset`: an asset like any other of Dagster's, whose rows become checkpoints."""

# No postponed annotations here: Dagster reads the types of an asset's arguments as objects.

import inspect
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner
from dagster._cli import create_dagster_cli as dagster_command

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.define import checkpointed_asset
from dstl_dagster.orchestration.define.checkpointed_asset import REFUSED_ARGUMENTS
from dstl_dagster.storage import open_store
from dstl_dagster.testing.gcs_server import GCSServer
from tests.dagster.memory_store import MemoryStore

pytestmark = pytest.mark.dagster

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-05")
FIRST, SECOND = "2024-01-01", "2024-01-02"
TOTALS = dg.AssetKey(["orders", "totals"])
MERGE: dict[str, Any] = {
    "keys": ["customer"],
    "schema": "customer STRING, total BIGINT",
    "update": {"total": "coalesce(old.total, 0) + new.amount"},
}
ONCE = dg.RetryPolicy(max_retries=0)


class Rate(dg.Config):
    """What a launchpad may set."""

    factor: int = 1


class Prices(dg.ConfigurableResource[Any]):
    """A resource of the user's."""

    of_one: int = 1


@dg.asset(partitions_def=DAYS)
def raw(context: dg.AssetExecutionContext) -> list[int]:
    """A number for each day: the day of the month."""
    return [int(context.partition_key[-2:])]


@dstl.checkpointed_asset("orders", partitions_def=DAYS, **MERGE)
def totals(context: dg.AssetExecutionContext, raw: list[int]) -> pa.Table:
    """Totals per customer."""
    context.add_output_metadata({"read": len(raw)})
    return pa.table({"customer": ["ada"], "amount": raw})


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[MemoryStore]:
    with dg.DagsterInstance.ephemeral() as instance:
        uri = f"memory://checkpointed-asset/{abs(hash(request.node.nodeid))}"
        yield MemoryStore(uri, instance, prices=Prices())


# ---- as Dagster's own ----


def test_each_argument_of_an_asset_is_taken_or_refused_with_a_reason() -> None:
    """A new argument of Dagster's fails here until somebody decides what it means."""
    taken: dict[str, Any] = {
        "name": "sums",
        "ins": {"raw": dg.AssetIn(key="numbers")},
        "deps": ["rates"],
        "metadata": {"page": "wiki"},
        "tags": {"tier": "gold"},
        "description": "Sums.",
        "config_schema": {"factor": int},
        "required_resource_keys": {"prices"},
        "resource_defs": {"rates": dg.ResourceDefinition.hardcoded_resource(1)},
        "hooks": set(),
        "io_manager_key": "state",
        "partitions_def": DAYS,
        "op_tags": {"dagster-k8s/config": {}},
        "group_name": "sales",
        "automation_condition": dg.AutomationCondition.eager(),
        "freshness_policy": dg.FreshnessPolicy.cron(
            deadline_cron="0 9 * * *", lower_bound_delta=timedelta(hours=3)
        ),
        "backfill_policy": dg.BackfillPolicy.multi_run(1),
        "retry_policy": ONCE,
        "code_version": "7",
        "check_specs": [dg.AssetCheckSpec("positive", asset=["shop", "sums"])],
        "owners": ["team:data"],
        "kinds": {"arrow"},
        "pool": "one",
        "key_prefix": "shop",
    }
    alone = {"key", "io_manager_def"}  # instead of others

    def function(raw: list[int]) -> pa.Table:
        return pa.table({"id": raw})

    made = dstl.checkpointed_asset("signature", keys=["id"], **taken)(function)
    (spec,) = made.specs
    assert spec.key == dg.AssetKey(["shop", "sums"])
    assert {dep.asset_key for dep in spec.deps} == {
        dg.AssetKey("numbers"),
        dg.AssetKey("rates"),
        spec.key,
    }
    assert (spec.group_name, spec.description, spec.code_version) == ("sales", "Sums.", "7")
    assert (spec.metadata["page"], spec.tags["tier"], spec.kinds) == ("wiki", "gold", {"arrow"})
    assert list(spec.owners) == ["team:data"]
    assert spec.freshness_policy == taken["freshness_policy"]
    assert spec.automation_condition == taken["automation_condition"]
    op = made.op
    assert (op.pool, op.retry_policy, op.tags["dagster-k8s/config"]) == ("one", ONCE, "{}")
    assert set(op.required_resource_keys) >= {"prices", "changelog"}
    assert made.backfill_policy == taken["backfill_policy"]
    assert {key.name for key in made.check_keys} == {"positive"}
    keyed = dstl.checkpointed_asset(
        "signature2", keys=["id"], key=["a", "b"], io_manager_def=dg.mem_io_manager
    )
    assert keyed(function).key == dg.AssetKey(["a", "b"])

    arguments = set(inspect.signature(dg.asset).parameters) - {"compute_fn", "kwargs"}
    assert arguments - set(taken) - alone <= set(REFUSED_ARGUMENTS)
    for name, reason in REFUSED_ARGUMENTS.items():
        with pytest.raises(InvalidInputError, match=re.escape(f"takes no {name!r}: {reason}")):
            dstl.checkpointed_asset("signature", keys=["id"], **{name: None})
    with pytest.raises(InvalidInputError, match="takes no 'part_def'"):
        dstl.checkpointed_asset("signature", keys=["id"], part_def=DAYS)


def test_the_asset_bears_the_functions_name() -> None:
    """Key, description and group; found by its name; partitions in order depend on the one before them."""
    (spec,) = totals.specs
    assert (spec.key, spec.group_name, spec.description) == (TOTALS, "orders", "Totals per customer.")
    assert {dep.asset_key for dep in spec.deps} == {TOTALS, dg.AssetKey("raw")}
    defs = dg.Definitions(assets=[raw, totals], resources={"changelog": None})
    graph = defs.resolve_asset_graph()
    assert dg.AssetSelection.from_string('key:"orders/totals"').resolve(graph) == {TOTALS}
    named = dstl.checkpointed_asset(dstl.JobAssets("named", state="latest"), keys=["id"])(lambda_of_rows())
    assert named.key == dg.AssetKey(["named", "latest"])
    with pytest.raises(InvalidInputError, match="named/files is the asset of the job's files"):
        dstl.checkpointed_asset("named", keys=["id"], name="files")(lambda_of_rows())


def lambda_of_rows() -> Any:
    def rows() -> pa.Table:
        return pa.table({"id": [1]})

    return rows


def test_an_upstream_asset_is_a_parameter(store: MemoryStore, tmp_path: Path) -> None:
    """It is loaded by its IO manager, in the partition of its mapping."""
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @dstl.checkpointed_asset(
        "lagging",
        keys=["customer"],
        partitions_def=dg.DailyPartitionsDefinition(SECOND, end_date="2024-01-05"),
        ins={"numbers": dg.AssetIn(key="raw", partition_mapping=before)},
    )
    def lagging(numbers: Any) -> pa.Table:
        return pa.table({"customer": ["ada"], "found": [str(numbers)]})

    kept = {"io_manager": dg.FilesystemIOManager(base_dir=str(tmp_path))}
    for day in (FIRST, SECOND):
        assert store.run(raw, totals, partition=day, resources=kept).success
    assert store.run(raw, lagging, partition=SECOND, selection=[lagging], resources=kept).success
    assert store.rows("totals") == [{"customer": "ada", "total": 3}]
    assert store.rows("lagging", job="lagging")[0]["found"] == "[1]"


@pytest.mark.parametrize("form", ["arrow", "pandas", "lazy polars"])
def test_columns_lead_to_those_that_a_rule_names(form: str, store: MemoryStore) -> None:
    """By name, where one asset above has it; `old` and a name of two assets say nothing."""

    @dg.asset
    def orders() -> Any:
        return FRAMES[form](pa.table({"customer": ["ada"], "amount": [1.0], "note": ["a"]}))

    @dg.asset
    def notes() -> Any:
        return FRAMES[form](pa.table({"note": ["b"], "old": [1]}))

    @dstl.checkpointed_asset(
        "lineage",
        keys=["customer"],
        schema="customer STRING, total DOUBLE, note STRING",
        update={"total": "coalesce(old.total, 0) + NEW.amount", "note": "new.note"},
    )
    def totals(orders: Any, notes: Any) -> Any:
        return orders

    kept = {"io_manager": dg.mem_io_manager}
    assert store.run(orders, notes, totals, resources=kept).success
    lineage = store.event(totals.key).metadata["dagster/column_lineage"].value
    assert lineage.deps_by_column == {  # type: ignore[union-attr] # that of its kind
        column: [dg.TableColumnDep(asset_key=orders.key, column_name=name)]
        for column, name in (("customer", "customer"), ("total", "amount"))
    }


def test_its_event_has_the_users_metadata_beside_ours(store: MemoryStore) -> None:
    """Of `add_output_metadata` and of a returned result; each event names its checkpoint."""

    @dstl.checkpointed_asset("told", keys=["id"])
    def told(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        context.add_asset_metadata({"added": 1})
        return dg.MaterializeResult(value=pa.table({"id": [1]}), metadata={"mine": 2}, tags={"my/tag": "x"})

    assert store.run(told).success
    event = store.event(told.key)
    assert event.metadata["mine"].value == 2
    assert str(event.metadata["checkpoint"].value).startswith("[chk-00000001](")
    assert event.metadata["added"].value == 1
    tags = event.tags or {}
    assert (tags["dstl/checkpoint_id"], tags["my/tag"]) == ("1", "x")
    (done,) = store.changelog.coordinator("told").list()
    assert tags["dagster/data_version"] == str(done.attempt)


@pytest.mark.parametrize("how", ["in the result", "beside the rows"])
def test_checks_go_along_with_the_rows(how: str, store: MemoryStore) -> None:
    """Their results are events of the run; a batch that is applied already repeats what they said."""
    made = []

    @dstl.checkpointed_asset(
        "checked",
        keys=["id"],
        partitions_def=dg.StaticPartitionsDefinition(["eu"]),
        check_specs=[dg.AssetCheckSpec("positive", asset=["checked", "checked"])],
    )
    def checked() -> Any:
        made.append(1)
        check = dg.AssetCheckResult(passed=False, metadata={"rows": 1})
        rows = pa.table({"id": [1]})
        if how == "in the result":
            return dg.MaterializeResult(value=rows, check_results=[check])
        return rows, check

    for _ in range(2):
        result = store.run(checked, partition="eu")
        assert result.success
        found = result.get_asset_check_evaluations()
        (evaluation,) = (each for each in found if each.check_name == "positive")
        assert (evaluation.passed, evaluation.metadata["rows"].value) == (False, 1)
    assert made == [1]


def test_a_check_says_what_it_said_of_the_same_batch(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of the last one, whose rows are others; nothing of a batch whose run died before that."""
    places = dg.StaticPartitionsDefinition(["good", "bad", "killed"])

    @dstl.checkpointed_asset(
        "places",
        keys=["place"],
        partitions_def=places,
        check_specs=[dg.AssetCheckSpec("good", asset=["places", "rows"])],
    )
    def rows(context: dg.AssetExecutionContext) -> Any:
        place = context.partition_key
        return pa.table({"place": [place]}), dg.AssetCheckResult(passed=place == "good")

    def run(place: str) -> str:
        found = store.run(rows, partition=place, raise_on_error=False).get_asset_check_evaluations()
        return ", ".join(f"{each.passed} {each.description}" for each in found if each.check_name == "good")

    assert [run("bad"), run("good")] == ["False None", "True None"]
    with monkeypatch.context() as patched:
        patched.setattr(checkpointed_asset, "output_of_state", lambda *_: 1 / 0)
        assert run("killed") == ""
    assert run("bad").startswith("False as evaluated before")
    assert run("good").startswith("True as evaluated before")
    assert run("killed").startswith("False not evaluated")


def test_parameters_are_those_of_an_asset(store: MemoryStore) -> None:
    """The context by any of its names, `ResourceParam`, `Annotated`, config."""

    @dstl.checkpointed_asset("named_so", keys=["id"])
    def named_so(
        _context: dg.OpExecutionContext,
        config: Rate,
        prices: Annotated[Prices, "ours"],
        rates: dg.ResourceParam[dict[str, int]],
        numbers: Annotated[list[int], "a hint"],
    ) -> pa.Table:
        assert isinstance(_context, dg.OpExecutionContext)
        return pa.table({"id": [len(numbers) + prices.of_one + rates["one"] + config.factor]})

    @dg.asset
    def numbers() -> list[int]:
        return [1]

    given = {"rates": dg.ResourceDefinition.hardcoded_resource({"one": 1})}
    config = {"ops": {"named_so__named_so": {"config": {"factor": 10}}}}
    assert store.run(numbers, named_so, resources=given, run_config=config).success
    assert store.rows("named_so", job="named_so") == [{"id": 13}]


CHECKED_HINTS = """
from __future__ import annotations
from typing import TYPE_CHECKING
import pyarrow as pa
import dstl_dagster as dstl
if TYPE_CHECKING:
    import dagster as dg
    from tests.dagster.test_checkpointed_asset import Prices
    from dstl_dagster import CheckpointBatch
    from nowhere import Nothing

@dstl.checkpointed_asset("hinted", keys=["id"])
def hinted(context: dg.AssetExecutionContext, prices: Prices, batch: CheckpointBatch) -> Nothing:
    assert context.asset_key.path == ["hinted", "hinted"]
    return pa.table({"id": [prices.of_one]})
"""


def test_hints_may_be_imported_for_type_checkers_only(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where ruff has moved them: what is not needed is not imported."""
    (tmp_path / "hinted_module.py").write_text(CHECKED_HINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import hinted_module  # type: ignore[import-not-found]

    assert store.run(hinted_module.hinted).success
    assert store.rows("hinted", job="hinted") == [{"id": 1}]


PREFIXED = """
import dagster as dg
import pyarrow as pa
import dstl_dagster as dstl
from types import ModuleType

shop = ModuleType("shop")

@dstl.checkpointed_asset("moved", keys=["id"], operator="rows")
def rows() -> pa.Table:
    return pa.table({"id": [1]})

shop.rows = rows
shop.checks = dstl.build_checkpoint_checks("moved")
specs = dstl.checkpoint_asset_specs(dstl.JobAssets("moved", state="rows", operators=("rows",)))
in_eu = lambda spec: spec.replace_attributes(key=spec.key.with_prefix("eu"))
defs = dg.Definitions(
    assets=[*dg.load_assets_from_modules([shop], key_prefix="eu"), *dg.map_asset_specs(in_eu, specs)],
    asset_checks=dg.load_asset_checks_from_modules([shop], asset_key_prefix="eu"),
    resources={"changelog": dstl.ChangelogStorageResource(uri=dg.EnvVar("DSTL_MOVED"))},
    executor=dg.in_process_executor,
)
"""


def test_a_module_is_loaded_with_a_prefix_and_its_events_move_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that `load_assets_from_modules` or `map_asset_specs` change are those of every event."""
    (tmp_path / "moved.py").write_text(PREFIXED, encoding="utf-8")
    monkeypatch.setenv("DSTL_MOVED", (tmp_path / "store").as_uri())
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    command = ["asset", "materialize", "-f", str(tmp_path / "moved.py"), "--select", 'key:"eu/moved/rows"']
    done = CliRunner().invoke(dagster_command(), command)
    assert done.exit_code == 0, done.output[-3000:]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        last = ("rows", "checkpoints", "rows/rows")
        wanted = {dg.AssetKey(["eu", "moved", *name.split("/")]) for name in last}
        assert set(instance.all_asset_keys()) == wanted
        for key in wanted:
            found = instance.get_latest_materialization_event(key)
            assert found is not None
            assert (found.asset_materialization.tags or {})["dstl/checkpoint_id"] == "1"  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_code_references_lead_to_the_users_line() -> None:
    """And not to the decorator's file."""
    (linked,) = dg.with_source_code_references([totals])
    (spec,) = linked.specs  # type: ignore[union-attr]
    (reference,) = spec.metadata["dagster/code_references"].code_references
    assert reference.file_path == str(sys.modules[__name__].__file__)
    source, line = inspect.getsourcelines(raw.op.compute_fn.decorated_fn)  # type: ignore[union-attr]
    assert reference.line_number == line + len(source) + 2, "the line of the next decorator"


# ---- what it returns ----


def of_polars(table: pa.Table) -> Any:
    return pl.from_arrow(table)


def of_duckdb(table: pa.Table) -> Any:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.from_arrow(table)


FRAMES: dict[str, Any] = {
    "arrow": lambda table: table,
    "reader": lambda table: table.to_reader(),
    "pandas": lambda table: table.to_pandas(),
    "polars": of_polars,
    "lazy polars": lambda table: of_polars(table).lazy(),
    "duckdb": of_duckdb,
}


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("form", FRAMES)
@pytest.mark.parametrize("takes_batch", [False, True])
def test_frames_of_any_library(form: str, merged: bool, takes_batch: bool, store: MemoryStore) -> None:
    """The same as of the IO manager, with and without `update`, returned or written by `batch`."""
    made = FRAMES[form](pa.table({"customer": ["ada", "bob"], "amount": [2, 3]}))
    more = MERGE if merged else {"keys": ["customer"]}

    def plain() -> Any:
        return made

    def with_batch(batch: Any) -> Any:
        if merged:
            batch.merge_state(made, operator="by_batch", **MERGE)
        else:
            batch.write_state(made, operator="by_batch", keys=["customer"])

    asset = (
        dstl.checkpointed_asset("orders", name="by_batch")(with_batch)
        if takes_batch
        else dstl.checkpointed_asset("orders", operator="by_batch", **more)(plain)
    )
    assert store.run(asset).success
    column = "total" if merged else "amount"
    assert sorted(store.rows("by_batch"), key=str) == [
        {"customer": "ada", column: 2},
        {"customer": "bob", column: 3},
    ]


@pytest.mark.parametrize(
    ("keys", "result", "message"),
    [
        (["id"], None, "returned None: return its rows, for a partition without any an empty frame"),
        (["id"], [1], "list"),
        (["id"], (1, 2), "returned 2 values: return one frame"),
        (["id"], dg.MaterializeResult(metadata={"a": 1}), "returned None: return its rows"),
        (["id"], dg.MaterializeResult(data_version=dg.DataVersion("1")), "leave `data_version` out"),
        ([], [1], "returned list: name `keys`, or write it by `batch`"),
    ],
)
def test_a_result_without_rows_is_refused(
    keys: list[str], result: Any, message: str, store: MemoryStore
) -> None:
    """The attempt is aborted: the next run begins anew."""

    def with_batch(batch: Any) -> Any:
        del batch
        return result

    def wrong() -> Any:
        return result

    asset = dstl.checkpointed_asset("wrong", keys=keys, retry_policy=ONCE)(wrong if keys else with_batch)
    with pytest.raises(dg.Failure, match=re.escape(message)):
        store.run(asset)
    assert store.changelog.coordinator("wrong").timeline.tail().open_attempt is None


def plain(rows: Any) -> Any:
    return rows


async def waits(rows: Any) -> Any:
    return rows


def yields(rows: Any) -> Any:
    yield rows


def stars(*rows: Any) -> Any:
    return rows


def hinted(rows: "Unknown") -> Any:  # type: ignore[name-defined] # noqa: F821
    return rows


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (plain, {}, "plain: give `keys`, or take `batch` and write by it"),
        (plain, {"keys": "customer"}, "expected names in a list, such as ['customer']"),
        (plain, {"update": {}}, "`update`, `schema` and `delete` need `keys`"),
        (plain, {"keys": ["a"], "update": {}}, "`update` and `schema`, the state's columns, belong together"),
        (
            plain,
            {"keys": ["a"], "schema": "a INT"},
            "`update` and `schema`, the state's columns, belong together",
        ),
        (plain, {"keys": ["a"], "delete": 3}, "`delete` names a boolean column"),
        (
            plain,
            {"keys": ["a"], "changelog": "file:///x"},
            "changelog is a ChangelogStorageResource(uri=...), not",
        ),
        (
            plain,
            {"keys": ["a"], "changelog": dstl.ChangelogStorageResource(uri="/data")},
            "did you mean the folder file:///data?",
        ),
        (plain, {"keys": ["a"], "deps": "raw"}, "deps: expected assets in a list, such as ['raw']"),
        (
            plain,
            {"keys": ["a"], "partitions_def": DAYS, "deps": [dg.AssetDep(["orders", "plain"])]},
            "orders/plain depends on its own previous partition already: leave it out",
        ),
        (plain, {"keys": ["a"], "key": "a", "name": "b"}, "`key` is the whole key"),
        (
            plain,
            {"keys": ["a"], "partitions_def": DAYS, "backfill_policy": dg.BackfillPolicy.single_run()},
            "a checkpoint holds one partition",
        ),
        (
            plain,
            {"keys": ["a"], "auto_materialize_policy": None},
            "Dagster's word for it is `automation_condition`",
        ),
        (waits, {"keys": ["a"]}, "waits() is async"),
        (yields, {"keys": ["a"]}, "yields() yields: return one frame"),
        (stars, {"keys": ["a"]}, "stars() takes *rows"),
        (hinted, {"keys": ["a"]}, "parameter 'rows' of hinted(): its hint 'Unknown' stands for nothing"),
        (int, {"keys": ["a"]}, "decorates a function"),
    ],
)
def test_what_cannot_work_is_refused(function: Any, arguments: dict[str, Any], message: str) -> None:
    """Where the decorator stands, not in the run."""
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        dstl.checkpointed_asset("orders", **arguments)(function)


def test_a_decorator_without_its_job_is_refused() -> None:
    """`@checkpointed_asset` without parentheses."""
    with pytest.raises(InvalidInputError, match=re.escape("write @checkpointed_asset('orders', keys=[...])")):
        dstl.checkpointed_asset(plain)  # type: ignore[arg-type]


# ---- the state as an input ----


@pytest.mark.parametrize("hint", [pa.Table, pd.DataFrame, pl.DataFrame, dstl.StateScan])
def test_the_state_is_an_input_in_the_form_of_its_hint(hint: Any, store: MemoryStore) -> None:
    """Of a plain asset, at the checkpoint of the partition of its mapping, also after later ones."""
    found: dict[str, Any] = {}

    def report(context: dg.AssetExecutionContext, totals: Any) -> None:
        found[context.partition_key] = totals

    report.__annotations__["totals"] = hint
    asset = dg.asset(partitions_def=DAYS, key_prefix="shop", ins={"totals": dg.AssetIn(key_prefix="orders")})(
        report
    )
    kept = {"io_manager": dg.InMemoryIOManager()}
    for day in (FIRST, SECOND):
        assert store.run(raw, totals, partition=day, resources=kept).success
    for day in (SECOND, FIRST):
        assert store.run(asset, raw, totals, partition=day, selection=[asset], resources=kept).success
    assert {day: rows_of(each) for day, each in found.items()} == {
        FIRST: [{"customer": "ada", "total": 1}],
        SECOND: [{"customer": "ada", "total": 3}],
    }
    assert all(isinstance(each, hint) for each in found.values())
    defs = dg.Definitions(assets=[raw, totals], resources={"changelog": store.changelog})
    loaded = defs.load_asset_value(TOTALS, python_type=hint, instance=store.instance, partition_key=FIRST)
    assert rows_of(loaded) == [{"customer": "ada", "total": 1}]


def test_the_state_of_a_named_source_is_an_input(store: MemoryStore) -> None:
    """At the partition's checkpoint, also of the asset itself."""
    found: list[Any] = []
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    own = {"own": dg.AssetIn(["calendar", "totals"], partition_mapping=before)}

    @dstl.checkpointed_asset(
        "calendar", name="totals", keys=["day"], source="days", partitions_def=DAYS, ins=own
    )
    def days(context: dg.AssetExecutionContext, own: pa.Table | None) -> pa.Table:
        found.append(own and own.num_rows)
        return pa.table({"day": [context.partition_key]})

    @dg.asset(partitions_def=DAYS, ins={"days": dg.AssetIn(["calendar", "totals"])})
    def below(days: pa.Table) -> None:
        found.append(days.num_rows)

    for day in (FIRST, SECOND):
        assert store.run(days, below, partition=day, resources={"io_manager": dg.InMemoryIOManager()}).success
    assert found == [None, 1, 1, 2]


def rows_of(frame: Any) -> list[dict[str, Any]]:
    if isinstance(frame, dstl.StateScan):
        frame = frame.to_arrow()
    table = frame if isinstance(frame, pa.Table) else None
    if table is None:
        table = frame.to_arrow() if isinstance(frame, pl.DataFrame) else pa.Table.from_pandas(frame)
    return table.to_pylist()


# ---- runs ----


def test_two_assets_of_one_job_stand_side_by_side(store: MemoryStore) -> None:
    """Each is a source of its own; the job's other assets show the checkpoints of both."""

    def made(name: str) -> dg.AssetsDefinition:
        return dstl.checkpointed_asset("pair", keys=["id"], name=name, operator=name)(lambda_of_rows())

    first, second = made("first"), made("second")
    for _ in range(2):
        assert store.run(first, second).success
    *_, newest = store.changelog.coordinator("pair").list()
    assert set(newest.manifest.sources) == {"asset:pair/first", "asset:pair/second"}
    shown = {(store.event(each.key).tags or {})["dstl/checkpoint_id"] for each in (first, second)}
    assert shown == {"3", "4"}


@pytest.mark.parametrize("how", ["function", "ops", "body"])
def test_without_partitions_each_run_is_a_batch_beside_assets_with_them(how: str, store: MemoryStore) -> None:
    """The partition, or the range of them, of a run is that of the other assets in it."""
    number = iter(range(9))

    @dg.asset(partitions_def=DAYS)
    def day() -> None: ...

    def write(context: Any, changelog: Any) -> Any:
        with changelog.checkpoint(context, "newest") as batch:
            batch.write_state(pa.table({"id": [1], "run": [next(number)]}), operator="rows", keys=["id"])
        return batch.reference

    if how == "function":

        @dstl.checkpointed_asset("newest", keys=["id"], operator="rows", deps=[day])
        def newest() -> pa.Table:
            return pa.table({"id": [1], "run": [next(number)]})

    elif how == "ops":

        @dg.op(out=dg.Out(dict))
        def update(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> dict:  # type: ignore[type-arg]
            return write(context, changelog)  # type: ignore[no-any-return]

        newest = dstl.build_state_asset("newest", update, deps=[day])
    else:

        @dg.asset(deps=[day])
        def newest(context: dg.AssetExecutionContext, changelog: dstl.ChangelogStorageResource) -> None:
            write(context, changelog)

    for _ in range(2):
        assert store.run(day, newest, partition=FIRST).success
    both = {"dagster/asset_partition_range_start": FIRST, "dagster/asset_partition_range_end": SECOND}
    assert store.run(day, newest, tags=both).success
    assert store.rows("rows", job="newest") == [{"id": 1, "run": 2}]
    assert store.event(newest.key).partition is None


def test_an_asset_below_another_state_completes_its_own_checkpoint(store: MemoryStore) -> None:
    """Steps 4 to 7 of an asset downstream in the same run are those of another batch."""
    upper = dstl.checkpointed_asset("upper", keys=["id"])(lambda_of_rows())

    def of_op(job: str) -> dg.OpDefinition:
        @dg.op(name=f"update_{job}", out=dg.Out(dict))
        def update(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> dict:  # type: ignore[type-arg]
            with changelog.checkpoint(context, job) as batch:
                batch.write_state(pa.table({"id": [2]}), operator="rows", keys=["id"])
            return batch.reference

        return update

    lower = dstl.build_state_asset("lower", of_op("lower"), deps=[upper])

    @dg.asset
    def plain_upper(context: dg.AssetExecutionContext, changelog: dstl.ChangelogStorageResource) -> None:
        with changelog.checkpoint(context, "plain_upper") as batch:
            batch.write_state(pa.table({"id": [3]}), operator="plain", keys=["id"])

    below = dstl.build_state_asset("below", of_op("below"), deps=[plain_upper])
    assert store.run(upper, lower, plain_upper, below).success
    assert store.rows("rows", job="upper") == [{"id": 1}]
    assert store.rows("plain", job="plain_upper") == [{"id": 3}]
    assert store.rows("rows", job="lower") == store.rows("rows", job="below") == [{"id": 2}]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_days_are_merged_in_order_each_once(strict_gcs: GCSServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a bucket: a day that is run again is not applied again, and its function is not called."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", strict_gcs.url)
    strict_gcs.create_bucket("decorated")
    uri = "gs://decorated/state"

    @dstl.checkpointed_asset("days_of_spark", partitions_def=DAYS, source="inbox", **MERGE)
    def merged(context: Any, batch: Any, config: Rate, spark: dstl.SparkSessionResource) -> Any:
        first = context.partition_key == FIRST
        rows = "('ada', 5L), ('bob', 1L)" if first else "('ada', 2L)"
        orders = spark.spark_session.sql(f"SELECT * FROM VALUES {rows} AS t(customer, amount)")
        batch.write_files(orders, f"reports/{context.partition_key}.jsonl")
        return orders.selectExpr("customer", f"amount * {config.factor} AS amount")

    config = {"ops": {"days_of_spark__merged": {"config": {"factor": 10}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        runs = MemoryStore(uri, instance)
        spark = {"spark": dstl.SparkSessionResource()}
        for day in (FIRST, FIRST, SECOND):
            assert runs.run(merged, partition=day, run_config=config, resources=spark).success
        assert len(instance.fetch_observations(merged.key, limit=5).records) == 1
    coordinator = CheckpointCoordinator("days_of_spark", open_store(uri))
    positions = [each.positions for each in coordinator.list()]
    assert positions == [{"inbox": f"2024-01-0{day}T00:00:00+00:00"} for day in (2, 3)]
    newest = coordinator.latest()
    assert newest is not None
    assert newest.manifest.operators["merged"].report.upserts == 1
    assert {stat.name for stat in open_store(uri).list("reports/")} == {
        "reports/2024-01-01.jsonl",
        "reports/2024-01-02.jsonl",
    }


@pytest.mark.spark
def test_a_state_of_spark_is_an_input_of_spark(spark: Any, store: MemoryStore, tmp_path: Path) -> None:
    """Rows replace those of their keys; the reader has the resource by which the asset itself uses Spark."""
    del spark
    counted = []

    @dstl.checkpointed_asset("names", keys=["id"], delete="gone")
    def names(spark: dstl.SparkSessionResource) -> Any:
        return spark.spark_session.sql("SELECT 1 AS id, 'ada' AS name, false AS gone")

    from pyspark.sql import DataFrame

    def below(names: Any) -> None:
        counted.append(names.count())

    below.__annotations__["names"] = DataFrame
    asset = dg.asset(ins={"names": dg.AssetIn(key_prefix="names")})(below)
    resources = {"spark": dstl.SparkSessionResource(), "io_manager": dg.mem_io_manager}
    store.changelog = dstl.ChangelogStorageResource(uri=tmp_path.as_uri())
    assert store.run(names, asset, resources=resources).success
    assert counted == [1]
