"""Which days Dagster shows as failed: those that were tried or taken away, not those of a refused run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from dstl_dagster import build_maintenance
from dstl_dagster.orchestration.inject.repeated_run import _way_out
from tests.dagster.conftest import Daemon, Days
from tests.dagster.shown import failed_partitions, materialized_partitions

pytestmark = pytest.mark.dagster

FIRST, SECOND, THIRD = "2024-01-01", "2024-01-02", "2024-01-03"


@pytest.fixture
def on_disk(days: Days, tmp_path: Path) -> Iterator[Days]:
    """On the databases of `dagster dev`: one for each run, and each counts its events from 1."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield replace(days, instance=instance)


def _fails(*_: Any) -> None:
    raise dg.Failure("the source is not there", allow_retries=False)


def marks(days: Days) -> list[dg.DagsterRun]:
    """The runs that are none, oldest first."""
    return [*reversed(days.instance.get_runs(dg.RunsFilter(job_name="days_mark")))]


def test_a_day_out_of_order_is_left_missing(days: Days) -> None:
    """The run fails, and says why; the day was not tried, so it is not shown as failed."""
    assert days.run(FIRST).success
    refused = days.run(THIRD)
    assert "out of order" in days.failure(refused)[1]
    assert failed_partitions(days, "state") == set()
    assert materialized_partitions(days, "state") == {FIRST}
    (mark,) = marks(days)
    assert mark.status is dg.DagsterRunStatus.CANCELED
    assert mark.tags["dstl/mark"] == "left as they were, by runs that were refused"
    assert not days.run(THIRD).success
    assert failed_partitions(days, "state") == set()
    assert len(marks(days)) == 1, "one for all"


def test_a_held_day_that_is_refused_stays_green(days: Days) -> None:
    """Such as a second run of it that fails because nothing would change."""
    assert days.run(FIRST).success
    assert not days.run(FIRST, tags={"dstl/fail_if_applied": "true"}).success
    assert materialized_partitions(days, "state") == {FIRST}


def test_a_run_beside_an_open_attempt_leaves_its_day(days: Days) -> None:
    """The second of two runs of a day."""
    days.code.make_outside(days.uri, FIRST, until="opened")
    assert "is being made by attempt" in days.failure(days.run(FIRST))[1]
    assert failed_partitions(days, "state") == set()


def test_a_day_that_failed_stays_failed(days: Days) -> None:
    """Tried, then refused: what was shown before the refused run is shown after it."""
    days.body = _fails
    assert not days.run(FIRST).success
    days.body = days.code._nothing
    days.code.make_outside(days.uri, FIRST, until="opened")
    assert not days.run(FIRST).success
    assert failed_partitions(days, "state") == {FIRST}
    days.coordinator("spark-submit").trigger()  # ends the attempt that was open
    assert days.run(FIRST, tags={"dstl/take_over": "true"}).success
    assert failed_partitions(days, "state") == set()


def test_a_held_day_that_failed_is_green_after_another_run(days: Days) -> None:
    """Its state is materialized although nothing changed: nothing else takes the red away."""
    assert days.run(FIRST).success
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dstl_dagster.orchestration.inject.resources.log_opened", _fails)
        assert not days.run(FIRST).success
    assert failed_partitions(days, "state") == {FIRST}
    assert days.run(FIRST).success
    assert materialized_partitions(days, "state") == {FIRST}


def test_a_mark_of_a_restore_has_an_end_and_is_settled(on_disk: Days) -> None:
    """It says of which days it is, ends when it begins, and succeeds once all of them ran again."""
    days, daemon = on_disk, Daemon(on_disk)
    for day in (FIRST, SECOND, THIRD):
        assert days.run(day).success
    days.coordinator().restore(1)
    daemon.tick()
    assert daemon.tick() == "slot 10: nothing new"
    (mark,) = marks(days)
    about = "run again after the restore to checkpoint 1: 2024-01-02, 2024-01-03"
    assert (mark.status, mark.tags["dstl/mark"]) == (dg.DagsterRunStatus.FAILURE, about)
    (record,) = days.instance.get_run_records(dg.RunsFilter(run_ids=[mark.run_id]))
    assert record.start_time is not None
    assert record.end_time is not None
    assert not days.run(THIRD).success
    assert failed_partitions(days, "state") == {SECOND, THIRD}, "out of order: as it was"
    assert days.run(SECOND).success
    daemon.tick()
    assert marks(days)[0].status is dg.DagsterRunStatus.FAILURE
    assert days.run(THIRD).success
    daemon.tick()
    (settled,) = marks(days)
    assert (settled.status, settled.tags["dstl/mark"]) == (dg.DagsterRunStatus.SUCCESS, f"settled; {about}")
    assert failed_partitions(days, "state") == set()
    assert not [each for each in days.instance.all_logs(mark.run_id) if each.dagster_event.is_failure]


def test_a_run_that_changed_nothing_leads_to_the_correction(days: Days) -> None:
    """By the command, and by a link to the job of the code location that makes the day again."""
    correct = build_maintenance(
        days.code.JOB,
        "correct",
        partitions_def=days.code.DAYS,
        day_job=lambda: None,  # type: ignore[arg-type, return-value]
    )
    definitions = dg.Definitions(jobs=[correct], resources={"changelog": days.resource()})
    context: Any = SimpleNamespace(repository_def=definitions.get_repository_def())
    text, linked = _way_out(context, "days", FIRST)
    assert text == f"To make it again: launch days_correct for it, or dstl checkpoints correct {FIRST}"
    assert "[days_correct](/guess/days_correct/playground/setup?tags[0][key]=dagster/partition&" in linked
    assert _way_out(context, "another", FIRST)[0] == f"To make it again: dstl checkpoints correct {FIRST}"
