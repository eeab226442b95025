"""What a job is stands in its checkpoints: a program that does not fit is refused, and loses no row.

Programs as users write them: assets, ops, resources. Rows are of day or run, and each is there once.
"""

# No postponed annotations: Dagster reads them as objects.

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from click.testing import CliRunner

import dstl_dagster as dstl
from dstl_dagster.checkpoint import Batch, CheckpointCoordinator, Claim, Opening
from dstl_dagster.cli import main
from dstl_dagster.errors import ConflictError, InvalidInputError
from dstl_dagster.keyed import Measure, write_rows
from dstl_dagster.orchestration.partition_order import next_partition, require_next_partition
from dstl_dagster.orchestration.partitions import window_key
from dstl_dagster.orchestration.report.findings import partitions_finding
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import open_store

pytestmark = pytest.mark.dagster

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-03-01")
ROWS = pa.schema([("id", pa.string())])


class Shop:
    """A store, an instance, and what stands in the store."""

    def __init__(self, uri: str, instance: dg.DagsterInstance) -> None:
        self.uri = uri
        self.changelog = dstl.ChangelogStorageResource(uri=uri)
        self.instance = instance

    def kept(self, name: str, job: str, operator: str, **more: Any) -> dg.AssetsDefinition:
        """An asset that returns its rows."""
        metadata = {"dstl/keys": ["id"], "dstl/job": job, "dstl/operator": operator}

        @dg.asset(name=name, metadata=metadata, **more)
        def rows(context: dg.AssetExecutionContext) -> pa.Table:
            return _rows(name, context)

        return rows

    def decorated(self, job: Any, operator: str, **more: Any) -> dg.AssetsDefinition:
        """An asset that writes by its batch."""

        @dstl.checkpointed_asset(job, **more)
        def rows(context: dg.OpExecutionContext, batch: Any) -> None:
            _write(batch, operator, _rows(operator, context))

        return rows

    def plain(self, name: str, job: str, operator: str, source: str | None = None, **more: Any) -> Any:
        """An asset of Dagster's that opens a batch."""
        changelog = self.changelog

        @dg.asset(name=name, **more)
        def rows(context: dg.AssetExecutionContext) -> None:
            with changelog.checkpoint(context.op_execution_context, job, source=source) as batch:
                if batch.already_in is None:
                    _write(batch, operator, _rows(name, context))

        return rows

    def run(self, assets: list[Any], selected: list[str] | None = None, **more: Any) -> str:
        """Run some of the assets of a code location; what went wrong, or nothing."""
        resources = {
            "io_manager": dstl.KeyedStateIOManager(changelog=self.changelog),
            "changelog": self.changelog,
        }
        defs = dg.Definitions(assets=assets, resources=resources, executor=dg.in_process_executor)
        job = defs.resolve_implicit_global_asset_job_def()
        keys = None if selected is None else [dg.AssetKey(each.split("/")) for each in selected]
        return _said(
            job.execute_in_process(instance=self.instance, asset_selection=keys, raise_on_error=False, **more)
        )

    def tick(self, assets: list[Any], job: str) -> None:
        """Of the job's sensor, with what Dagster writes of it."""
        sensor = dstl.build_checkpoint_sensor(job, partitions_def=DAYS, changelog=self.changelog)
        defs = dg.Definitions(assets=assets, sensors=[sensor], resources={"changelog": self.changelog})
        with dg.build_sensor_context(instance=self.instance, definitions=defs) as context:
            for event in sensor(context).asset_events:
                self.instance.report_runless_asset_event(event)

    def rows(self, job: str) -> dict[str, list[str]]:
        """By operator."""
        coordinator = CheckpointCoordinator(job, open_store(self.uri))
        latest = coordinator.latest()
        operators = {} if latest is None else latest.manifest.operators
        return {
            each: sorted(row["id"] for row in coordinator.read_state(each).to_arrow().to_pylist())
            for each in operators
        }

    def command(self, *words: str) -> str:
        """Of `dstl`, which must succeed."""
        found = CliRunner().invoke(main, [*words, "--store", self.uri])
        assert found.exit_code == 0, found.output
        return found.output


def _rows(of: str, context: Any) -> pa.Table:
    key = context.partition_key if context.has_partition_key else context.run.run_id
    return pa.table({"id": [f"{of} {key}"]}, ROWS)


def _write(batch: Any, operator: str, rows: pa.Table) -> None:
    schema = StateSchema.of(ROWS, ("id",))
    batch.add(
        write_rows(rows, batch.attempt, open_store(batch.attempt.store_uri), operator=operator, schema=schema)
    )


def _said(result: dg.ExecuteInProcessResult) -> str:
    if result.success:
        return ""
    data = [event.step_failure_data for event in result.get_step_failure_events()]
    return " ".join(
        (each.user_failure_data and each.user_failure_data.description) or each.error.message for each in data
    )


def of_days(of: str, *days: int) -> list[str]:
    return [f"{of} 2024-01-{day:02}" for day in days]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Shop(tmp_path.as_uri(), instance)


def test_assets_of_one_job_are_each_applied(shop: Shop) -> None:
    """Of an IO manager and of the decorator, whose references go by that manager too, with one name."""
    assets = [
        shop.kept("orders", "orders", "kept", partitions_def=DAYS),
        shop.kept("sales", "orders", "kept", partitions_def=DAYS),
        shop.decorated("orders", "written", partitions_def=DAYS),
    ]
    for day in ("2024-01-01", "2024-01-02"):
        for each in ("orders", "orders/rows", "sales"):
            assert shop.run(assets, [each], partition_key=day) == ""
    assert shop.run(assets, ["orders", "sales"], partition_key="2024-01-03") == ""
    assert shop.run(assets, ["orders/rows"], partition_key="2024-01-03") == ""
    days = (1, 2, 3)
    assert shop.rows("orders") == {
        "kept": of_days("orders", *days) + of_days("sales", *days),
        "written": of_days("written", *days),
    }


def test_an_asset_shows_no_day_that_another_one_made(shop: Shop) -> None:
    """They write one job, and a run of one alone knows of the other by the job's checkpoints."""
    states = [
        shop.decorated(dstl.JobAssets("split", state=name), name, partitions_def=DAYS, name=name)
        for name in ("one", "two")
    ]
    for name, day in (("one", "2024-01-01"), ("one", "2024-01-02"), ("two", "2024-01-01")):
        assert shop.run(states, [f"split/{name}"], partition_key=day) == ""
    assert shop.instance.get_materialized_partitions(dg.AssetKey(["split", "two"])) == {"2024-01-01"}


def test_a_run_that_starts_over_takes_the_days_of_each_asset_away(shop: Shop, tmp_path: Path) -> None:
    """Also of one that it does not select, which the new store has not either."""
    states = [
        shop.decorated(dstl.JobAssets("fresh", state=name), name, partitions_def=DAYS, name=name)
        for name in ("one", "two")
    ]
    for name in ("one", "two"):
        assert shop.run(states, [f"fresh/{name}"], partition_key="2024-01-01") == ""
    other = Shop((tmp_path / "other").as_uri(), shop.instance)
    tags = {"dstl/start_over": "true"}
    assert other.run(states, ["fresh/one"], partition_key="2024-01-01", tags=tags) == ""
    shown = shop.instance.get_status_by_partition(dg.AssetKey(["fresh", "two"]), ["2024-01-01"], DAYS)
    assert [each.value for each in shown.values()] == ["FAILED"]


def test_days_and_weeks_of_one_job_are_each_compared_in_their_own_words(shop: Shop) -> None:
    """A week has the name of its first day."""
    weeks = dg.WeeklyPartitionsDefinition("2024-01-01")
    one = shop.decorated(dstl.JobAssets("both", state="one"), "one", partitions_def=DAYS, name="one")
    two = shop.decorated(dstl.JobAssets("both", state="two"), "two", partitions_def=weeks, name="two")
    assert shop.run([one, two], ["both/one"], partition_key="2024-01-01") == ""
    assert shop.run([one, two], ["both/two"], partition_key="2024-01-07") == ""
    assets = dstl.JobAssets("both").found_in(each.get_asset_spec() for each in (one, two))
    page = Page(assets, shop.instance, DAYS, {one.key: DAYS, two.key: weeks})
    view = CheckpointCoordinator("both", open_store(shop.uri)).timeline.tail()
    assert partitions_finding(page, view).passed


def test_an_asset_shows_no_day_of_a_driver_beside_it(shop: Shop) -> None:
    """The batch has the name of a day that the asset was never run for: a backfill must not skip it."""
    states = [shop.decorated(dstl.JobAssets("fed", state="one"), "one", partitions_def=DAYS, name="one")]
    assert shop.run(states, partition_key="2024-01-01") == ""
    coordinator = CheckpointCoordinator("fed", open_store(shop.uri))
    claim = Claim("feed", "driver:feed", Measure("keys", {}), ("two",), is_defined=lambda _: True)
    batch = Batch.open(coordinator, Opening(claim.key("2024-01-02"), claim=claim))
    _write(batch, "two", pa.table({"id": ["two"]}, ROWS))
    batch.complete()
    shop.tick(states, "fed")
    assert shop.instance.get_materialized_partitions(dg.AssetKey(["fed", "one"])) == {"2024-01-01"}


def test_an_external_asset_shows_what_an_asset_made_elsewhere(shop: Shop) -> None:
    """In another code location, which shows the job as one that runs outside of it."""
    made = shop.decorated("far", "kept", partitions_def=DAYS)
    assert shop.run([made], partition_key="2024-01-01") == ""
    sensor = dstl.build_checkpoint_sensor("far", partitions_def=DAYS, changelog=shop.changelog)
    specs = dstl.checkpoint_asset_specs("far", deps=[])
    defs = dg.Definitions(assets=specs, sensors=[sensor], resources={"changelog": shop.changelog})
    with dg.build_sensor_context(instance=shop.instance, definitions=defs) as context:
        result = sensor(context)
    assert "far/state" in [event.asset_key.to_user_string() for event in result.asset_events]


def test_what_a_restore_undid_is_shown_by_each_asset(shop: Shop) -> None:
    """Two assets of one job have a batch of the same day, and both lose it."""
    keys = [dg.AssetKey(["pair", name]) for name in ("one", "two")]
    states = [
        shop.decorated(dstl.JobAssets("pair", state=name), name, partitions_def=DAYS, name=name)
        for name in ("one", "two")
    ]
    for day in ("2024-01-01", "2024-01-02"):
        for key in keys:
            assert shop.run(states, [key.to_user_string()], partition_key=day) == ""
    coordinator = CheckpointCoordinator("pair", open_store(shop.uri))
    page = Page(
        dstl.JobAssets("pair").found_in(each.get_asset_spec() for each in states), shop.instance, DAYS
    )
    coordinator.restore(3)
    found = partitions_finding(page, coordinator.timeline.tail())
    assert found.text.startswith(
        "2024-01-02 is in no checkpoint, as after a restore, but shown as materialized"
    )
    coordinator.restore(2)
    shop.tick(states, "pair")
    for key in keys:
        shown = shop.instance.get_status_by_partition(key, ["2024-01-01", "2024-01-02"], DAYS)
        assert [each.value for each in shown.values()] == ["MATERIALIZED", "FAILED"], key


def test_another_store_that_has_the_day_of_one_asset_holds_none_of_the_other(
    shop: Shop, tmp_path: Path
) -> None:
    """Once the sensor has started over there, the other asset's day is shown as failed."""

    def run(shop: Shop, *names: str) -> list[dg.AssetsDefinition]:
        states = [
            shop.decorated(dstl.JobAssets("pair", state=name), name, partitions_def=DAYS, name=name)
            for name in ("one", "two")
        ]
        for name in names:
            assert shop.run(states, [f"pair/{name}"], partition_key="2024-01-01") == ""
        return states

    run(shop, "one", "two")
    with dg.DagsterInstance.ephemeral() as elsewhere:
        other = Shop((tmp_path / "other").as_uri(), elsewhere)
        defs = dg.Definitions(run(other, "one"), resources={"changelog": other.changelog})
    sensor = dstl.build_checkpoint_sensor("pair", partitions_def=DAYS, changelog=other.changelog)
    with dg.build_sensor_context(
        instance=shop.instance, definitions=defs, cursor='{"start_over": true}'
    ) as context:
        sensor(context)
    for name, shown in (("one", "MATERIALIZED"), ("two", "FAILED")):
        key = dg.AssetKey(["pair", name])
        (status,) = shop.instance.get_status_by_partition(key, ["2024-01-01"], DAYS).values()
        assert status.value == shown, name


def test_a_run_of_two_jobs_that_changes_neither_materializes_neither(shop: Shop) -> None:
    """Each has a checkpoint of its own for the day, and the run one tag."""

    def state(job: str) -> dg.AssetsDefinition:
        @dg.op(name=f"update_{job}", out=dg.Out(dict))
        def update(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> dict:  # type: ignore[type-arg]
            with changelog.checkpoint(context, job) as batch:
                if batch.already_in is None:
                    _write(batch, "kept", _rows(job, context))
            return batch.reference

        return dstl.build_state_asset(job, update, partitions_def=DAYS)

    assets = [state("earlier"), state("later")]
    assert shop.run(assets, ["later/state"], partition_key="2024-01-01") == ""
    for _ in range(2):
        assert shop.run(assets, partition_key="2024-01-02") == ""
    for each, times in (("earlier", 1), ("later", 2)):
        made = shop.instance.fetch_materializations(dg.AssetKey([each, "state"]), limit=5)
        assert len(made.records) == times


def test_an_archived_day_that_one_asset_lost_is_found(shop: Shop) -> None:
    """The archive has the day by its name, which a checkpoint of the other asset holds."""
    shop.changelog = dstl.ChangelogStorageResource(
        uri=shop.uri, options={"dstl.checkpoint.snapshot-interval": "8"}
    )
    states = [
        shop.decorated(dstl.JobAssets("pair", state=name), name, partitions_def=DAYS, name=name)
        for name in ("one", "two")
    ]
    for name in ("one", "two"):
        assert shop.run(states, [f"pair/{name}"], partition_key="2024-01-01") == ""
    coordinator = CheckpointCoordinator("pair", open_store(shop.uri))
    coordinator.restore(1)
    for day in ("2024-01-02", "2024-01-03", "2024-01-04"):
        assert shop.run(states, ["pair/one"], partition_key=day) == ""
    view = coordinator.timeline.tail()
    assert "2024-01-01" not in {each.key for each in view.keys}
    found = dstl.JobAssets("pair").found_in(each.get_asset_spec() for each in states)
    said = partitions_finding(Page(found, shop.instance, DAYS), view)
    assert said.text.startswith("2024-01-01 is in no checkpoint"), said.text


def test_two_outputs_of_one_asset_are_each_applied(shop: Shop) -> None:
    """Also where they are one operator, and where only one of them is selected."""
    metadata = {"dstl/keys": ["id"], "dstl/job": "orders", "dstl/operator": "kept"}
    outs = {name: dg.AssetOut(metadata=metadata, is_required=False) for name in ("one", "two")}

    @dg.multi_asset(outs=outs, can_subset=True, partitions_def=DAYS)
    def both(context: dg.AssetExecutionContext) -> Any:
        for each in sorted(context.op_execution_context.selected_output_names):
            yield dg.Output(_rows(each, context), output_name=each)

    assert shop.run([both], partition_key="2024-01-01") == ""
    assert shop.run([both], ["one"], partition_key="2024-01-02") == ""
    assert shop.run([both], ["two"], partition_key="2024-01-02") == ""
    assert shop.rows("orders") == {"kept": of_days("one", 1, 2) + of_days("two", 1, 2)}


def test_a_part_of_what_an_op_makes_is_no_batch(shop: Shop) -> None:
    """The rest would count as applied."""
    changelog = shop.changelog
    specs = [dg.AssetSpec(name, skippable=True) for name in ("one", "two")]

    @dg.multi_asset(specs=specs, can_subset=True, partitions_def=DAYS)
    def both(context: dg.AssetExecutionContext) -> Any:
        with changelog.checkpoint(context.op_execution_context, "orders") as batch:
            for each in sorted(key.to_user_string() for key in context.selected_asset_keys):
                _write(batch, each, _rows(each, context))
        for key in context.selected_asset_keys:
            yield dg.MaterializeResult(asset_key=key)

    said = shop.run([both], ["one"], partition_key="2024-01-01")
    assert "leaves out two, which the same op makes" in said
    assert shop.run([both], partition_key="2024-01-01") == ""
    assert shop.rows("orders") == {"one": of_days("one", 1), "two": of_days("two", 1)}


def test_an_op_that_makes_one_more_asset_is_no_other_source(shop: Shop) -> None:
    """Its name is that of the first of its assets: under another one, all days would be applied again."""
    changelog = shop.changelog

    def made(*names: str) -> dg.AssetsDefinition:
        @dg.multi_asset(specs=[dg.AssetSpec(name, partitions_def=DAYS) for name in names])
        def all_of_them(context: dg.AssetExecutionContext) -> Any:
            with changelog.checkpoint(context.op_execution_context, "orders") as batch:
                if batch.already_in is None:
                    _write(batch, "rows", _rows("day", context))
            for name in names:
                yield dg.MaterializeResult(asset_key=name)

        return all_of_them

    assert shop.run([made("two")], partition_key="2024-01-01") == ""
    said = shop.run([made("one", "two")], partition_key="2024-01-01")
    assert "its source 'asset:two' is defined nowhere here" in said
    command = re.search(r"dstl (checkpoints source --rename \S+);", said)
    assert command is not None
    shop.command(*command[1].split(), "--job", "orders", "--yes")
    for day in ("2024-01-01", "2024-01-02"):
        assert shop.run([made("one", "two")], partition_key=day) == ""
    assert shop.rows("orders") == {"rows": of_days("day", 1, 2)}
    assert [each.idempotency_key for each in shop.changelog.coordinator("orders").list()] == [
        "2024-01-01",
        None,
        "2024-01-02",
    ]


def test_one_source_is_not_two_assets(shop: Shop) -> None:
    """In one code location and in two: refused before a row is read, and once it is meant it goes on."""
    one = shop.plain("one", "orders", "kept", "feed", partitions_def=DAYS)
    two = shop.plain("two", "orders", "kept", "feed", partitions_def=DAYS)
    assert shop.run([one], partition_key="2024-01-01") == ""
    assert "source 'feed' of job 'orders' is asset:one, which is defined beside asset:two" in shop.run(
        [one, two], ["two"], partition_key="2024-01-01"
    )
    for day in ("2024-01-01", "2024-01-02"):
        said = shop.run([two], partition_key=day)
        assert "is asset:one, which is defined nowhere here, and this is asset:two" in said
        assert "tag dstl/ignore_unclaimed_state: true" in said
    meant = {"dstl/ignore_unclaimed_state": "true"}
    assert shop.run([two], partition_key="2024-01-02", tags=meant) == ""
    assert shop.run([two], partition_key="2024-01-03") == ""
    assert "is asset:two, which is defined nowhere here" in shop.run([one], partition_key="2024-01-04")
    assert shop.rows("orders") == {"kept": of_days("one", 1) + of_days("two", 2, 3)}


def test_one_source_of_two_decorated_assets_is_refused_as_they_load(shop: Shop) -> None:
    """They need not run for it."""
    shop.decorated(dstl.JobAssets("twice", state="one"), "kept", source="feed")
    with pytest.raises(InvalidInputError, match="source 'feed' of job 'twice' is asset:twice/one"):
        shop.decorated(dstl.JobAssets("twice", state="two"), "kept", source="feed")


Other = dg.TimeWindowPartitionsDefinition
START = DAYS.start
REDEFINED: dict[str, tuple[dg.PartitionsDefinition[str], str, str, str]] = {
    "weekly at no boundary": (
        dg.WeeklyPartitionsDefinition(START, day_offset=1),
        "2024-01-08",
        "stands at 2024-01-04T00:00:00+00:00, where none of its partitions begins",
        "",
    ),
    "monthly": (dg.MonthlyPartitionsDefinition(START), "2024-03-01", "where none of its partitions", ""),
    "hourly": (dg.HourlyPartitionsDefinition(START), "2024-01-04-00:00", "", "2024-01-04-00:00"),
    "hourly, not the next": (dg.HourlyPartitionsDefinition(START), "2024-01-04-01:00", "out of order", ""),
    "another format": (dg.DailyPartitionsDefinition(START, fmt="%Y%m%d"), "20240104", "", "20240104"),
    "another format, applied": (
        dg.DailyPartitionsDefinition(START, fmt="%Y%m%d"),
        "20240103",
        "is in the state already",
        "",
    ),
    "another zone": (
        dg.DailyPartitionsDefinition("2024-01-01", timezone="Asia/Tokyo"),
        "2024-01-04",
        "where none of its partitions begins",
        "",
    ),
    "an exclusion of the past": (
        dg.DailyPartitionsDefinition(START, exclusions=[START + timedelta(days=1)]),
        "2024-01-04",
        "",
        "2024-01-04",
    ),
    "an exclusion of the next": (
        dg.DailyPartitionsDefinition(START, exclusions=[START + timedelta(days=3)]),
        "2024-01-05",
        "",
        "2024-01-05",
    ),
    "keys": (
        dg.StaticPartitionsDefinition(["2024-01-04"]),
        "2024-01-04",
        "is applied by time partitions",
        "",
    ),
}


@pytest.mark.parametrize(
    ("name", "way"), [*((each, "kept") for each in REDEFINED), ("hourly", "decorated"), ("keys", "decorated")]
)
def test_partitions_redefined_over_standing_state_go_by_the_instant(name: str, way: str, shop: Shop) -> None:
    """Three days are in; another definition goes on where the state stands, or is refused in a sentence."""
    definition, key, refusal, row = REDEFINED[name]

    def asset(partitions: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
        if way == "kept":
            return shop.kept("orders", "orders", "kept", partitions_def=partitions)
        return shop.decorated("orders", "orders", partitions_def=partitions)

    for day in (1, 2, 3):
        assert shop.run([asset(DAYS)], partition_key=f"2024-01-0{day}") == ""
    said = shop.run([asset(definition)], partition_key=key)
    assert refusal in said
    assert bool(refusal) == bool(said)
    (rows,) = shop.rows("orders").values()
    assert rows == of_days("orders", 1, 2, 3) + ([f"orders {row}"] if row else [])


def test_weekly_partitions_become_daily_at_the_end_of_a_week(shop: Shop) -> None:
    """No day of the week is counted twice, and none is passed over."""
    weeks = dg.WeeklyPartitionsDefinition(START, day_offset=1)
    assert (
        shop.run([shop.kept("orders", "orders", "kept", partitions_def=weeks)], partition_key="2024-01-01")
        == ""
    )
    daily = [shop.kept("orders", "orders", "kept", partitions_def=DAYS)]
    assert "in the state already" in shop.run(daily, partition_key="2024-01-07")
    assert "out of order" in shop.run(daily, partition_key="2024-01-09")
    assert shop.run(daily, partition_key="2024-01-08") == ""
    assert shop.rows("orders") == {"kept": of_days("orders", 1, 8)}


def test_the_column_of_a_tables_partitions_may_have_another_name(shop: Shop) -> None:
    """A run replaces its partitions by their rows, whatever the column is called by then."""

    def table(column: str) -> dg.AssetsDefinition:
        metadata = {"dstl/keys": [column], "partition_expr": column}

        @dg.asset(name="orders", metadata=metadata, partitions_def=DAYS)
        def rows(context: dg.AssetExecutionContext) -> pa.Table:
            return pa.table({column: [context.partition_key], "by": [context.run.run_id]})

        return rows

    for day in ("2024-01-01", "2024-01-02"):
        assert shop.run([table("day")], partition_key=day) == ""
    shop.command("checkpoints", "schema", "--rename", "day=date", "--job", "orders", "--yes")
    for day in ("2024-01-02", "2024-01-03"):
        assert shop.run([table("date")], partition_key=day) == ""
    rows = shop.changelog.read_state("orders", "orders").to_arrow().to_pylist()
    assert sorted(row["date"] for row in rows) == ["2024-01-01", "2024-01-02", "2024-01-03"]


def _renamed_as_told(shop: Shop, said: str) -> None:
    """Run the command that a refusal names."""
    command = re.search(r"dstl (checkpoints (source|operator) --rename \S+);", said)
    assert command is not None, said
    shop.command(*command[1].split(), "--job", "orders", "--yes")


@pytest.mark.parametrize("way", ["kept", "plain"])
def test_an_asset_under_a_new_name_goes_on_after_the_command(way: str, shop: Shop) -> None:
    """It is refused until then; what was applied under the former name is not applied again."""

    def asset(name: str) -> dg.AssetsDefinition:
        make = shop.kept if way == "kept" else shop.plain
        return make(name, "orders", "rows", partitions_def=DAYS)

    assert shop.run([asset("one")], partition_key="2024-01-01") == ""
    renamed = [asset("two")]
    said = shop.run(renamed, partition_key="2024-01-02")
    assert "source 'asset:two' (asset:two) is new to job 'orders'" in said
    _renamed_as_told(shop, said)
    again = shop.run(renamed, partition_key="2024-01-01")
    if way == "kept":  # for which a new run of an older day is a mistake
        assert "partition 2024-01-01 is already in checkpoint 1 of job 'orders', and later ones" in again
    else:
        assert again == ""
    assert shop.run(renamed, partition_key="2024-01-02") == ""
    assert shop.rows("orders") == {"rows": of_days("one", 1) + of_days("two", 2)}
    latest = CheckpointCoordinator("orders", open_store(shop.uri)).latest()
    assert latest is not None
    assert latest.source is not None
    assert (latest.source.id, latest.source.by) == ("asset:one@0", "asset:two")
    # The former name is free: what has it now is another source.
    assert shop.run([*renamed, asset("one")], ["one"], partition_key="2024-01-01") == ""
    shown = shop.command("jobs", "show", "orders", "--json")
    assert {"asset:one", "asset:two"} == json.loads(shown)["sources"].keys()


def test_an_operator_under_a_new_name_goes_on_after_the_command(shop: Shop) -> None:
    """Until then nothing is written, and no total begins at zero."""

    def asset(operator: str) -> dg.AssetsDefinition:
        return shop.kept("orders", "orders", operator, partitions_def=DAYS)

    assert shop.run([asset("totals")], partition_key="2024-01-01") == ""
    said = shop.run([asset("sums")], partition_key="2024-01-02")
    assert "operator 'totals' of job 'orders' has state that source 'asset:orders'" in said
    assert shop.rows("orders") == {"totals": of_days("orders", 1)}
    _renamed_as_told(shop, said)
    assert shop.run([asset("sums")], partition_key="2024-01-02") == ""
    assert shop.rows("orders") == {"sums": of_days("orders", 1, 2)}


@pytest.mark.parametrize("way", ["kept", "plain"])
def test_what_was_dropped_begins_anew(way: str, shop: Shop) -> None:
    """The source goes with its only operator: a batch that it had applied is not taken for applied."""
    make = shop.kept if way == "kept" else shop.plain
    assets = [make("orders", "orders", "rows", partitions_def=DAYS)]
    for day in ("2024-01-01", "2024-01-02"):
        assert shop.run(assets, partition_key=day) == ""
    shop.command("checkpoints", "operator", "--drop", "rows", "--job", "orders", "--yes")
    assert shop.rows("orders") == {}
    for _ in range(2):
        assert shop.run(assets, partition_key="2024-01-01") == ""
    assert shop.rows("orders") == {"rows": of_days("orders", 1)}


def test_a_partition_of_what_was_dropped_is_not_loaded(shop: Shop) -> None:
    """A checkpoint before the drop holds it, and nothing of it is in the state."""

    @dg.asset(partitions_def=DAYS)
    def report(orders: pa.Table) -> None:
        assert orders.num_rows == 1

    assets = [shop.kept("orders", "orders", "rows", partitions_def=DAYS), report]
    assert shop.run(assets, partition_key="2024-01-01") == ""
    shop.command("checkpoints", "operator", "--drop", "rows", "--job", "orders", "--yes")
    said = shop.run(assets, ["report"], partition_key="2024-01-01")
    assert "no checkpoint of job 'orders' holds partition 2024-01-01: materialize" in said
    assert shop.run(assets, partition_key="2024-01-01") == ""


def test_an_operator_of_two_sources_goes_with_both(shop: Shop) -> None:
    """A run of either is green only with its rows in. A source that wrote another operator too stays, and is
    refused a batch that may have been in the dropped one, until it is meant.
    """
    one, two = (shop.plain(name, "orders", "rows", partitions_def=DAYS) for name in ("one", "two"))
    both = shop.plain("both", "orders", "other", partitions_def=DAYS)
    for name in ("one", "two", "both"):
        assert shop.run([one, two, both], [name], partition_key="2024-01-01") == ""
    moved = shop.plain("both", "orders", "rows", partitions_def=DAYS)
    assert shop.run([one, two, moved], ["both"], partition_key="2024-01-02") == ""
    words = ["checkpoints", "operator", "--drop", "rows", "--job", "orders", "--store", shop.uri]
    asked = CliRunner().invoke(main, words, input="y\n")
    assert "'asset:both' goes on from where it stands: its rows of 'rows' do not come again" in asked.output
    assert json.loads(shop.command("jobs", "show", "orders", "--json"))["sources"].keys() == {"asset:both"}
    for name in ("one", "two"):
        assert shop.run([one, two, moved], [name], partition_key="2024-01-01") == ""
    said = shop.run([one, two, moved], ["both"], partition_key="2024-01-02")
    assert "is in checkpoint 4, and operator 'rows', which source 'asset:both' wrote too, was dropped" in said
    meant = {"dstl/ignore_unclaimed_state": "true"}
    assert shop.run([one, two, moved], ["both"], partition_key="2024-01-02", tags=meant) == ""
    assert shop.rows("orders") == {
        "other": of_days("both", 1),
        "rows": of_days("one", 1) + of_days("two", 1),
    }


def test_a_source_that_is_dropped_begins_anew_beside_its_rows(shop: Shop) -> None:
    """The command says so before it is done: rows without a key of their own would be there twice."""
    asset = shop.plain("orders", "orders", "rows", partitions_def=DAYS)
    assert shop.run([asset], partition_key="2024-01-01") == ""
    words = ["checkpoints", "source", "--drop", "asset:orders", "--job", "orders", "--store", shop.uri]
    asked = CliRunner().invoke(main, words, input="n\n")
    assert "where still defined, it begins anew beside the rows of 'rows'" in asked.output
    words[1], words[3] = "operator", "rows"
    asked = CliRunner().invoke(main, words, input="n\n")
    assert "source 'asset:orders' goes too, as it wrote nothing else" in asked.output
    assert shop.rows("orders") == {"rows": of_days("orders", 1)}


@pytest.mark.parametrize(
    ("zone", "first", "last"),
    [
        ("Europe/Berlin", "2024-03-30", "2024-04-02"),
        ("Europe/Berlin", "2024-10-26", "2024-10-29"),
        ("America/New_York", "2024-11-02", "2024-11-05"),
    ],
)
@pytest.mark.parametrize("cron", ["0 * * * *", "30 1 * * *", "0 0 * * *"])
def test_partitions_follow_each_other_as_clocks_change(cron: str, zone: str, first: str, last: str) -> None:
    """Each begins where the one before it ended, also in the hour that comes twice, and no other one fits."""
    definition = dg.TimeWindowPartitionsDefinition(
        cron_schedule=cron, start=f"{first}-00:00", end=f"{last}-00:00", fmt="%Y-%m-%d-%H:%M", timezone=zone
    )
    keys, position = definition.get_partition_keys(), None
    for number, key in enumerate(keys):
        assert next_partition(definition, position) == key
        for other in keys[max(0, number - 1) : number + 2]:
            with suppress(ConflictError):
                require_next_partition(definition, other, position, job="orders", source="feed")
                assert other == key
        position = window_key(definition.time_window_for_partition_key(key).end)


def test_the_page_and_the_command_show_the_sources(shop: Shop) -> None:
    """Where each stands, by what measure, which operators it writes, and of whom; of keys, no position."""
    keys = dg.StaticPartitionsDefinition(["a"])
    days, parts = (
        shop.kept("one", "orders", "rows", partitions_def=DAYS),
        shop.plain("two", "orders", "parts", partitions_def=keys),
    )
    assert shop.run([days, parts], ["one"], partition_key="2024-01-01") == ""
    assert shop.run([days, parts], ["two"], partition_key="a") == ""
    shown = shop.instance.fetch_materializations(dg.AssetKey(["orders", "checkpoints"]), limit=1).records
    made = shown[0].asset_materialization
    assert made is not None
    assert made.metadata["resumes at"].value == "asset:one: 2024-01-02T00:00:00+00:00"
    page, command = str(made.metadata["details"].value), shop.command("jobs", "show", "orders")
    rows = (
        ("asset:one", "2024-01-02T00:00:00+00:00", "time partitions", "rows"),
        ("asset:two", "static partitions", "asset:two", "parts"),
    )
    for row in rows:
        assert any(all(cell in line for cell in row) for line in page.splitlines()), page
    assert all(cell in command for row in rows for cell in row)
    assert "null" not in page.partition("manifest")[0]


def test_an_op_that_leaves_an_operator_idle_is_named(shop: Shop) -> None:
    """On the materialization and in the log: it writes as it goes, so a new operator may be meant."""
    assert (
        shop.run([shop.plain("orders", "orders", "totals", partitions_def=DAYS)], partition_key="2024-01-01")
        == ""
    )
    renamed = [shop.plain("orders", "orders", "sums", partitions_def=DAYS)]
    assert shop.run(renamed, partition_key="2024-01-02") == ""
    latest = CheckpointCoordinator("orders", open_store(shop.uri)).latest()
    assert latest is not None
    (noted,) = latest.manifest.begun_beside_idle
    assert "wrote the first rows of sums, and none of totals" in noted
    shown = shop.instance.fetch_materializations(dg.AssetKey(["orders", "checkpoints"]), limit=1).records
    assert shown[0].asset_materialization is not None
    assert shown[0].asset_materialization.metadata["look at"].value == noted
    (run,) = shop.instance.get_runs(limit=1)
    assert any(noted in each.user_message for each in shop.instance.all_logs(run.run_id))


@pytest.mark.parametrize("mode", ["merge", "overwrite"])
def test_an_ordinary_asset_does_not_write_the_operator_of_another_asset(shop: Shop, mode: str) -> None:
    """Both have the default names, and no load sees both: its rows would be among those of the other one, or
    in their place.
    """

    @dstl.checkpointed_asset("orders", keys=["key"], changelog=shop.changelog)
    def orders() -> pa.Table:
        return pa.table({"key": ["of the job"]})

    @dg.asset(name="orders", metadata={"dstl/keys": ["key"], "mode": mode}, deps=[orders])
    def ordinary() -> pa.Table:
        return pa.table({"key": ["of an ordinary asset"]})

    manager = dstl.KeyedStateIOManager(changelog=shop.changelog)
    result = dg.materialize(
        [orders, ordinary],
        instance=shop.instance,
        resources={"io_manager": manager},
        raise_on_error=False,
    )
    failed = {event.step_key: event.step_failure_data for event in result.get_step_failure_events()}
    ((_, why),) = failed.items()
    said = "operator 'orders' of job 'orders' has rows of source 'asset:orders/orders'"
    assert why.user_failure_data is not None
    assert said in str(why.user_failure_data.description)
    state = CheckpointCoordinator("orders", open_store(shop.uri)).read_state("orders")
    assert state.to_arrow().column("key").to_pylist() == ["of the job"]


def test_a_block_that_no_later_step_completes_completes_itself(shop: Shop) -> None:
    """In an op of a plain job; in a run of a part of a job of steps; before another one's steps."""
    changelog = shop.changelog

    @dg.op(out=dg.Out(dict))
    def update(context: dg.OpExecutionContext) -> dict[str, Any]:
        with changelog.checkpoint(context, "orders") as batch:
            if batch.already_in is None:
                _write(batch, "kept", _rows("op", context))
        return batch.reference

    @dg.job
    def plain() -> None:
        update()

    assert plain.execute_in_process().success
    steps = dstl.build_checkpoint_job("steps", update, resource_defs={"changelog": changelog})
    assert steps.execute_in_process(op_selection=["update"]).success
    assert steps.execute_in_process().success
    assert [len(each) for each in shop.rows("orders").values()] == [3]
    separate = dstl.build_checkpoint_job(
        "separate", update, separate_steps=True, resource_defs={"changelog": changelog}
    )
    for selected in (["update", "persist"], ["update", "persist", "confirm"], None):
        assert separate.execute_in_process(op_selection=selected).success
    assert [len(each) for each in shop.rows("orders").values()] == [6]

    @dg.op(out=dg.Out(dict))
    def customers(context: dg.OpExecutionContext) -> dict[str, Any]:
        with changelog.checkpoint(context, "customers") as batch:
            _write(batch, "kept", _rows("op", context))
        return batch.reference

    @dg.op(ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dict))
    def sales(context: dg.OpExecutionContext) -> dict[str, Any]:
        with changelog.checkpoint(context, "sales") as batch:
            _write(batch, "kept", _rows("op", context))
        return batch.reference

    @dg.job(resource_defs={"changelog": changelog})
    def both() -> None:
        dstl.confirm_op(dstl.persist_op(sales(customers())))

    assert both.execute_in_process().success
    assert [len(shop.rows(job)["kept"]) for job in ("customers", "sales")] == [1, 1]
