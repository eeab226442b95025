"""What a run of the five steps leaves, in the store and in Dagster."""

from __future__ import annotations

import logging
from dataclasses import replace
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster import build_state_asset

if TYPE_CHECKING:
    from types import ModuleType

    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster


def test_a_run_makes_one_checkpoint(days: Days) -> None:
    """The five steps take a day from nothing to published files."""
    result = days.run("2024-01-01")
    assert result.success
    assert days.kinds() == ["opened", "completed", "committed"]
    assert days.store.get("out/2024-01-01/0.txt") == b"first line\nsecond line\n"
    latest = days.coordinator().latest()
    assert latest is not None
    assert latest.positions == {"calendar": "2024-01-02T00:00:00+00:00"}
    following = days.run("2024-01-02")
    logged = [each for each in days.instance.all_logs(following.run_id) if each.level >= logging.WARNING]
    assert [each.user_message for each in logged] == [], "such as Dagster's of a data version"


def test_the_state_says_what_changed(days: Days) -> None:
    """The state's materialisation names the checkpoint and has a row per operator."""
    days.run("2024-01-01")
    (state,) = days.events("state")
    assert state.partition == "2024-01-01"
    assert str(state.metadata["checkpoint"].value).startswith("[chk-00000001](")
    assert state.metadata["changed rows"].value == 1
    assert state.metadata["requests"].value > 0
    assert "| totals | key | 1 | 1 | 0 | " in str(state.metadata["details"].value)


def test_a_checkpoint_is_a_materialisation(days: Days) -> None:
    """Each completed checkpoint is reported once, under its own partition, with its parent."""
    days.run("2024-01-01")
    days.run("2024-01-02")
    first, second = days.events("checkpoints")
    assert [first.partition, second.partition] == ["chk-00000001", "chk-00000002"]
    latest = days.coordinator().latest()
    assert latest is not None
    assert second.tags is not None
    wanted = {"dstl/checkpoint_id": "2", "dstl/parent_id": "1", "dstl/attempt": str(latest.attempt)}
    assert wanted.items() <= second.tags.items()
    assert "dstl/parent_id" not in (first.tags or {})


def test_a_checkpoint_shows_all_that_a_person_asks(days: Days) -> None:
    """Few enough numbers to plot; ids as text; behind a click sources, operators, cost and the manifest."""
    days.run("2024-01-01")
    (checkpoint,) = days.events("checkpoints")
    metadata = {name: entry.value for name, entry in checkpoint.metadata.items()}
    numbers = [name for name, value in metadata.items() if isinstance(value, Number)]
    assert 0 < len([name for name in numbers if not name.startswith("dagster/")]) <= 9
    assert metadata["changes"] == 1
    assert metadata["files"] == 1
    assert "), the first, of 2024-01-01, by [run " in str(metadata["checkpoint"])
    assert str(metadata["retention"]).startswith("leaves after 10 newer ones; that frees at most ")
    latest = days.coordinator().latest()
    assert latest is not None
    details = str(metadata["details"])
    for part in (
        "| calendar | 2024-01-02T00:00:00+00:00 |",
        "| totals | key | 1 | 1 | 0 | ",
        "step trigger: ",
        f"manifest `{latest.entry.completed.manifest}`",
    ):
        assert part in details, part
    assert len(details) >= 1000, "less is shown in place"


def test_restorable_checkpoints_are_partitions(days: Days) -> None:
    """The dynamic partitions are the checkpoints that can be restored."""
    days.run("2024-01-01")
    days.run("2024-01-02")
    assert days.shown_checkpoints() == ["chk-00000001", "chk-00000002"]


def test_rows_that_were_not_counted_are_left_out(days: Days) -> None:
    """Of one file: no sum is shown or plotted, and no check of a user's goes by a zero."""

    def uncounted(_: dg.OpExecutionContext, batch: Any) -> None:
        written = days.code.write_file(days.store, batch.attempt, "out/uncounted.txt")
        batch.add(replace(written, rows=None))

    days.body = uncounted
    assert days.run("2024-01-01").success
    (files,), (checkpoint,) = days.events("files"), days.events("checkpoints")
    assert files.metadata["files"].value == 2
    assert not {"dagster/row_count", "dagster/partition_row_count"} & files.metadata.keys()
    for event in (files, checkpoint):
        assert sorted(str(event.metadata["file names"].value).split("  \n")) == [
            *("`2024-01-01/0.txt`, 2 rows, 23 B", "`uncounted.txt`, 23 B", "in `job/out/`:")
        ]


def test_files_are_materialised_under_the_days_partition(days: Days) -> None:
    """Step 6 reports what it published, for the run's own partition."""
    days.files = 2
    days.run("2024-01-01")
    (files,) = days.events("files")
    assert files.partition == "2024-01-01"
    metadata = {name: entry.value for name, entry in files.metadata.items()}
    assert (metadata["files"], metadata["dagster/partition_row_count"], metadata["components"]) == (2, 4, 4)
    assert str(metadata["file names"]).splitlines() == [
        "in `job/out/2024-01-01/`:  ",
        "`0.txt`, 2 rows, 23 B  ",
        "`1.txt`, 2 rows, 23 B",
    ]


def test_the_same_day_again_changes_nothing(days: Days) -> None:
    """A day that a checkpoint holds is not applied again; the run says so and succeeds."""
    days.run("2024-01-01")
    before = days.objects()
    again = days.run("2024-01-01")
    assert again.success
    assert days.objects() == before
    assert (
        "partition 2024-01-01 is already in checkpoint 1 of job 'days': nothing was changed"
        in days.logged(again)
    )
    assert len(days.events("checkpoints")) == 1
    assert len(days.events("files")) == 1
    assert len(days.events("state")) == 1
    (said,) = days.instance.fetch_observations(dg.AssetKey(["days", "state"]), limit=5).records
    assert said.asset_observation is not None
    assert said.asset_observation.description == "nothing changed: already in checkpoint 1"
    run = days.instance.get_run_by_id(again.run_id)
    assert run is not None
    assert run.tags["dstl/already_in"] == "1"


def test_what_waits_for_a_day_runs_though_that_changes_nothing(days: Days) -> None:
    """Of an optional output that is not there Dagster skips all that waits for it, under a green run."""
    failures, ran = [RuntimeError("first")], []

    @dg.asset(partitions_def=days.code.DAYS, deps=[days.code.JOB.state_key])
    def below() -> None:
        if failures:
            raise failures.pop()
        ran.append(1)

    @dg.asset_check(asset=days.code.JOB.state_key)
    def fine() -> dg.AssetCheckResult:
        ran.append(2)
        return dg.AssetCheckResult(passed=True)

    for success in (False, True):
        result = dg.materialize(
            [days.code.build_state(), below, fine],
            partition_key="2024-01-01",
            instance=days.instance,
            resources={"changelog": days.resource()},
            raise_on_error=False,
        )
        assert result.success is success
    assert sorted(ran) == [1, 2, 2]
    assert days.kinds() == ["opened", "completed", "committed"]


def test_in_a_backfill_the_same_day_again_is_materialized(days: Days) -> None:
    """Dagster starts the next day of a backfill only once this one is."""
    days.run("2024-01-01")
    assert days.run("2024-01-01", tags={"dagster/backfill": "abc"}).success
    assert len(days.events("state")) == 2


def test_the_same_day_again_fails_where_that_is_asked_for(days: Days) -> None:
    """By a tag of the run; what it says tells how to make the day again."""
    days.run("2024-01-01")
    before = days.objects()
    again = days.run("2024-01-01", tags={"dstl/fail_if_applied": "true"})
    assert not again.success
    assert days.failure(again)[1].endswith("To make it again: dstl checkpoints correct 2024-01-01")
    assert days.retries(again) == []
    assert days.objects() == before


def test_an_old_day_again_changes_nothing(days: Days) -> None:
    """Not only the last day: any earlier day is left alone, too."""
    for day in ("2024-01-01", "2024-01-02"):
        days.run(day)
    before = days.objects()
    assert days.run("2024-01-01").success
    assert days.objects() == before
    assert len(days.events("checkpoints")) == 2


def test_a_subsumed_checkpoints_day_is_still_done(days: Days) -> None:
    """A day whose checkpoint was cleaned up long ago is known, and the checkpoint is not shown again."""
    days.options = {
        "execution.checkpointing.num-retained": "1",
        "dstl.checkpoint.reader-grace": "0 s",
    }
    for day in ("2024-01-01", "2024-01-02", "2024-01-03"):
        assert days.run(day).success
    before = days.objects()
    again = days.run("2024-01-01")
    assert again.success, days.failure(again)
    assert days.objects() == before
    assert "complete and already subsumed" in days.logged(again)
    assert days.shown_checkpoints() == ["chk-00000003"]
    assert len(days.events("checkpoints")) == 3


def test_a_day_behind_snapshots_is_still_done(days: Days) -> None:
    """A day whose record was archived by a snapshot is still known."""
    days.options = {
        "execution.checkpointing.num-retained": "1",
        "dstl.checkpoint.reader-grace": "0 s",
        "dstl.checkpoint.snapshot-interval": "8",
    }
    for number in range(1, 7):
        assert days.run(f"2024-01-{number:02}").success
    assert 1 not in days.coordinator().timeline.tail().checkpoints
    before = days.objects()
    again = days.run("2024-01-01")
    assert again.success, days.failure(again)
    assert days.objects() == before
    assert "complete and already subsumed" in days.logged(again)
    assert len(days.events("checkpoints")) == 6


@pytest.mark.parametrize("day", ["2024-01-03", "2024-01-31"])
def test_a_day_that_is_not_next_is_refused(day: str, days: Days) -> None:
    """Out of order: no retry can help, the message names the next day, and nothing was written."""
    days.run("2024-01-01")
    before = days.objects()
    result = days.run(day)
    step, message = days.failure(result)
    assert step == "update"
    assert "stands at 2024-01-02T00:00:00+00:00; next is 2024-01-02" in message
    assert days.retries(result) == []
    assert days.objects() == before


def test_the_first_day_is_the_first_partition(days: Days) -> None:
    """A job without a checkpoint begins where its partitions begin."""
    _, message = days.failure(days.run("2024-01-02"))
    assert "no batch yet; its first partition is 2024-01-01" in message
    assert days.kinds() == []


RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


def _run_range(days: Days, first: str, last: str) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [days.code.build_state()],
        instance=days.instance,
        resources={"changelog": days.resource()},
        tags=dict(zip(RANGE, (first, last), strict=True)),
        raise_on_error=False,
    )


def test_a_run_over_several_days_is_refused(days: Days) -> None:
    """One run is one checkpoint: a range of days is refused, and nothing is written."""
    result = _run_range(days, "2024-01-01", "2024-01-03")
    step, message = days.failure(result)
    assert step == "update"
    assert "covers the partitions 2024-01-01 to 2024-01-03" in message
    assert days.retries(result) == []
    assert days.objects() == {}


def test_a_range_of_one_day_is_that_day(days: Days) -> None:
    """A backfill names its days as a range: a range of one day is that day."""
    assert _run_range(days, "2024-01-01", "2024-01-01").success
    assert [event.partition for event in days.events("files")] == ["2024-01-01"]
    assert days.run("2024-01-01").success
    assert days.kinds() == ["opened", "completed", "committed"]


def test_a_state_without_partitions_is_an_asset_too(days: Days, days_code: ModuleType) -> None:
    """Each run is a batch of its own, on top of the one before."""
    update = days_code.build_update(source=None)
    state = build_state_asset(days_code.JOB, update, retry_policy=days_code.AT_ONCE)
    for _ in range(2):
        result = dg.materialize([state], instance=days.instance, resources={"changelog": days.resource()})
        assert result.success
    assert [event.partition for event in days.events("checkpoints")] == ["chk-00000001", "chk-00000002"]
    assert [event.partition for event in days.events("files")] == [None, None]


def test_retention_takes_partitions_away(days: Days) -> None:
    """A subsumed checkpoint is no longer among the dynamic partitions."""
    days.options = {"execution.checkpointing.num-retained": "2"}
    for number in range(1, 5):
        days.run(f"2024-01-0{number}")
    assert days.shown_checkpoints() == ["chk-00000003", "chk-00000004"]
    assert [each.checkpoint_id for each in days.coordinator().list()] == [3, 4]


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plain job's store, which `plain_job` finds in the environment."""
    monkeypatch.setenv("DSTL_DAYS_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("DSTL_DAYS_FAIL_ONCE", str(tmp_path / "failed once"))
    return tmp_path / "store"


def test_a_plain_job_makes_a_checkpoint(days: Days, days_code: ModuleType, plain: Path) -> None:
    """The same steps behind a user's op, without assets and without partitions."""
    (plain.parent / "failed once").touch()
    assert days_code.plain_job().execute_in_process(instance=days.instance).success
    days.uri = plain.as_uri()
    assert days.kinds() == ["opened", "completed", "committed"]
    assert [event.partition for event in days.events("checkpoints")] == ["chk-00000001"]
    assert [event.partition for event in days.events("files")] == [None]


def test_without_partitions_each_run_is_a_batch(days: Days, days_code: ModuleType, plain: Path) -> None:
    """Two runs are two checkpoints, and each reports its files."""
    (plain.parent / "failed once").touch()
    for _ in range(2):
        assert days_code.plain_job().execute_in_process(instance=days.instance).success
    days.uri = plain.as_uri()
    assert len(days.coordinator().list()) == 2
    assert len(days.events("files")) == 2


def test_a_run_and_its_reexecutions_are_one_batch(
    tmp_path: Path, days: Days, days_code: ModuleType, plain: Path
) -> None:
    """A failed run that is re-executed from failure, and then as a whole, completes one checkpoint in all."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        job = dg.reconstructable(days_code.plain_job)
        with dg.execute_job(job, instance) as failed:
            assert not failed.success
        from_failure = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
        with dg.execute_job(job, instance, reexecution_options=from_failure) as again:
            assert again.success
        as_a_whole = dg.ReexecutionOptions(parent_run_id=again.run_id)
        with dg.execute_job(job, instance, reexecution_options=as_a_whole) as once_more:
            assert once_more.success
    days.uri = plain.as_uri()
    assert days.kinds() == ["opened", "aborted", "opened", "completed", "committed"]


def test_a_run_of_the_first_step_alone_completes_its_batch(
    tmp_path: Path, days: Days, days_code: ModuleType, plain: Path
) -> None:
    """As a person chooses it on the page of a failed run: no later step of that run would."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        job = dg.reconstructable(days_code.plain_job)
        with dg.execute_job(job, instance) as failed:
            assert not failed.success
        alone = dg.ReexecutionOptions(parent_run_id=failed.run_id, step_selection=["update"])
        with dg.execute_job(job, instance, reexecution_options=alone) as again:
            assert again.success
    days.uri = plain.as_uri()
    assert days.kinds() == ["opened", "aborted", "opened", "completed", "committed"]
