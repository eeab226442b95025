"""The job that corrects a partition, on days that do nothing but count how often they ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster import build_maintenance
from dstl_dagster.orchestration.keys import TAG_CORRECTION
from tests.dagster.days import DAYS, end_of
from tests.dagster.shown import failed_partitions

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster
WEEK = tuple(f"2024-01-{day:02d}" for day in range(1, 5))


@dg.asset(partitions_def=DAYS)
def other() -> None:
    """Of the same days."""


def correct_job(days: Days, *selected: dg.AssetsDefinition) -> dg.JobDefinition:
    state = days.code.build_state(days.body, files=1)
    one_day = dg.define_asset_job("one_day", selected or [state])
    defs = dg.Definitions(assets=[state, other], jobs=[one_day], resources={"changelog": days.resource()})
    return build_maintenance(
        days.code.JOB,
        "correct",
        partitions_def=days.code.DAYS,
        day_job=lambda: defs.resolve_job_def("one_day"),
        changelog=days.resource(),
    )


def correct(days: Days, day: str, **how: Any) -> dg.ExecuteInProcessResult:
    return correct_job(days).execute_in_process(
        instance=days.instance, partition_key=day, raise_on_error=False, **how
    )


def test_a_day_is_corrected_with_those_after_it(days: Days) -> None:
    """Restore, then each day as a run of its own; a failing day stops it, and one for that day goes on."""
    for day in WEEK:
        assert days.run(day).success
    ran: list[str] = []
    bad = [WEEK[2]]

    def body(context: dg.OpExecutionContext, batch: Any) -> None:
        if context.partition_key in bad:
            raise dg.Failure("the source is not right yet", allow_retries=False)
        ran.append(context.partition_key)

    days.body = body
    failed = correct(days, WEEK[1])
    assert not failed.success
    assert days.failure(failed)[1].startswith(f"partition {WEEK[2]} failed (run ")
    assert days.shown_checkpoints() == ["chk-00000001", "chk-00000005"]
    assert failed_partitions(days, "state") == set(WEEK[2:])
    bad.clear()
    again = correct(days, WEEK[2])
    assert again.success, days.failure(again)
    assert failed_partitions(days, "state") == set()
    assert ran == list(WEEK[1:])
    logged = days.logged(again)
    assert f"correct: 2 of 2 partitions: {WEEK[3]} is in checkpoint 7" in logged
    latest = days.coordinator().latest()
    assert latest is not None
    assert (latest.checkpoint_id, dict(latest.positions)) == (7, {"calendar": end_of(WEEK[3])})
    runs = days.instance.get_runs(dg.RunsFilter(tags={TAG_CORRECTION: again.run_id}))
    assert [run.tags["dagster/partition"] for run in reversed(runs)] == list(WEEK[2:])


def test_a_correction_that_is_repeated_says_that_nothing_was_run(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Re-executed, it would undo what ran since: a new run corrects the day again."""
    monkeypatch.setattr("dstl_dagster.orchestration.operate.correcting.root_run_id", lambda _: "root")
    for day in WEEK[:2]:
        assert days.run(day).success
    warned = f"has corrected {WEEK[1]} already: nothing was run"
    assert warned not in days.logged(correct(days, WEEK[1]))
    assert warned in days.logged(correct(days, WEEK[1]))


def test_the_first_day_is_corrected_by_beginning_anew(days: Days) -> None:
    """Nothing is before it: all days run again, and the page shows them."""
    for day in WEEK[:2]:
        assert days.run(day).success
    result = correct(days, WEEK[0])
    assert result.success, days.failure(result)
    assert f"correct: 2 batches run again: {WEEK[0]}, {WEEK[1]}" in days.logged(result)
    assert failed_partitions(days, "state") == set()
    assert days.shown_checkpoints() == ["chk-00000003", "chk-00000004"]


def test_a_batch_that_is_no_partition_is_refused_before_the_restore(days: Days) -> None:
    """A driver's, behind the day: nothing of this job runs it again, so it is not undone."""
    assert days.run(WEEK[0]).success
    days.code.make_outside(days.uri, "late letters")
    before = days.kinds()
    refused = correct(days, WEEK[0])
    said = days.failure(refused)[1]
    assert "'late letters' is no partition of 'one_day'" in said
    assert "nothing was changed" in said
    assert days.kinds() == before


def test_an_asset_that_the_job_leaves_out_is_refused_before_the_restore(days: Days) -> None:
    """Its days would be undone, and not run again."""
    assert days.run(WEEK[0]).success
    before = days.kinds()
    refused = correct_job(days, other).execute_in_process(
        instance=days.instance, partition_key=WEEK[0], raise_on_error=False
    )
    assert f"asset days/state, which made batch '{WEEK[0]}', is not in 'one_day'" in days.failure(refused)[1]
    assert days.kinds() == before
