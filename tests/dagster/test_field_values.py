"""What Python users can say, YAML users can: each argument is a field, or is left out for a reason."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import scaffold_defs_sandbox

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.components import CheckpointedAssetComponent, CheckpointLineageComponent
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.yaml.field_values import (
    DownstreamFields,
    PartitionsFields,
    RetryFields,
    TtlFields,
    condition_at,
)
from dstl_dagster.settings import StateTtlConfig
from dstl_dagster.spark import CheckpointBatch
from dstl_dagster.storage import open_store
from tests.dagster.days import write_change

pytestmark = pytest.mark.dagster

DAILY = {"type": "daily", "start_date": "2024-01-01"}

# Why an argument is no field.
OWN_NAME = "no field: the component names what it makes by the job"
OWN_STORE = "store"
TEST_CLOCK = "no field: for tests"
MADE = "no field: the component makes it and hands it on"

JOB = {"name": OWN_NAME, "changelog": OWN_STORE, "retry_policy": "retry_policy"}
SCHEDULE = {"cron_schedule": "schedules"}
FIELDS: dict[Any, dict[str, str]] = {
    dstl.JobAssets: {name: name for name in ("job", "state", "files", "checkpoints", "operators", "sample")},
    dstl.ChangelogStorageResource: {
        "uri": "store",
        "options": "options",
        "gcs": "gcs",
    },
    dstl.checkpoint_asset_specs: {
        "job": "job",
        "freshness": "freshness_hours",
        **{
            name: name
            for name in ("partitions_def", "owners", "kinds", "deps", "file_columns", "group_name", "tags")
        },
    },
    dstl.build_checkpoint_sensor: {
        "name": OWN_NAME,
        "changelog": OWN_STORE,
        "clock": TEST_CLOCK,
        "commit_job": "commit",
        **{
            name: name
            for name in (
                "job",
                "partitions_def",
                "patience",
                "minimum_interval_seconds",
                "default_status",
            )
        },
    },
    dstl.build_abort_sensors: {
        "job": "abort",
        "changelog": OWN_STORE,
        "minimum_interval_seconds": "minimum_interval_seconds",
        "default_status": "default_status",
    },
    dstl.build_downstream_sensor: {
        "job": "job",
        "downstream": "downstream.job",
        "partitions_def": "downstream.partitions",
        "run_config": "downstream.run_config",
        "name": "downstream.name",
        "changelog": OWN_STORE,
        "max_runs_per_tick": "downstream.max_runs_per_tick",
        "minimum_interval_seconds": "minimum_interval_seconds",
        "default_status": "default_status",
    },
    dstl.build_checkpoint_checks: {
        "job": "job",
        "orphan_budget_bytes": "orphan_budget",
        "max_age": "freshness_hours",
        "budget": "budget",
        "data": "data",
        "partitions_def": "partitions_def",
        "changelog": OWN_STORE,
        "clock": TEST_CLOCK,
    },
    dstl.build_cleanup_job: {"job": "job", **JOB},
    dstl.build_cleanup_schedule: {"cleanup_job": MADE, **SCHEDULE},
    dstl.build_maintenance: {
        "job": "job",
        "work": "schedules",
        "when": "schedules",
        "partitions_def": "partitions_def",
        "day_job": "no field: `correct` runs a job of the user's with its resources",
        **JOB,
    },
}
ASSET_FIELDS: dict[Any, dict[str, str]] = {
    dstl.checkpointed_asset: {
        "schema": "state_schema",  # pydantic has a method of the shorter name
        "asset_arguments": "no field: those of Dagster's asset, of which each has one or a reason",
        "changelog": OWN_STORE,
        **{
            name: name
            for name in (
                "job",
                "keys",
                "update",
                "delete",
                "operator",
                "max_parallelism",
                "ttl",
                "source",
            )
        },
    },
    StateTtlConfig.event_time: {
        "column": "ttl.column",
        "ttl": "ttl.ttl",
        "watermark": "no field: of one batch",
    },
    StateTtlConfig.processing_time: {"column": "ttl.column", "ttl": "ttl.ttl"},
}
NOT_IN_YAML = {
    "build_checkpoint_job": "a job without assets, around an op in Python",
    "build_state_asset": "an asset around an op in Python; from YAML it is around a function",
    "build_step_executor": "of a code location, or of a job in Python: a component has neither",
}


@pytest.mark.parametrize(
    ("component", "fields"),
    [(CheckpointLineageComponent, FIELDS), (CheckpointedAssetComponent, FIELDS | ASSET_FIELDS)],
)
def test_each_argument_is_a_field_or_is_left_out_for_a_reason(
    component: type[dg.Model], fields: dict[Any, dict[str, str]]
) -> None:
    """A new argument of a builder fails here until somebody decides what YAML users get of it."""
    known = set(component.model_fields)
    known |= {f"downstream.{name}" for name in DownstreamFields.model_fields}
    known |= {f"ttl.{name}" for name in TtlFields.model_fields}
    for builder, named in fields.items():
        assert set(inspect.signature(builder).parameters) == set(named), builder
        places = {place for place in named.values() if not place.startswith("no field: ")}
        assert places <= known, builder
    told = {place.partition(".")[0] for named in fields.values() for place in named.values()}
    of_dagster = set(inspect.signature(dg.asset).parameters)
    assert set(component.model_fields) - told - of_dagster <= {"function", "op"}, "of our own"


def test_each_builder_is_in_a_component_or_is_left_out_for_a_reason() -> None:
    """A new one fails here."""
    built = {each.__name__ for each in FIELDS | ASSET_FIELDS}
    named = {
        name for name in dstl.__all__ if name.startswith("build_") or name.endswith(("_specs", "_asset"))
    }
    assert named - built == set(NOT_IN_YAML)


def built(component: type[CheckpointLineageComponent], **fields: Any) -> dg.RepositoryDefinition:
    """What a component makes, beside a job of the user's."""

    @dg.op
    def send() -> None:
        """Nothing."""

    @dg.job
    def mail() -> None:
        send()

    component_defs = component(job="orders", store="file:///not/there", **fields).build_defs(None)  # type: ignore[arg-type] # it asks nothing of it
    resources = {"spark": dstl.SparkSessionResource()}
    mine = dg.Definitions(jobs=[mail], resources=resources)
    return dg.Definitions.merge(component_defs, mine).get_repository_def()


def test_the_fields_arrive() -> None:
    """Each where its builder puts it."""
    repository = built(
        CheckpointLineageComponent,
        deps=["raw/orders"],
        partitions_def=DAILY,
        group_name="shop",
        tags={"tier": "gold"},
        state="totals",
        file_columns={"customer": "string"},
        default_status="RUNNING",
        minimum_interval_seconds=7,
        abort=True,
        downstream=[{"job": "mail", "name": "mails"}],
        schedules={"cleanup": "5 * * * *"},
        retry_policy={"max_retries": 9, "delay": 2, "backoff": "LINEAR"},
    )
    graph = repository.asset_graph
    files = graph.get(dg.AssetKey(["orders", "files"]))
    assert isinstance(files.partitions_def, dg.DailyPartitionsDefinition)
    assert (files.group_name, files.tags["tier"]) == ("shop", "gold")
    assert [column.name for column in files.metadata["dagster/column_schema"].columns] == ["customer"]
    assert graph.has(dg.AssetKey(["orders", "totals"]))
    assert {sensor.name for sensor in repository.sensor_defs} == {
        "orders_checkpoints",
        "orders_abort_canceled",
        "orders_abort_failed",
        "mails",
    }
    for sensor in repository.sensor_defs:
        assert (sensor.default_status.value, sensor.minimum_interval_seconds) == ("RUNNING", 7)
    crons = {each.name: each.cron_schedule for each in repository.schedule_defs}
    assert (crons["orders_cleanup_schedule"], crons["orders_checks_schedule"]) == ("5 * * * *", "53 * * * *")
    for name in ("commit", "cleanup", "materialize", "verify", "restore"):
        for node in repository.get_job(f"orders_{name}").nodes:
            assert node.definition.retry_policy == dg.RetryPolicy(9, 2, dg.Backoff.LINEAR), name


def test_the_fields_of_an_asset_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those of its checkpoints; its resource is its own component's."""

    def totals(spark: dstl.SparkSessionResource) -> None:
        """Totals of customers."""

    monkeypatch.setitem(sys.modules, "shop.orders", SimpleNamespace(totals=totals))
    repository = built(
        CheckpointedAssetComponent,
        function="shop.orders:totals",
        keys=["customer"],
        state_schema="customer STRING, total DOUBLE, seen TIMESTAMP",
        update={"total": "new.total"},
        ttl={"column": "seen", "ttl": "30 d"},
        partitions_def=DAILY,
        deps=["raw/orders"],
        owners=["team:data"],
        tags={"tier": 1},
        metadata={"page": "wiki"},
        code_version="7",
        automation_condition="0 6 * * *",
    )
    state = repository.asset_graph.get(dg.AssetKey(["orders", "totals"]))
    assert (state.description, state.owners, state.code_version) == (
        "Totals of customers.",
        ["team:data"],
        "7",
    )
    assert (state.tags["tier"], state.metadata["page"]) == ("1", "wiki")
    assert state.automation_condition == condition_at("0 6 * * *", state.key)
    assert state.parent_keys == {dg.AssetKey(["raw", "orders"]), state.key}
    assert repository.asset_graph.get(dg.AssetKey(["orders", "files"])).parent_keys == {state.key}
    assert {"orders_verify", "orders_restore"} <= set(repository.job_names)


def test_two_assets_in_two_stores_run_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps of each use its own component's store, whatever the project calls `changelog`."""

    def kept(batch: CheckpointBatch) -> None:
        batch.add(write_change(open_store(batch.attempt.store_uri), batch.attempt, b"ada"))

    monkeypatch.setitem(sys.modules, "shop.orders", SimpleNamespace(kept=kept))
    uris = {job: (tmp_path / job).as_uri() for job in ("orders", "clicks")}
    defs = dg.Definitions.merge(
        dg.Definitions(resources={"changelog": dstl.ChangelogStorageResource(uri="memory://another")}),
        *(
            CheckpointedAssetComponent(job=job, store=uri, function="shop.orders:kept").build_defs(None)  # type: ignore[arg-type] # it asks nothing of it
            for job, uri in uris.items()
        ),
    )
    everything = defs.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        chosen = [dg.AssetKey([job, "kept"]) for job in uris]
        assert everything.execute_in_process(instance=instance, asset_selection=chosen).success
    for job, uri in uris.items():
        assert dstl.read_state(uri, job, "totals").to_arrow().to_pylist() == [{"key": "ada", "total": 1}]
        (done,) = CheckpointCoordinator(job, open_store(uri)).list()
        assert done.committed


PLAIN = "tests.dagster.test_field_values:rows"
YAML = """\
job: orders
store: file:///not/there
function: shop.orders:kept
keys: [customer]
ttl: {column: seen, ttl: 30 d}
partitions_def: {type: static, partition_keys: [1, de]}
downstream:
  - {job: mail, partitions: batch}
retry_policy: {max_retries: 1}
schedules: {verify: 0 5 * * *}
tags: {tier: 1}
metadata: {page: wiki}
patience: 10 min
"""


@pytest.mark.parametrize(
    "described",
    [
        CheckpointLineageComponent,
        CheckpointedAssetComponent,
        PartitionsFields,
        RetryFields,
        TtlFields,
        DownstreamFields,
        dstl.ChangelogStorageResource,
        dstl.RecoverableWriterResource,
        dstl.SparkSessionResource,
    ],
)
def test_each_field_has_a_description(described: Any) -> None:
    """Dagster's page, and the schema that an editor reads, show it."""
    assert [name for name, field in described.model_fields.items() if not field.description] == []


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster's own call of pydantic
def test_fields_of_fields_are_read_from_yaml() -> None:
    """By Dagster's own reader, which refuses what it does not know."""
    read = CheckpointedAssetComponent.resolve_from_yaml(YAML)
    assert isinstance(read.partitions_def, PartitionsFields)
    assert read.partitions_def.definition() == dg.StaticPartitionsDefinition(["1", "de"])
    assert read.ttl is not None
    assert read.ttl.config() == StateTtlConfig.event_time("seen", "30 d")
    assert [(each.job, each.partitions) for each in read.downstream] == [("mail", "batch")]
    assert (read.retry_policy.max_retries, read.schedules) == (1, {"verify": "0 5 * * *"})  # type: ignore[union-attr]
    with pytest.raises(Exception, match="partition_def"):
        CheckpointedAssetComponent.resolve_from_yaml(YAML.replace("partitions_def", "partition_def"))


def rows() -> Any:
    """Of a partition."""


YAML_OF_TEMPLATES = """\
job: templates
store: file:///not/there
function: "{{ rows }}"
keys: [customer]
state_schema: customer STRING, n INT
update: {n: "1"}
code_version: "7"
max_parallelism: "{{ number }}"
minimum_interval_seconds: "{{ number }}"
automation_condition: "{{ condition }}"
partitions_def: "{{ days }}"
op: {tags: {dagster-k8s/config: {cpu: 1}}, pool: one}
"""


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster's own call of pydantic
def test_templates_give_objects_and_numbers() -> None:
    """A function, a condition, a partitions definition; and text from the environment for a number."""
    days = dg.DailyPartitionsDefinition("2024-01-01")
    given = {"rows": rows, "number": "16", "condition": dg.AutomationCondition.eager(), "days": days}
    context = dg.ResolutionContext.default().with_scope(**given)
    model = CheckpointedAssetComponent.model()(**yaml.safe_load(YAML_OF_TEMPLATES))
    component = CheckpointedAssetComponent.resolve_from_model(context, model)
    repository = component.build_defs(None).get_repository_def()  # type: ignore[arg-type] # it asks nothing of it
    state = repository.asset_graph.get(dg.AssetKey(["templates", "rows"]))
    assert (state.partitions_def, state.code_version, state.pools) == (days, "7", {"one"})
    assert state.automation_condition == dg.AutomationCondition.eager()
    assert repository.assets_defs_by_key[state.key].op.tags["dagster-k8s/config"] == '{"cpu": 1}'


TEXT = """\
job: "'x'"
store: file:///not/there
function: .rows:rows
keys: ["1.0"]
update: {since: "'2024-10-11'", status: "'new.status'"}
delete: "(true)"
tags: {release: "1.10"}
metadata: {release: "1.10"}
description: "1.10"
code_version: "7.10"
partitions_def: {type: static, partition_keys: ["1.10", "1_0", "0x10"]}
op: {tags: {release: "1.10"}}
downstream: [{job: "1.0"}]
"""


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster's own call of pydantic
def test_text_is_as_it_is_written() -> None:
    """Also where Python would read a literal: SQL in quotes, keys and releases that look like numbers."""
    read, written = CheckpointedAssetComponent.resolve_from_yaml(TEXT), yaml.safe_load(TEXT)
    assert isinstance(read.partitions_def, PartitionsFields)
    assert list(read.partitions_def.definition().get_partition_keys()) == ["1.10", "1_0", "0x10"]
    assert (read.op.tags, read.downstream[0].job) == ({"release": "1.10"}, "1.0")  # type: ignore[union-attr]
    for name in written.keys() - {"partitions_def", "op", "downstream"}:
        assert getattr(read, name) == written[name], name


def test_a_mistake_names_its_file(tmp_path: Path) -> None:
    """As a project loads it."""
    context: Any = SimpleNamespace(path=tmp_path / "defs.yaml")
    component = CheckpointLineageComponent(job="orders", store="file:///not/there", patience="soon")
    with pytest.raises(InvalidInputError, match=rf"^{re.escape(str(context.path))}: patience"):
        component.build_defs(context)


def test_a_ttl_in_yaml_is_one_of_python() -> None:
    """By event time, or by processing time."""
    fields = {"column": "seen", "ttl": "12 h"}
    assert TtlFields(**fields).config() == StateTtlConfig.event_time("seen", timedelta(hours=12))  # type: ignore[arg-type]
    processing = TtlFields(**fields, processing_time=True).config()  # type: ignore[arg-type]
    assert processing == StateTtlConfig.processing_time("seen", "12 h")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"partitions_def": {"type": "daily"}}, "daily partitions need a start_date"),
        ({"partitions_def": {"type": "yearly"}}, "type is one of hourly, .* not 'yearly'"),
        ({"partitions_def": "daily"}, "'daily' is neither module:name nor fields"),
        ({"downstream": [{"job": "mail", "partitions": "day"}]}, "checkpoint or batch, not 'day'"),
        ({"retry_policy": {"max_retries": 1, "delay": 1, "jitter": "some"}}, "retry_policy: 'some' is not"),
        ({"retry_policy": {"max_retries": 1, "jitter": "FULL"}}, "retry_policy: "),
        ({"partitions_def": {"type": "static"}}, "static partitions have partition_keys"),
        ({"partitions_def": {**DAILY, "start_date": "soon"}}, "make no daily partitions: a date is such as"),
        ({"partitions_def": {**DAILY, "day_offset": 1}}, "daily partitions .* not start_date, day_offset"),
        ({"partitions_def": "json:JSONDecoder"}, "partitions_def: .* name a PartitionsDefinition"),
        ({"partitions_def": "nowhere:DAYS"}, "partitions_def: .* write module:name"),
        ({"downstream": [{"job": "mail", "partitions": "batch"}]}, "mail: .* need the field partitions_def"),
        ({"downstream": [{"job": "mail", "run_config": "nowhere:f"}]}, "run_config: .* write module:name"),
        ({"patience": "soon"}, "patience: "),
        ({"orphan_budget": "much"}, "orphan_budget: "),
        ({"schedules": {"clean": "5 * * * *"}}, "schedules"),
        ({"retry_policy": {"max_retries": -1}}, "max_retries: -1 cannot be used: expected 0 or more"),
        ({"minimum_interval_seconds": True}, "minimum_interval_seconds: True cannot be used"),
    ],
)
def test_a_mistake_names_its_field(fields: dict[str, Any], said: str) -> None:
    """Pydantic's own refusals do, too."""
    with pytest.raises((InvalidInputError, ValueError), match=said):
        built(CheckpointLineageComponent, **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"function": "nowhere:rows"}, "function: .* write module:name"),
        ({"function": "json:__name__", "keys": ["k"]}, "function: .* name a function"),
        ({"function": "json:dumps"}, "give `keys`, or take `batch`"),
        (
            {"function": "tests.dagster.days:by_region", "keys": ["k"], "ttl": {"column": "a", "ttl": "x"}},
            "ttl",
        ),
        ({"function": "json:dumps", "automation_condition": "json:dumps"}, "automation_condition: "),
        ({"function": "json:dumps", "automation_condition": "eagerly"}, "write eager, on_missing, a cron"),
        ({"function": "json:dumps", "automation_condition": "@dayly"}, "'@dayly' is no cron schedule"),
        ({"function": "json"}, "function: 'json' names nothing: write module:name"),
        ({"function": "json:rows"}, "function: module json has no 'rows'"),
        (
            {"function": "tests.dagster.fails:rows"},
            "module tests.dagster.fails fails .* ValueError: a bad rate",
        ),
        (
            {"function": PLAIN, "keys": ["k"], "update": {"n": 1}},
            "`update` and `schema`, the state's columns, belong together",
        ),
        (
            {"function": PLAIN, "keys": ["k"], "max_parallelism": "many"},
            "max_parallelism: 'many' cannot be used: expected a whole number",
        ),
        ({"function": PLAIN, "keys": ["k"], "op": {"name": "x"}}, "op: has `tags` and a `pool`"),
    ],
)
def test_a_mistake_of_an_asset_names_its_field(fields: dict[str, Any], said: str) -> None:
    """As the decorator says it, where that finds it."""
    with pytest.raises(InvalidInputError, match=said):
        built(CheckpointedAssetComponent, **fields)


ATTRIBUTES = """\
type: dstl_dagster.components.CheckpointedAssetComponent
attributes:
  job: orders
  store: file:///not/there
  function: tests.dagster.test_field_values:rows
  keys: [customer]
  state_schema: customer STRING, n INT, d DECIMAL(3,1), `a, b` MAP<INT, INT> COMMENT 'c, d', seen DATE
  update: {n: "coalesce(old.n, 0) + 1", d: "old.`a, b`[1]", seen: "'(' || old_.x /* it's */ || r'\\\\' --'"}
"""
"""What a project loads. A field more is in line 9."""


def loaded(folder: Path, text: str | None, files: Mapping[str, str] = MappingProxyType({})) -> dg.Definitions:
    """As `dg check defs` loads it, with `files` in the folder of its definitions."""
    (folder / "pyproject.toml").write_text(
        "[tool.dg]\ndirectory_type = 'project'\n[tool.dg.project]\nroot_module = 'of_a_test'\n"
    )
    written = dict(files) if text is None else {"orders/defs.yaml": text, **files}
    for name, content in written.items():
        path = folder / "src/of_a_test/defs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for package in (folder / "src/of_a_test", folder / "src/of_a_test/defs"):
        (package / "__init__.py").write_text("")
    return dg.load_from_defs_folder(path_within_project=folder / "src/of_a_test")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty one, whose package is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path / "src")
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "of_a_test"]:
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore")  # Dagster's own, of its loader
@pytest.mark.parametrize("rule", ["old.`a, b`[1]", "CASE WHEN new.x = ''-- then\n THEN 1 END"])
def test_what_spark_would_take_is_loaded(rule: str, project: Path) -> None:
    """Commas in brackets and quotes, brackets in quotes, a type with arguments, a comment."""
    defs = loaded(project, ATTRIBUTES.replace("old.`a, b`[1]", rule.replace("\n", "\\n")))
    assert dg.AssetKey(["orders", "rows"]) in {spec.key for spec in defs.resolve_all_asset_specs()}


@pytest.mark.filterwarnings("ignore")  # Dagster's own, of its loader
def test_fields_and_templates_of_a_project_arrive(project: Path) -> None:
    """What an asset shows, and a condition by the template that Dagster's pages print."""
    fields = """\
  kinds: [snowflake, dbt]
  tags: {foo: bar}
  description: Of customers.
  deps: [customers]
  automation_condition: "{{ automation_condition.eager() }}"
"""
    defs = loaded(project, ATTRIBUTES + fields)
    state = defs.resolve_asset_graph().get(dg.AssetKey(["orders", "rows"]))
    assert state.kinds >= {"snowflake", "dbt"}
    assert (state.tags["foo"], state.description) == ("bar", "Of customers.")
    assert state.parent_keys == {dg.AssetKey("customers")}
    assert state.automation_condition == dg.AutomationCondition.eager()


@pytest.mark.filterwarnings("ignore")  # Dagster's own, of its loader
@pytest.mark.parametrize("component", [CheckpointLineageComponent, CheckpointedAssetComponent])
def test_a_scaffold_without_its_job_is_refused(component: type[dg.Component]) -> None:
    """By Dagster, which names what it needs: there is no store that anybody means."""
    needed = pytest.raises(ValueError, match=r"job\n  Field required(.|\n)*store\n  Field required")
    with needed, scaffold_defs_sandbox(component_cls=component):
        pass


@pytest.mark.filterwarnings("ignore")  # Dagster's own, of its loader
@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        (
            "",
            "  minimum_interval_seconds: '{{ env.NOT_SET }}'",
            9,
            "a template gave nothing, .* example, 30",
        ),
        ("", "  minimum_interval_seconds: [5]", 9, r"minimum_interval_seconds: \[5\] cannot be used"),
        ("", "  max_parallelism: many", 9, "max_parallelism: 'many' cannot be used: expected a whole number"),
        ("", "  max_parallelism: 99999", 9, "max_parallelism: .*from 1 to 32768"),
        ("", "  freshness_hours: .inf", 9, "freshness_hours: inf cannot be used: expected a finite number"),
        ("", "  commit: maybe", 9, "commit: 'maybe' cannot be used. Write true or false"),
        ("", "  default_status: running", 9, "default_status: 'running' .* STOPPED or RUNNING"),
        ("", "  schedules: {cleanup: soon}", 9, "schedules: .*'soon'"),
        ("", "  owners: data", 9, "owners: 'data' .*team:data"),
        ("", "  pool: one", 9, r"pool: the component has no such field: write op: \{pool: ...\}"),
        ("", "  sources: [a]", 9, "sources: .* are `deps`"),
        ("", "  key: a/b", 9, "key: .* an asset is <job>/<state>"),
        ("", "  key_prefix: a", 9, "key_prefix: .* an asset is <job>/<state>"),
        ("", "  group: a", 9, "group: .* did you mean group_name"),
        ("", "  op: {tag: {a: b}}", 9, "op: it has no field tag.* example, {pool"),
        ("", "  op: x", 9, "op: 'x' cannot be used"),
        ("", "  ttl: 30 d", 9, "ttl: '30 d' cannot be used.*column: seen"),
        ("", "  ttl: {column: gone, ttl: 30 d}", 9, "ttl: .*'gone' is not a column"),
        ("", "  ttl: {column: n, ttl: 30 d}", 9, "ttl: .*'n' is int32"),
        ("", "  options: {num-retained: 3}", 9, "options: num-retained is not an option"),
        ("", "  budget: {request: 3}", 9, "budget: .*did you mean requests"),
        ("", "  partitions_def: {type: daily, start_date: soon}", 9, "partitions_def: .* such as 2024-01-01"),
        ("", "  keys: [n]", 9, "keys stands twice"),
        ("", "  delete: '\"new.n'", 9, "delete: rows: .* is no whole expression"),
        ("job: orders", "job: 12", 3, "job: 12 cannot be used"),
        ("  job: orders\n", "", 2, "job: it is required"),
        ("job: orders", "job: a b", 3, "job: job name 'a b'"),
        ("file:///not/there", "not there", 4, "store: 'not there' names no store"),
        ("[customer]", "customer", 6, "keys: 'customer' cannot be used.*[customer]"),
        ("[customer]", "[client]", 6, "keys: key column 'client'"),
        ("customer STRING", "customer DOUBLE", 6, "keys: .* of type double cannot be a key"),
        ("n INT", "n FOO", 7, "schema: rows: the schema .* FOO is no type that keyed state stores"),
        ("n INT", "n", 7, "schema: rows: the schema .* expected a name at ','"),
        ("n INT", "n INT, n INT", 7, "schema: rows: the schema .* column 'n' occurs twice"),
        ("{n:", "{m:", 8, "update: rows: update names 'm'"),
        ("coalesce(", "coalesce((", 8, "update: rows: n: .* is no whole expression"),
        ("0) + 1", "0) +", 8, "update: rows: n: .* is no whole expression: .* its end"),
        ("", "  delete: new.gone AND", 9, "delete: rows: .* is no whole expression: .* its end"),
        ("0) +", "0)) +", 8, "update: rows: n: .* is no whole expression"),
        ("old.n,", "old.m,", 8, "update: rows: n: the state has no column 'm'"),
        ("old.n,", "Rand() +", 8, r"update: rows: n: rand\(\) gives another value each time"),
        ("", "  delete: 'new.n = uuid ()'", 9, r"delete: rows: uuid\(\) gives another value each time"),
    ],
)
def test_a_refusal_names_file_line_and_field(old: str, new: str, line: int, said: str, project: Path) -> None:
    """As `dg check defs` shows it: the last error of the chain."""
    text = ATTRIBUTES.replace(old, new) if old else f"{ATTRIBUTES}{new}\n"
    assert text != ATTRIBUTES
    with pytest.raises(Exception) as refused:
        loaded(project, text)
    cause = str(refused.value.__cause__)
    assert f"orders/defs.yaml:{line}" in cause
    assert re.search(said, cause), cause


BESIDE = """\
import dagster as dg

DAYS = dg.DailyPartitionsDefinition("2024-01-01")
EAGER = dg.AutomationCondition.eager()

class Client:
    def get_client(self): ...

gcs = Client()

def config(record): return {}
"""


@pytest.mark.filterwarnings("ignore")  # Dagster's own, of its loader
def test_a_module_beside_the_file_has_a_dot_before_it(project: Path) -> None:
    """In each field that names an object, as in that of the function."""
    fields = """\
  gcs: .beside:gcs
  partitions_def: .beside:DAYS
  automation_condition: .beside:EAGER
  downstream: [{job: mail, run_config: .beside:config}]
"""
    defs = loaded(project, ATTRIBUTES + fields, {"orders/beside.py": BESIDE})
    (state,) = (each for each in defs.assets or () if isinstance(each, dg.AssetsDefinition))
    assert state.partitions_def == dg.DailyPartitionsDefinition("2024-01-01")
    assert [*state.automation_conditions_by_key.values()] == [dg.AutomationCondition.eager()]
    assert "mail_after_orders" in {each.name for each in defs.sensors or ()}


VARIABLES = """\
import dagster as dg
from .more import GROUP

@dg.template_var
def group():
    return GROUP

@dg.template_var
def broken():
    def fails():
        raise ValueError("boom")
    return fails
"""
SUBCLASS = """\
from dstl_dagster.components import CheckpointedAssetComponent

class Mine(CheckpointedAssetComponent):
    @classmethod
    def get_additional_scope(cls):
        return {"grouped": lambda name: f"{name}_by_scope"}
"""
INSTANCE = """\
import dagster as dg
from dstl_dagster.components import CheckpointedAssetComponent

@dg.component_instance
def load(context: dg.ComponentLoadContext):
    return CheckpointedAssetComponent(
        job="orders", store="file:///not/there", function=".more:rows", keys=["customer"], group_name="python"
    )
"""
BELOW = """\
import dagster as dg

@dg.definitions
def defs(context: dg.ComponentLoadContext):
    above = context.component_tree.build_defs_at_path("orders")
    keys = [each.key for each in above.assets if isinstance(each, dg.AssetsDefinition)]

    @dg.asset(deps=keys)
    def below(): ...

    return dg.Definitions([below])
"""
DEFAULTS = """\
type: dagster.DefsFolderComponent
post_processing:
  assets: [{target: "*", attributes: {group_name: of_the_folder}}]
"""
MORE = """\
import dagster as dg

GROUP = "of_a_module"

def rows(greeting: dg.ResourceParam[str]): ...
"""
GREETING = """\
import dagster as dg

@dg.definitions
def defs():
    return dg.Definitions(resources={"greeting": "hello"})
"""
PROCESSED = 'post_processing: {assets: [{target: "*", attributes: {group_name: processed}}]}\n'


@pytest.mark.filterwarnings("ignore")  # Dagster's own, of its loader
@pytest.mark.parametrize(
    ("more", "files", "group"),
    [
        ("  group_name: \"{{ env('OF_A_TEST') }}\"\n", {}, "given"),
        ("  group_name: \"{{ env('NOT_SET', 'other') }}\"\n", {}, "other"),
        ('  group_name: "{{ group }}"\ntemplate_vars_module: .variables\n', {}, "of_a_module"),
        (PROCESSED, {}, "processed"),
        ("", {"defs.yaml": DEFAULTS}, "of_the_folder"),
        ("  group_name: \"{{ grouped('mine') }}\"\n", {"orders/mine.py": SUBCLASS}, "mine_by_scope"),
        (None, {"orders/component.py": INSTANCE}, "python"),
        ("", {"below/definitions.py": BELOW}, "orders"),
    ],
)
def test_a_project_describes_it_as_any_component(
    more: str | None, files: dict[str, str], group: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environment, variables of a module, post-processing, defaults of a folder, subclasses, Python; with a
    resource of the folder above.
    """
    monkeypatch.setenv("OF_A_TEST", "given")
    beside = {"orders/variables.py": VARIABLES, "orders/more.py": MORE, "greeting.py": GREETING}
    text = None if more is None else ATTRIBUTES.replace(PLAIN, ".more:rows") + more
    if text is not None and "orders/mine.py" in files:
        text = text.replace(
            "dstl_dagster.components.CheckpointedAssetComponent", "of_a_test.defs.orders.mine.Mine"
        )
    defs = loaded(project, text, {**beside, **files})
    dg.Definitions.validate_loadable(defs)
    specs = {each.key.to_user_string(): each for each in defs.resolve_all_asset_specs()}
    assert specs["orders/rows"].group_name == group
    if "below" in specs:
        assert [each.asset_key for each in specs["below"].deps] == [dg.AssetKey(["orders", "rows"])]


@pytest.mark.filterwarnings("ignore")  # Dagster's own, of its loader
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("  group_name: \"{{ env('NOT_SET') }}\"\n", "NOT_SET is not set and no default value"),
        ("  group_name: \"{{ env['NOT_SET'] }}\"\n", "use dot access or the `env` function"),
        ('  group_name: "{{ fake.x }}"\n', r"defs.yaml:9(.|\n)*'fake' not found in scope"),
        (
            '  group_name: "{{ broken() }}"\ntemplate_vars_module: .variables\n',
            r"defs.yaml:9(.|\n)*ValueError: boom",
        ),
        ("attribute: {a: 1}\n", r"defs.yaml:9(.|\n)*Extra inputs are not permitted"),
        ("  tags: {a: [}\n", r"defs.yaml\", line 9"),
        ("more: than\n- this\n", "defs.yaml"),
    ],
)
def test_dagster_refuses_what_it_reads_itself(more: str, said: str, project: Path) -> None:
    """Templates, and what is no YAML or stands outside of the attributes: with file and line."""
    with pytest.raises(Exception) as refused:
        loaded(
            project, ATTRIBUTES + more, {"orders/variables.py": VARIABLES, "orders/more.py": "GROUP = 1\n"}
        )
    assert re.search(said, f"{refused.value}{refused.value.__cause__}")
