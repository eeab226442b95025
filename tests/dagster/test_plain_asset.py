"""A plain asset whose body writes a batch: Dagster shows of it what the store holds, as of any other."""

# No postponed annotations: Dagster reads the types of arguments as objects.

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from dstl_dagster import (
    ChangelogStorageResource,
    JobAssets,
    build_checkpoint_checks,
    build_maintenance,
    checkpoint_asset_specs,
    restore_run_config,
)
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.orchestration.timeline_check import shown_in
from dstl_dagster.storage import ObjectStore, open_store
from tests.dagster.conftest import Days
from tests.dagster.days import DAYS, write_change

pytestmark = pytest.mark.dagster

FIRST, SECOND, THIRD = "2024-01-01", "2024-01-02", "2024-01-03"
Body = Callable[[dg.AssetExecutionContext, ChangelogStorageResource], Any]


def write(
    context: dg.AssetExecutionContext, changelog: ChangelogStorageResource, job: str, **named: Any
) -> None:
    with changelog.checkpoint(context, job, **named) as batch:
        if batch.already_in is None:
            batch.add(write_change(changelog.store(), batch.attempt, context.partition_key.encode()))


def in_one_job(context: dg.AssetExecutionContext, changelog: ChangelogStorageResource) -> None:
    write(context, changelog, "plain")


def by_a_source(context: dg.AssetExecutionContext, changelog: ChangelogStorageResource) -> None:
    write(context, changelog, "plain", source="calendar")


def with_a_version(context: dg.AssetExecutionContext, changelog: ChangelogStorageResource) -> Any:
    write(context, changelog, "plain")
    return dg.MaterializeResult(data_version=dg.DataVersion("one's own"), metadata={"mine": 1})


def in_two_jobs(context: dg.AssetExecutionContext, changelog: ChangelogStorageResource) -> None:
    write(context, changelog, "plain")
    write(context, changelog, "other")


def in_two_batches(context: dg.AssetExecutionContext, changelog: ChangelogStorageResource) -> None:
    for part in ("a", "b"):
        write(context, changelog, "plain", idempotency_key=f"{context.partition_key}/{part}")


def yielding_early(context: dg.AssetExecutionContext, changelog: ChangelogStorageResource) -> Any:
    with changelog.checkpoint(context, "plain") as batch:
        if batch.already_in is None:
            batch.add(write_change(changelog.store(), batch.attempt, context.partition_key.encode()))
        yield dg.MaterializeResult()
        if context.run.tags.get("ends") == "failed":
            raise dg.Failure("after its output", allow_retries=False)
        if context.run.tags.get("ends") == "canceled":
            raise dg.DagsterExecutionInterruptedError


class Plain:
    """Its asset, its job, and Dagster's page."""

    def __init__(self, days: Days, body: Body) -> None:
        self.days, self.body = days, body

    @staticmethod
    def asset(body: Body) -> dg.AssetsDefinition:
        @dg.asset(name="rows", partitions_def=DAYS)
        def rows(context: dg.AssetExecutionContext, changelog: ChangelogStorageResource):
            return body(context, changelog)

        return rows

    @property
    def coordinator(self) -> CheckpointCoordinator:
        store: ObjectStore = open_store(self.days.uri)
        return CheckpointCoordinator("plain", store, owner="a person")

    def run(self, *days: str) -> None:
        for day in days:
            assert dg.materialize(
                [self.asset(self.body)],
                partition_key=day,
                instance=self.days.instance,
                resources={"changelog": self.days.resource()},
            ).success

    def statuses(self) -> dict[str, str]:
        key = dg.AssetKey("rows")
        ever = sorted(self.days.instance.get_materialized_partitions(key))
        found = self.days.instance.get_status_by_partition(key, ever, DAYS) or {}
        return {day: status.value for day, status in found.items() if status is not None}

    def restore(self, to: int) -> None:
        job = build_maintenance("plain", "restore", partitions_def=DAYS)
        last = self.coordinator.latest()
        assert last is not None
        assert job.execute_in_process(
            instance=self.days.instance,
            resources={"changelog": self.days.resource()},
            partition_key=f"chk-{to or last.checkpoint_id:08}",
            run_config=restore_run_config(last.checkpoint_id, to),
        ).success

    def found(self) -> str:
        """By the check of the partitions."""
        checks = build_checkpoint_checks("plain", partitions_def=DAYS, changelog=self.days.resource())
        job = dg.Definitions(
            assets=[self.asset(self.body), *checkpoint_asset_specs("plain")],
            asset_checks=[checks],
            resources={"changelog": self.days.resource()},
        ).resolve_implicit_global_asset_job_def()
        name = dg.AssetCheckKey(JobAssets("plain").checkpoints_key, "partitions_match_timeline")
        ran = job.get_subset(asset_selection=set(), asset_check_selection={name}).execute_in_process(
            instance=self.days.instance
        )
        return str(ran.get_asset_check_evaluations()[0].description)


@pytest.mark.parametrize(
    ("body", "by"),
    [
        (in_one_job, "job"),
        (in_one_job, "sensor"),
        (by_a_source, "sensor"),
        (with_a_version, "sensor"),
        (in_two_jobs, "sensor"),
        (in_two_batches, "sensor"),
        (yielding_early, "sensor"),
    ],
)
def test_what_a_restore_undid_is_shown_as_failed(body: Body, by: str, days: Days, daemon: Any) -> None:
    plain = Plain(days, body)
    plain.run(FIRST, SECOND, THIRD)
    to = 3 if body is in_two_batches else 2  # of two batches of a day the second one alone
    if by == "job":
        plain.restore(to)
    else:
        plain.coordinator.restore(to)
        daemon.job = "plain"
        daemon.tick()
    said = plain.found()
    gone = (SECOND, THIRD) if body is in_two_batches else (THIRD,)
    assert {day for day, status in plain.statuses().items() if status == "FAILED"} == {*gone}
    assert said.startswith(f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} in no checkpoint any more")
    plain.run(*gone)
    assert set(plain.statuses().values()) == {"MATERIALIZED"}
    assert plain.found() == "Dagster's partitions are those of the timeline"


def test_without_partitions_the_checkpoint_that_counts_is_the_newest(days: Days, daemon: Any) -> None:
    @dg.asset(name="rows")
    def rows(context: dg.AssetExecutionContext, changelog: ChangelogStorageResource) -> None:
        with changelog.checkpoint(context, "plain") as batch:
            batch.add(write_change(changelog.store(), batch.attempt, b"row"))

    plain = Plain(days, in_one_job)
    for _ in range(2):
        assert dg.materialize(
            [rows], instance=days.instance, resources={"changelog": days.resource()}
        ).success
    plain.coordinator.restore(1)
    daemon.job = "plain"
    for _ in range(2):
        daemon.tick()
    made = days.instance.fetch_materializations(dg.AssetKey("rows"), limit=9).records
    (shown,) = shown_in(made[0].asset_materialization)
    assert (shown.job, shown.checkpoint_id, len(made)) == ("plain", 1, 3)


@pytest.mark.parametrize("ends", ["failed", "canceled"])
def test_an_output_that_comes_before_its_batch_fails_is_no_day(days: Days, ends: str) -> None:
    """Dagster has the event when the batch is aborted."""
    plain = Plain(days, yielding_early)
    plain.run(FIRST)
    with pytest.raises((dg.Failure, dg.DagsterExecutionInterruptedError)):
        dg.materialize(
            [plain.asset(yielding_early)],
            partition_key=SECOND,
            instance=days.instance,
            resources={"changelog": days.resource()},
            tags={"ends": ends},
        )
    assert plain.statuses() == {FIRST: "MATERIALIZED", SECOND: "FAILED"}
    plain.run(SECOND)
    assert plain.statuses() == {FIRST: "MATERIALIZED", SECOND: "MATERIALIZED"}


def test_a_repeated_run_shows_the_checkpoint_that_holds_it(days: Days) -> None:
    """Also where that is subsumed; a restore to before it still finds the day."""
    days.options = {"execution.checkpointing.num-retained": "1", "dstl.checkpoint.snapshot-interval": "8"}
    plain = Plain(days, in_one_job)
    plain.run(FIRST, SECOND, THIRD, FIRST, SECOND)
    assert set(plain.statuses().values()) == {"MATERIALIZED"}
    plain.restore(0)
    assert plain.statuses() == dict.fromkeys((FIRST, SECOND, THIRD), "FAILED")
