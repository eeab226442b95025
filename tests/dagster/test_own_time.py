"""A checkpoint is as fresh as it is old, however late Dagster was told of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from dstl_dagster import ChangelogStorageResource, build_checkpoint_checks, checkpoint_asset_specs
from dstl_dagster.checkpoint import CheckpointCoordinator
from tests.dagster.conftest import Daemon
from tests.dagster.days import DAYS, JOB, write_change, write_file

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

DAY = timedelta(days=1)


class TwoDaysAgo:
    """The clock of a job whose checkpoints nobody told Dagster of."""

    def now(self) -> datetime:
        return datetime.now(UTC) - 2 * DAY

    def monotonic_seconds(self) -> float:
        return 0.0


def make_old(days: Days) -> datetime:
    """A checkpoint of two days ago; returns when it was completed."""
    coordinator = CheckpointCoordinator("days", days.store, owner="spark-submit", clock=TwoDaysAgo())
    attempt = coordinator.trigger(idempotency_key="2024-01-01")
    state, file = write_change(days.store, attempt, b"a"), write_file(days.store, attempt, "out/a.txt")
    coordinator.record(attempt, [state], [file], {"calendar": "2024-01-01"})
    at = coordinator.confirm(attempt).entry.completed.recorded_at
    coordinator.compose_commit()
    return at


def definitions(days: Days, max_age: timedelta) -> dg.Definitions:
    return dg.Definitions(
        assets=checkpoint_asset_specs(JOB, partitions_def=DAYS),
        asset_checks=[build_checkpoint_checks(JOB, max_age=max_age)],
        resources={"changelog": ChangelogStorageResource(uri=days.uri)},
    )


def evaluated(days: Days, name: str) -> dg.AssetCheckEvaluation | None:
    """The newest evaluation of a check."""
    key = dg.AssetCheckKey(dg.AssetKey(["days", "checkpoints"]), name)
    found = days.instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    return None if found is None else found.evaluation


def checked(days: Days, name: str) -> bool | None:
    """What it says; `None` where there is none."""
    found = evaluated(days, name)
    return None if found is None else found.passed


def test_what_a_tick_checks_is_of_the_newest_checkpoint(days: Days, daemon: Daemon) -> None:
    """By its number, not by the time: SQLite keeps a check's in whole seconds, and a tick comes at once."""
    run = days.run("2024-01-01")
    coordinator = days.coordinator()
    coordinator.abort(coordinator.trigger())  # something new, but no checkpoint
    daemon.tick()
    checkpoints = dg.AssetKey(["days", "checkpoints"])
    (newest,) = days.instance.fetch_materializations(checkpoints, limit=1).records
    target = evaluated(days, "no_blocked_files").target_materialization_data
    assert newest.run_id == run.run_id
    assert target is not None
    assert target.storage_id == newest.storage_id


@pytest.mark.parametrize(("max_age", "passes"), [(DAY, False), (3 * DAY, True)])
def test_the_sensor_checks_the_age_of_what_it_reports(days: Days, max_age: timedelta, passes: bool) -> None:
    """With the limit of the check in these definitions."""
    make_old(days)
    Daemon(days, definitions=definitions(days, max_age)).tick()
    assert checked(days, "checkpoint_age") is passes


def test_definitions_without_the_check_have_none(days: Days, daemon: Daemon) -> None:
    """Nothing is evaluated that nobody declared a limit for."""
    make_old(days)
    daemon.tick()
    assert checked(days, "checkpoint_age") is None
    assert checked(days, "no_blocked_files") is True


def test_dagsters_own_freshness_check_goes_by_the_checkpoints_time(days: Days, daemon: Daemon) -> None:
    """The metadata it looks for stands on each event: of the checkpoint, the operator and the files."""
    at = make_old(days)
    daemon.tick()
    for asset in (["days", "checkpoints"], ["days", "files"], ["days", "state", "totals"]):
        event = days.instance.get_latest_materialization_event(dg.AssetKey(asset))
        assert event is not None
        assert event.asset_materialization is not None
        said = event.asset_materialization.metadata["dagster/last_updated_timestamp"]
        assert said.value == pytest.approx(at.timestamp())
    for allowed, fresh in ((DAY, False), (3 * DAY, True)):
        with pytest.warns(match="superseded"):  # by policies, which go by when an event was written
            checks = dg.build_last_update_freshness_checks(
                assets=[dg.AssetKey(["days", "checkpoints"])], lower_bound_delta=allowed
            )
        result = dg.Definitions(
            assets=checkpoint_asset_specs(JOB, partitions_def=DAYS),
            asset_checks=checks,
            jobs=[dg.define_asset_job("fresh", selection=dg.AssetSelection.checks(*checks))],
        )
        run = result.resolve_job_def("fresh").execute_in_process(instance=days.instance)
        (found,) = run.get_asset_check_evaluations()
        assert found.passed is fresh
