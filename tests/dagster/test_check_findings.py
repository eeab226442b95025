"""What the checks find after a bad day, from the page's button, beside each checkpoint, and by a job."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pytest

from dstl_dagster import (
    JobAssets,
    build_checkpoint_checks,
    build_maintenance,
    checkpoint_asset_specs,
)
from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import StateRows, write_rows
from dstl_dagster.orchestration.partitions import interval
from dstl_dagster.orchestration.report.findings import (
    evaluations_beside,
    partitions_finding,
    unpublished_files,
)
from dstl_dagster.orchestration.report.shown import Page as AssetsPage
from dstl_dagster.orchestration.watch.checks import CHECKS
from dstl_dagster.storage import ABSENT
from dstl_dagster.timeline import BatchKey, Resolution, TimelineView
from tests.dagster.bad_day import Page
from tests.dagster.shown import failed_partitions

if TYPE_CHECKING:
    from tests.dagster.conftest import Daemon, Days

pytestmark = pytest.mark.dagster

ALL = {
    *("manifest_readable", "objects_present", "files_published", "no_blocked_files"),
    *("partitions_match_timeline", "orphan_bytes", "checkpoint_age"),
}
BESIDE = {"files_published", "no_blocked_files", "partitions_match_timeline"}
Said = dict[str, dg.AssetCheckEvaluation]


def check(days: Days, *chosen: str) -> Said:
    """Run the checks of these names, or all of them, as the button of the page does."""
    checks = build_checkpoint_checks(days.code.JOB, partitions_def=days.code.DAYS)
    job = build_maintenance(days.code.JOB, "checks")
    keys = [dg.AssetCheckKey(days.code.JOB.checkpoints_key, name) for name in chosen]
    some = dg.define_asset_job("some", selection=dg.AssetSelection.checks(*keys)) if keys else job
    defs = dg.Definitions(
        assets=[*checkpoint_asset_specs(days.code.JOB), dg.AssetSpec(days.code.JOB.state_key)],
        asset_checks=[checks],
        jobs=[some],
        resources={"changelog": days.resource()},
    )
    result = defs.resolve_job_def(some.name).execute_in_process(instance=days.instance)
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def shown(days: Days, names: Collection[str] = BESIDE) -> dict[str, tuple[bool, str]]:
    """The newest evaluation of each check, as the page shows it, whoever wrote it."""
    storage = days.instance.event_log_storage
    found = {}
    for name in names:
        key = dg.AssetCheckKey(days.code.JOB.checkpoints_key, name)
        (record,) = storage.get_asset_check_execution_history(key, limit=1)
        assert record.evaluation is not None
        found[name] = (record.evaluation.passed, str(record.evaluation.description))
    return found


def test_each_check_runs_alone() -> None:
    """By the page's button, which Dagster does not offer for checks of which none can be chosen."""
    assert build_checkpoint_checks("orders").can_subset


def test_a_chosen_check_reads_nothing_for_the_others(days: Days) -> None:
    """Only what was chosen is evaluated; all of them by default."""
    days.run("2024-01-01")
    assert set(check(days, "checkpoint_age")) == {"checkpoint_age"}
    assert set(check(days)) == ALL


def test_results_hold_numbers_that_plot(days: Days) -> None:
    """Each has at least one, and none has its own sentence once more."""
    days.run("2024-01-01")
    for name, each in check(days).items():
        numbers = [entry for entry in each.metadata.values() if isinstance(entry.value, int | float)]
        assert numbers, name
        assert each.description not in [entry.value for entry in each.metadata.values()]


def test_a_checkpoint_is_checked_as_it_is_reported(days: Days) -> None:
    """By the run itself, in no run of checks; after each day again."""
    for day in ("2024-01-01", "2024-01-02"):
        result = days.run(day)
        assert {each.check_name for each in result.get_asset_check_evaluations()} == BESIDE
        assert all(passed for passed, _ in shown(days).values()), shown(days)


@pytest.mark.parametrize(
    ("name", "limit", "passes", "says"),
    [
        ("row_drop", 0.5, False, "checkpoint 2 has 1 rows, and the one before had 10"),
        ("row_drop", 0.9, True, "checkpoint 2 has 1 rows"),
        ("delete_share", 0.5, False, "9 of 10 changes of checkpoint 2 are deletes"),
        ("delete_share", 0.9, True, "9 of 10 changes"),
        ("null_keys", 0, False, "1 of 1 upserts of checkpoint 2 have a null in their key"),
        ("null_keys", 1, True, "1 of 1 upserts"),
        ("unchanged_days", 1, False, "checkpoint 2 changed something, 3 d ago"),
        ("unchanged_days", 3, True, "checkpoint 2 changed something"),
    ],
)
def test_the_data_is_checked_by_manifests(
    days: Days, name: str, limit: float, passes: bool, says: str
) -> None:
    """Rows that were lost, the share of deletes, and how long nothing has changed."""
    for deleted in (10 * [False], [False] + 9 * [True]):
        rows = pa.table({"key": [None, *(str(each) for each in range(1, 10))], "total": 10 * [1]})
        coordinator = days.coordinator()
        attempt = coordinator.trigger()
        flags = pa.array(deleted)
        report = write_rows(
            rows, attempt, days.store, operator="totals", schema=days.code.STATE, deleted=flags
        )
        coordinator.record(attempt, [report], [], {})
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    latest = days.coordinator().latest()
    assert latest is not None
    # Exact only once all was merged, or replaced; of bounds a drop that is certain counts.
    exact = dataclasses.replace(latest.manifest.operators["totals"], rows=StateRows(1, 1))
    manifest = dataclasses.replace(latest.manifest, operators={"totals": exact})
    latest = dataclasses.replace(latest, manifest=manifest)
    clock: Any = SimpleNamespace(now=lambda: latest.entry.completed.recorded_at + timedelta(days=3))
    look = SimpleNamespace(coordinator=days.coordinator(), clock=clock)
    found = CHECKS[name].find(look, latest, limit)
    assert (found.passed, found.warn) == (passes, True)
    assert says in found.text


def test_the_checks_of_the_data_are_those_that_have_a_limit(days: Days) -> None:
    """Beside the others, by one argument, whose names and shares are checked as definitions load."""
    days.run("2024-01-01")
    checks = build_checkpoint_checks(days.code.JOB, data={"unchanged_days": 3}, changelog=days.resource())
    assert {each.name for each in checks.check_specs} == ALL | {"unchanged_days"}
    for wrong in ({"rows": 0.5}, {"row_drop": 1.5}, {"delete_share": -1}):
        with pytest.raises(InvalidInputError):
            build_checkpoint_checks(days.code.JOB, data=wrong)


NAME = "out/2024-01-01/0.txt"


def test_a_blocked_file_fails_the_checks(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the run that met it, and in the checks' own, by name and with what to do; until it is resolved."""
    confirm = CheckpointCoordinator.confirm

    def confirm_then_rival(coordinator: CheckpointCoordinator, attempt: Attempt) -> Any:
        checkpoint = confirm(coordinator, attempt)
        days.store.put(NAME, b"another's", precondition=ABSENT)
        return checkpoint

    monkeypatch.setattr(CheckpointCoordinator, "confirm", confirm_then_rival)
    assert not days.run("2024-01-01").success
    beside = shown(days)
    said = {name: (each.passed, str(each.description)) for name, each in check(days).items()}
    for name in ("files_published", "no_blocked_files"):
        for passed, text in (beside[name], said[name]):
            assert not passed
            assert NAME in text
            assert "dstl checkpoints resolve 1" in text
    assert check(days, "no_blocked_files")["no_blocked_files"].metadata["blocked files"].value == 1
    (blocked,) = days.coordinator().get(1).blocked
    days.coordinator().resolve(1, blocked.name, Resolution.REPLACE)
    after = check(days)
    assert after["files_published"].passed
    assert after["no_blocked_files"].passed


def test_files_that_nobody_publishes_are_found(days: Days, daemon: Daemon) -> None:
    """A host that died before step 6: a warning for a quarter of an hour, which is an error after it."""
    days.code.make_outside(days.uri, "2024-01-01", until="completed")
    daemon.tick()
    passed, text = shown(days)["files_published"]
    assert not passed
    assert text.startswith("1 of 1 files of checkpoint 1 are not published yet: step 6")
    assert check(days)["files_published"].severity is dg.AssetCheckSeverity.WARN
    view = days.coordinator().timeline.tail()
    entry = view.last_completed
    assert entry is not None
    for minutes, warns in ((14, True), (16, False)):
        later = SimpleNamespace(now=lambda at=entry.completed.recorded_at + timedelta(minutes=minutes): at)
        assert unpublished_files(view, later).warn is warns  # type: ignore[arg-type] # all that it asks a clock
    days.coordinator().compose_commit(1)
    daemon.tick()
    assert shown(days)["files_published"] == (True, "1 file of checkpoint 1 is published")


def test_a_restore_names_the_days_to_run_again(days: Days, daemon: Daemon) -> None:
    """Shown as materialized they fail the check, shown as failed they warn, until they have run again."""
    for day in ("2024-01-01", "2024-01-02", "2024-01-03"):
        days.run(day)
    days.coordinator().restore(1)
    check(days)
    passed, text = shown(days)["partitions_match_timeline"]
    assert not passed
    assert text.startswith(
        "2024-01-02, 2024-01-03 are in no checkpoint, as after a restore, but shown as mat"
    )
    assert "chk-00000003, chk-00000002 are not restorable any more" in text
    days.run("2024-01-02")
    daemon.tick()
    assert (
        "2024-01-03 is in no checkpoint any more, and shown as failed"
        in shown(days)["partitions_match_timeline"][1]
    )
    assert failed_partitions(days, "state") == {"2024-01-03"}
    days.run("2024-01-03")
    assert shown(days)["partitions_match_timeline"] == (
        True,
        "Dagster's partitions are those of the timeline",
    )


@pytest.mark.parametrize("gone", [0, 1, pytest.param(3, marks=pytest.mark.soak)])
def test_the_check_says_of_a_restore_what_the_page_shows(
    gone: int, days: Days, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The days that it names are failed on the page, whose backfill of "failed and missing" takes them."""
    monkeypatch.setenv("DSTL_DAYS_URI", days.uri)
    ran = [f"2024-01-{number:02}" for number in range(1, gone + 2)]
    # One that the page can be served from.
    with dg.DagsterInstance.from_config(str(tmp_path)) as days.instance:
        for day in ran:
            assert days.run(day).success
        days.coordinator().restore(1)
        daemon.tick()
        with Page.of(days.instance) as page:
            failed, so = page.failed_days(), page.says()
        passed, text = shown(days)["partitions_match_timeline"]
    assert (failed, so.in_state) == (ran[1:], ran[:1])
    assert passed is (gone == 0)
    said = {0: "", 1: f"{ran[-1]} is ", 3: f"{', '.join(ran[1:])} are "}[gone]
    advice = "in no checkpoint any more, and shown as failed: launch a backfill of what is failed or missing"
    assert text == (f"{said}{advice}" if gone else "Dagster's partitions are those of the timeline")


def test_a_restore_by_the_command_is_seen_by_the_sensor(days: Days, daemon: Daemon) -> None:
    """Nobody ran the checks, and no run of Dagster knows of it."""
    days.run("2024-01-01")
    days.run("2024-01-02")
    daemon.tick()
    assert shown(days)["partitions_match_timeline"][0]
    days.coordinator().restore(1)
    daemon.tick()
    passed, text = shown(days)["partitions_match_timeline"]
    assert not passed
    assert text.startswith("2024-01-02 is in no checkpoint any more, and shown as failed")


def test_who_knows_less_replaces_no_finding(days: Days) -> None:
    """A step or a sensor that is not told of the partitions says nothing of them."""
    view = days.coordinator().timeline.tail()
    found = evaluations_beside(AssetsPage(days.code.JOB, days.instance), view, SystemClock())
    assert {each.check_name for each in found} == BESIDE - {"partitions_match_timeline"}


def test_a_day_that_dagster_does_not_show_is_found(days: Days, daemon: Daemon) -> None:
    """A run that ended after step 5 left its day in the state, and Dagster's page without it."""
    days.run("2024-01-01")
    days.code.make_outside(days.uri, "2024-01-02")
    passed, text = shown_after_check(days)
    assert not passed
    assert text.startswith("2024-01-02 is in the state, but not shown as materialized")
    days.run("2024-01-02")
    daemon.tick()
    assert shown(days)["partitions_match_timeline"][0]


def shown_after_check(days: Days) -> tuple[bool, str]:
    found = check(days, "partitions_match_timeline")["partitions_match_timeline"]
    return found.passed, str(found.description)


@pytest.mark.parametrize(
    ("thorough", "since_the_snapshot", "lookups"),
    [
        (True, {}, 100),
        (False, {}, 5),
        (False, {"1999-01-01": (7,)}, 0),
        (False, {"1996-01-01": (7,)}, 3),
        (False, {"1996-01-01": (7,), "run:4f2c/update": (8,)}, 3),  # beside them a source without partitions
    ],
)
def test_only_the_latest_days_of_the_archive_are_looked_up(
    thorough: bool,
    since_the_snapshot: dict[str, tuple[int, ...]],
    lookups: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each costs a request: a hundred of a thousand days, and beside a checkpoint none that must be held."""
    asked: list[str] = []

    class Archive:
        def checkpoints_of_key(self, key: str) -> list[int]:
            asked.append(key)
            return [1]

    days = [f"{1000 + number}-01-01" for number in range(1000)]
    archive: Any = Archive()
    keys = {BatchKey(key): ids for key, ids in since_the_snapshot.items()}
    view = TimelineView(slot=33, snapshot_slot=32, archive=archive, keys=keys)
    with dg.DagsterInstance.ephemeral() as instance:
        monkeypatch.setattr(instance, "get_materialized_partitions", lambda _: set(days))
        monkeypatch.setattr(instance, "get_status_by_partition", lambda *_: None)
        page = AssetsPage(JobAssets("orders"), instance, dg.StaticPartitionsDefinition(days))
        found = partitions_finding(page, view, thorough=thorough)
    assert found.passed
    assert sorted(asked) == days[len(days) - lookups :]


def test_every_partition_of_the_archive_that_a_restore_undid_is_found() -> None:
    """However many there are, in whatever order: by the events, and only those are looked up."""
    asked: list[str] = []

    class Archive:
        def checkpoints_of_key(self, key: str) -> list[int]:
            asked.append(key)
            return [2]

    archive: Any = Archive()
    regions, assets = [f"region-{number:03}" for number in range(150)], JobAssets("orders")
    view = TimelineView(
        slot=33, timeline_id="0123456789abcdef", snapshot_slot=32, archive=archive, abandoned=((2, 2),)
    )
    with dg.DagsterInstance.ephemeral() as instance:
        for number, region in enumerate(regions):
            said = f"{view.timeline_id} {2 if number in (0, 70) else 1} 5 {uuid.uuid4()}"
            instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    assets.state_key, partition=region, metadata={"dstl/job": "orders", "dstl/timeline": said}
                )
            )
        page = AssetsPage(assets, instance, dg.StaticPartitionsDefinition(regions))
        found = partitions_finding(page, view)
    assert found.text.startswith("region-000, region-070 are in no checkpoint, as after a restore")
    assert sorted(asked) == ["region-000", "region-070"]


@pytest.mark.parametrize(
    ("now", "wrong"),
    [
        (dg.WeeklyPartitionsDefinition("2024-01-01", day_offset=1), ["2024-01-08"]),
        (dg.DailyPartitionsDefinition("2024-01-01", timezone="Asia/Tokyo"), ["2024-01-07", "2024-01-08"]),
        (dg.HourlyPartitionsDefinition("2024-01-01-00:00"), []),
        (dg.DailyPartitionsDefinition("2024-01-01"), []),
    ],
    ids=["weekly", "another zone", "hourly", "the same"],
)
def test_a_day_that_another_definition_had_is_no_week_that_is_held(
    now: dg.PartitionsDefinition[str], wrong: list[str]
) -> None:
    """Partitions were defined anew: Dagster shows as materialized what has the name of an older one."""
    assets, days = JobAssets("orders"), dg.DailyPartitionsDefinition("2024-01-01")
    keys = {
        BatchKey(day, "asset:orders/state@0", interval(days.time_window_for_partition_key(day))): (number,)
        for number, day in enumerate(("2024-01-07", "2024-01-08"), 1)
    }
    view = TimelineView(slot=3, keys=keys)
    with dg.DagsterInstance.ephemeral() as instance:
        for batch in keys:
            instance.report_runless_asset_event(
                dg.AssetMaterialization(assets.state_key, partition=batch.key)
            )
        found = partitions_finding(AssetsPage(assets, instance, now), view)
    assert [batch.key for batch in keys if batch.key in found.text] == wrong
    assert found.passed == (not wrong)


@pytest.mark.parametrize(("definition", "is_found"), [(dg.StaticPartitionsDefinition, False), (None, True)])
def test_a_lost_partition_without_an_order_passes_no_check_beside_a_checkpoint(
    definition: Any, is_found: bool
) -> None:
    """It is in the archive, and any of them may be: that is left to the check that looks them up."""
    days = ["2024-01-01", "2024-01-02", "2024-01-03"]
    files = dg.DailyPartitionsDefinition(days[0]) if definition is None else definition(days)
    view = TimelineView(slot=33, snapshot_slot=32, keys={BatchKey(days[-1]): (3,)}, abandoned=((2, 2),))
    with dg.DagsterInstance.ephemeral() as instance:
        page = AssetsPage(JobAssets("orders"), instance, files)
        found = evaluations_beside(page, view, SystemClock())
    assert ("partitions_match_timeline" in [each.check_name for each in found]) is is_found
