"""What Dagster shows of a job beside its events: keys, kinds, owners, freshness, columns, links."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from numbers import Number
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster._cli import create_dagster_cli as dagster_command
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._daemon.run_coordinator import QueuedRunCoordinatorDaemon

from dstl_dagster import (
    ChangelogStorageResource,
    CheckpointLineageComponent,
    JobAssets,
    build_state_asset,
    checkpoint_asset_specs,
    checkpointed_asset,
)
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.report.events import Reporter, files_version
from dstl_dagster.orchestration.report.links import object_link
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.settings import CheckpointOptions, StoragePrices
from dstl_dagster.timeline import TimelineView

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
JOB = JobAssets("orders", operators=("totals", "sessions"))
VIEW = TimelineView(timeline_id="00ff")


def reporter_of(days: Days) -> Reporter:
    """As if the job's store was on a bucket."""
    uri = "gs://box/dstl"
    store = SimpleNamespace(uri=uri, uri_of=lambda name: f"{uri}/{name}")
    coordinator: Any = SimpleNamespace(store=store, options=CheckpointOptions(), prices=StoragePrices())
    return Reporter(Page(days.code.JOB, days.instance), coordinator, VIEW, kind="run")


def test_a_jobs_assets_hang_together() -> None:
    """Sources lead to the state, and the state to its operators, its files and its checkpoints."""
    specs = {spec.key: spec for spec in checkpoint_asset_specs(JOB, deps=[dg.AssetKey(["raw", "orders"])])}
    graph = {
        key.to_user_string(): [dep.asset_key.to_user_string() for dep in spec.deps]
        for key, spec in specs.items()
    }
    assert graph == {
        "orders/state": ["raw/orders"],
        "orders/state/totals": ["orders/state"],
        "orders/state/sessions": ["orders/state"],
        "orders/files": ["orders/state"],
        "orders/checkpoints": ["orders/state"],
    }
    assert {spec.group_name for spec in specs.values()} == {"orders"}
    assert specs[JOB.checkpoints_key].partitions_def == JOB.partitions
    assert all(spec.description for spec in specs.values())


def test_owners_kinds_tags_freshness_and_columns_are_shown() -> None:
    """What the caller sets for a job is on each of its assets."""
    columns = dg.TableSchema([dg.TableColumn("customer", "string")])
    specs = {
        spec.key: spec
        for spec in checkpoint_asset_specs(
            JOB,
            owners=["team:data", "ada@example.com"],
            kinds=["gcs"],
            freshness=timedelta(hours=4),
            file_columns=columns,
        )
    }
    for spec in specs.values():
        assert list(spec.owners) == ["team:data", "ada@example.com"]
        assert "gcs" in spec.kinds
        assert len(spec.kinds) == 2
        assert spec.tags["dstl/job"] == "orders"
    policy = specs[JOB.checkpoints_key].freshness_policy
    assert policy == dg.FreshnessPolicy.time_window(
        fail_window=timedelta(hours=4), warn_window=timedelta(hours=3)
    )
    assert specs[JOB.files_key].metadata["dagster/column_schema"] == columns


@pytest.mark.parametrize("asset", ["operator", "state"])
def test_an_event_shows_rows_and_columns(days: Days, asset: str) -> None:
    """Of an operator, and of a state of one operator: its columns with their types, and which are keys."""
    days.run("2024-01-01")
    key = days.code.JOB.operator_key("totals") if asset == "operator" else days.code.JOB.state_key
    found = days.instance.fetch_materializations(key, limit=5)
    (event,) = [record.asset_materialization for record in found.records]
    assert event is not None
    assert event.metadata["dagster/row_count"].value == 1
    schema = event.metadata["dagster/column_schema"].value
    assert [(column.name, column.type, column.description) for column in schema.columns] == [
        ("key", "string", "key"),
        ("total", "int64", None),
    ]
    assert all(column.constraints.nullable for column in schema.columns), "a key may be null"


@pytest.mark.parametrize(
    ("uri", "link"),
    [
        (
            "gs://box/dstl/a b/part-1.parquet",
            "[it](https://console.cloud.google.com/storage/browser/_details/box/dstl/a%20b/part-1.parquet)",
        ),
        ("gs://box/dstl/out/", "[it](https://console.cloud.google.com/storage/browser/box/dstl/out/)"),
        ("file:///data/store/out/1", "`it`"),
        ("memory://x/job/out/1", "`it`"),
    ],
)
def test_objects_of_a_bucket_link_to_the_console(uri: str, link: str) -> None:
    """A folder's page differs from an object's; the link is valid whatever characters a name has."""
    assert object_link("it", uri) == link


def test_links_to_files_name_the_bucket_once(days: Days) -> None:
    """A file's name is relative to its bucket, not to the store's prefix within it."""
    days.run("2024-01-01")
    checkpoint = days.coordinator().get(1)
    event = reporter_of(days).files(checkpoint, None)
    box = checkpoint.manifest.files[0].recoverable.final_blob_identifier.bucket_name
    console = "https://console.cloud.google.com/storage/browser"
    names = str(event.metadata["file names"].value)
    assert names.startswith(f"in [job/out/2024-01-01/]({console}/{box}/job/out/2024-01-01/):")
    assert f"[0.txt]({console}/_details/{box}/job/out/2024-01-01/0.txt)" in names


def test_rows_that_were_not_counted_are_no_number(days: Days) -> None:
    """One file whose rows nobody counted leaves the count out: zero would be plotted, and checks go by it."""
    days.files = 2
    days.run("2024-01-01")
    checkpoint = days.coordinator().get(1)
    reporter = reporter_of(days)
    one, two = checkpoint.manifest.files
    for rows, told in (((2, 2), 4), ((2, None), None), ((None, None), None), ((0, 0), 0)):
        files = tuple(
            dataclasses.replace(file, rows=each) for file, each in zip((one, two), rows, strict=True)
        )
        counted = dataclasses.replace(
            checkpoint, manifest=dataclasses.replace(checkpoint.manifest, files=files)
        )
        for partition, key in ((None, "dagster/row_count"), ("2024-01-01", "dagster/partition_row_count")):
            said = reporter.files(counted, partition).metadata
            assert (said[key].value if key in said else None) == told


def test_all_events_of_a_checkpoint_can_be_read_by_people(days: Days) -> None:
    """At most nine numbers each, none an id or a count of bytes; each carries checkpoint and step."""
    days.run("2024-01-01")
    days.run("2024-01-02")
    checkpoint, assets = days.coordinator().get(2), days.code.JOB
    reporter = reporter_of(days)
    assert "user metadata" not in reporter.checkpoint(checkpoint).metadata
    manifest = dataclasses.replace(checkpoint.manifest, user_metadata="ticket 7")
    checkpoint = dataclasses.replace(checkpoint, manifest=manifest)
    assert reporter.checkpoint(checkpoint).metadata["user metadata"].value == "ticket 7"
    events = {
        "5": [
            reporter.checkpoint(checkpoint),
            reporter.state(assets.state_key, checkpoint, "2024-01-02"),
            reporter.operator(checkpoint, "totals", {}),
        ],
        "6": [reporter.files(checkpoint, "2024-01-02")],
    }
    for step, reported in events.items():
        for event in reported:
            metadata = {name: entry.value for name, entry in event.metadata.items()}
            numbers = {name for name, value in metadata.items() if isinstance(value, Number)}
            measures = {name for name in numbers if not name.startswith("dagster/")}
            assert 1 <= len(measures) <= 9
            assert not [name for name in measures if "bytes" in name or "checkpoint" in name or "id" in name]
            if event.asset_key == assets.checkpoints_key:
                cost = checkpoint.manifest.cost
                assert cost is not None
                assert metadata["requests"] == cost.total.requests
                usd = cost.total.usd(StoragePrices())
                assert metadata["cost micro-USD"] == pytest.approx(1e6 * usd, rel=0.01)
                details = str(metadata["details"])
                assert re.findall(r"^step (\w+): ", details, re.MULTILINE) == ["trigger", "persist", "record"]
                uploads = map(int, re.findall(r" (\d+) uploads?, 0 retries\)", details))
                assert sum(uploads) == cost.total.uploads > 0
                assert f"in all {usd:.6f} USD" in details
                assert "[dstl/days/" in details, "the manifest links to the bucket"
            assert str(metadata["checkpoint"]).startswith("[chk-00000002](")
            tags = event.tags or {}
            assert {
                "dstl/checkpoint_id": "2",
                "dstl/parent_id": "1",
                "dstl/step": step,
            }.items() <= tags.items()


@dg.op(out=dg.Out(dict))
def plain_update() -> dict:  # type: ignore[type-arg] # Dagster takes no dict[str, Any]
    return {}


@dg.op(ins={"rows": dg.In(int)}, out=dg.Out(dict))
def update_with_data(rows: int) -> dict:  # type: ignore[type-arg] # as above
    return {"rows": rows}


def test_an_op_without_an_input_waits_for_its_sources() -> None:
    """The README's op becomes an asset as it stands: partitions and sources come before it."""
    state = build_state_asset(JOB, plain_update, partitions_def=DAYS, deps=[dg.AssetKey("inbox")])
    assert set(state.keys_by_input_name.values()) == {dg.AssetKey("inbox"), JOB.state_key}
    graph = state.node_def
    assert isinstance(graph, dg.GraphDefinition)
    assert set(graph.node_named("plain_update").definition.ins) == {"after"}
    assert build_state_asset("other", plain_update).keys_by_input_name == {}


def test_an_op_that_wants_data_is_refused() -> None:
    """Nothing gives it any; and something that is no op is told what it should be."""
    with pytest.raises(InvalidInputError, match="op 'update_with_data' takes 'rows'"):
        build_state_asset(JOB, update_with_data, partitions_def=DAYS)
    with pytest.raises(InvalidInputError, match=r"decorate .* with @dg\.op"):
        build_state_asset(JOB, dict)  # type: ignore[arg-type] # the point


@pytest.mark.parametrize("names", ["owners", "kinds", "deps"])
def test_a_text_is_no_list_of_names(names: str) -> None:
    """By any builder; its letters would each be one."""
    for build in (
        lambda: checkpoint_asset_specs(JOB, **{names: "ab"}),  # type: ignore[arg-type] # the point
        lambda: build_state_asset(JOB, plain_update, **{names: "ab"}),  # type: ignore[arg-type] # the point
    ):
        with pytest.raises(InvalidInputError, match=f"{names}: .*in a list, such as \\['ab'\\]"):
            build()
    with pytest.raises(Exception, match="sequence"):
        CheckpointLineageComponent(job="orders", store="file:///x", **{names: "ab"})  # type: ignore[arg-type] # the point


def test_operators_are_names_in_a_list() -> None:
    """A text is refused, a list is retained as a tuple."""
    with pytest.raises(InvalidInputError, match=r"such as \['totals'\]"):
        JobAssets("orders", operators="totals")  # type: ignore[arg-type] # the point
    assert JobAssets("orders", operators=["totals"]).operators == ("totals",)  # type: ignore[arg-type] # as users do


def test_the_state_shows_no_file_of_dagsters(days: Days) -> None:
    """Its last step hands on nothing, so that Dagster stores nothing for it and shows no path to that."""
    result = days.run("2024-01-01")
    (event,) = days.events("state")
    assert "path" not in event.metadata
    assert str(event.metadata["checkpoint"].value).startswith("[chk-00000001](")
    assert result.success


def test_two_jobs_of_one_name_in_dagster_are_refused() -> None:
    """Dagster's letters make one of the two; the message says which two, and why."""
    checkpoint_asset_specs("twin.job")
    checkpoint_asset_specs("twin.job")
    with pytest.raises(InvalidInputError, match=r"jobs 'twin\.job' and 'twin-job' are both 'twin_job'"):
        checkpoint_asset_specs("twin-job")


def test_events_tell_dagster_what_it_shows_by_itself(days: Days) -> None:
    """Rows, the place, and a data version that another attempt does not share."""
    days.run("2024-01-01")
    days.run("2024-01-02")
    first, second = days.events("files")
    assert first.metadata["dagster/partition_row_count"].value == 2
    assert str(first.metadata["dagster/uri"].value) == f"{days.uri}/out/2024-01-01/"
    versions = {(event.tags or {})["dagster/data_version"] for event in (first, second)}
    made = [days.coordinator().get(number) for number in (1, 2)]
    assert versions == {files_version(each.attempt, each.entry.committed) for each in made}


def test_a_jobs_steps_share_a_pool(days: Days) -> None:
    """A limit on it makes the job's runs wait for each other."""
    state = days.code.build_state(separate_steps=True)
    graph = state.node_def
    assert isinstance(graph, dg.GraphDefinition)
    pools = {name: graph.node_named(name).definition.pool for name in ("persist", "confirm", "cleanup")}
    assert set(pools.values()) == {"dstl_days"}


def test_runs_of_a_job_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the configuration and the command of the page, of three queued runs one begins."""
    page = (Path(__file__).parents[2] / "docs" / "dagster" / "partitions.md").read_text(encoding="utf-8")
    configuration = re.search(r"^```yaml\n(concurrency:.*?)^```", page, re.DOTALL | re.MULTILINE)
    command = re.search(r"`dagster (instance\sconcurrency\sset\s[^`]+)`", page)
    assert configuration is not None
    assert command is not None
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text(configuration[1] + "telemetry: {enabled: false}\n")
    assert CliRunner().invoke(dagster_command(), command[1].split()).exit_code == 0

    partitions = dg.StaticPartitionsDefinition(["north", "south", "west"])

    @checkpointed_asset("orders", keys=["id"], partitions_def=partitions)
    def totals() -> None: ...

    defs = dg.Definitions([totals], resources={"changelog": ChangelogStorageResource(uri="memory://waits")})
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "here").get_job_origin("orders")
    with dg.DagsterInstance.get() as instance:
        for key in partitions.get_partition_keys():
            instance.create_run_for_job(
                defs.resolve_implicit_global_asset_job_def(),
                status=dg.DagsterRunStatus.QUEUED,
                tags={"dagster/partition": key},
                remote_job_origin=origin,
            )
        queue = QueuedRunCoordinatorDaemon(interval_seconds=1)
        assert len(queue._get_runs_to_dequeue(instance, instance.get_concurrency_config(), None)) == 1


def test_a_link_leads_to_a_key_with_a_prefix(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the checkpoints' asset, as of a module that is loaded with one."""
    specs = [
        each.replace_attributes(key=["eu", *each.key.path]) for each in checkpoint_asset_specs(days.code.JOB)
    ]
    resources = {"changelog": days.resource()}
    location = dg.Definitions([days.code.build_state(), *specs], resources=resources).get_repository_def()
    monkeypatch.setattr("dstl_dagster.orchestration.code_location.code_location", lambda _: location)
    assert days.run("2024-01-01").success
    (event,) = days.events("state")
    assert "(/assets/eu/days/checkpoints?" in event.metadata["checkpoint"].value
