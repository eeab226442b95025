"""What the state's asset takes as any asset does, and partitions other than days."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster import build_checkpoint_sensor, build_state_asset, checkpoint_asset_specs
from dstl_dagster.orchestration.yaml.field_values import condition_at
from tests.dagster.days import AT_ONCE, DAYS, JOB, build_update, by_region

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

INBOX = dg.AssetKey("inbox")
REGIONS = dg.DynamicPartitionsDefinition(name="regions")
UNORDERED = {
    "static": (dg.StaticPartitionsDefinition(["eu", "us"]), ["us", "eu"]),
    "dynamic": (REGIONS, ["us", "eu"]),
    "multi": (
        dg.MultiPartitionsDefinition({"day": DAYS, "region": dg.StaticPartitionsDefinition(["eu", "us"])}),
        ["2024-01-02|us", "2024-01-01|eu"],
    ),
}


def build(**arguments: Any) -> dg.AssetsDefinition:
    return build_state_asset(
        JOB, build_update(), partitions_def=DAYS, retry_policy=AT_ONCE, kinds={"python"}, **arguments
    )


def materialize(days: Days, asset: dg.AssetsDefinition, partition: str) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [asset],
        partition_key=partition,
        instance=days.instance,
        resources={"changelog": days.resource()},
        raise_on_error=False,
    )


def test_it_takes_what_an_asset_takes() -> None:
    """Group, tags, metadata, code version, automation condition, and a mapping for each source."""
    mapping = dg.TimeWindowPartitionMapping(start_offset=-1)
    state = build(
        group_name="sales",
        tags={"tier": "gold"},
        metadata={"team": "data"},
        code_version="7",
        automation_condition=dg.AutomationCondition.eager(),
        deps=[dg.AssetDep(INBOX, partition_mapping=mapping), dg.AssetKey("rates")],
    )
    (spec,) = state.specs
    assert spec.group_name == "sales"
    assert {"tier": "gold", "dstl/job": "days"}.items() <= spec.tags.items()
    assert spec.metadata["team"] == "data"
    assert spec.code_version == "7"
    assert spec.automation_condition == dg.AutomationCondition.eager()
    assert state.get_partition_mapping(INBOX) == mapping
    assert {dep.asset_key for dep in spec.deps} == {INBOX, dg.AssetKey("rates"), JOB.state_key}


def test_specs_are_of_a_group_and_are_mapped_over() -> None:
    """Group and tags for all of them; anything but the key by `replace_attributes`."""
    specs = checkpoint_asset_specs(JOB, partitions_def=DAYS, group_name="sales", tags={"tier": "gold"})
    assert {spec.group_name for spec in specs} == {"sales"}
    assert all(spec.tags["tier"] == "gold" and spec.tags["dstl/job"] == "days" for spec in specs)
    mapped = [spec.replace_attributes(group_name="finance") for spec in specs]
    dg.Definitions.validate_loadable(dg.Definitions(assets=mapped))


def test_the_data_version_is_the_checkpoints(days: Days) -> None:
    """A day that is run again in a backfill does not make what reads it stale; another checkpoint does."""
    for day in ("2024-01-01", "2024-01-02"):
        assert materialize(days, build(), day).success
    versions = [(event.tags or {})["dagster/data_version"] for event in days.events("state")]
    assert versions == [str(each.attempt) for each in days.coordinator().list()]


@pytest.mark.parametrize(
    ("condition", "requested"),
    [
        (dg.AutomationCondition.eager(), ["2024-01-03"]),
        (condition_at("0 6 * * *", JOB.state_key), ["2024-01-03"]),
        (dg.AutomationCondition.on_cron("0 6 * * *"), []),
    ],
    ids=["eager", "a schedule in YAML", "Dagster's own, which waits for the day before to be updated again"],
)
def test_the_day_is_requested_whose_source_is_there(
    condition: dg.AutomationCondition[Any],
    requested: list[str],
    days: Days,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Declarative automation: once per update of the source, and not before the day before was made."""
    source = dg.AssetSpec(
        INBOX, partitions_def=dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")
    )
    state = build_state_asset(
        JOB,
        build_update(),
        partitions_def=source.partitions_def,
        deps=[INBOX],
        automation_condition=condition,
        retry_policy=AT_ONCE,
    )
    defs = dg.Definitions(assets=[source, state], resources={"changelog": days.resource()})
    cursor, later, clock = None, 0.0, time.time
    monkeypatch.setattr(time, "time", lambda: clock() + later)

    def asked() -> list[str | None]:
        nonlocal cursor
        result = dg.evaluate_automation_conditions(
            defs=defs,
            instance=days.instance,
            cursor=cursor,
            asset_selection=dg.AssetSelection.assets(JOB.state_key),
            evaluation_time=datetime.fromtimestamp(time.time(), UTC),
        )
        cursor = result.cursor
        return sorted(result.get_requested_partitions(JOB.state_key))

    def arrives(day: str) -> None:
        days.instance.report_runless_asset_event(dg.AssetMaterialization(INBOX, partition=day))

    assert asked() == []
    later += 86_400
    arrives("2024-01-03")
    assert asked() == [], "the days before it are not in the state"
    for day in ("2024-01-01", "2024-01-02"):
        arrives(day)
        assert materialize(days, state, day).success
    later += 86_400
    arrives("2024-01-03")
    assert asked() == requested
    assert materialize(days, state, "2024-01-03").success
    assert asked() == []


@pytest.mark.parametrize("kind", UNORDERED)
def test_partitions_without_an_order_are_applied_once_each(kind: str, days: Days) -> None:
    """In whichever order they come; the state depends on no partition of its own."""
    definition, partitions = UNORDERED[kind]
    days.instance.add_dynamic_partitions("regions", ["eu", "us"])
    state = build_state_asset(JOB, by_region, partitions_def=definition, retry_policy=AT_ONCE)
    assert state.keys_by_input_name == {}
    for partition in (*partitions, partitions[0]):
        result = materialize(days, state, partition)
        assert result.success, days.failure(result)
    assert [each.entry.completed.idempotency_key for each in days.coordinator().list()] == partitions
    assert [event.partition for event in days.events("state")] == partitions
    assert len(days.instance.fetch_observations(JOB.state_key, limit=5).records) == 1


def test_the_sensor_finds_a_dynamic_partition(days: Days) -> None:
    """The run died before it reported: the instance's keys tell whose partition the checkpoint is."""
    days.code.make_outside(days.uri, "us")
    days.instance.add_dynamic_partitions("regions", ["us"])
    state = build_state_asset(JOB, by_region, partitions_def=REGIONS)
    sensor = build_checkpoint_sensor(JOB, partitions_def=REGIONS)
    defs = dg.Definitions(
        assets=[state, *checkpoint_asset_specs(JOB, partitions_def=REGIONS)],
        sensors=[sensor],
        resources={"changelog": days.resource()},
    )
    with dg.build_sensor_context(
        instance=days.instance, resources={"changelog": days.resource()}, definitions=defs
    ) as context:
        result = sensor(context)
    told = {each.asset_key: each.partition for each in result.asset_events if hasattr(each, "partition")}
    assert told[JOB.files_key] == told[JOB.state_key] == "us"
