"""An attempt that a cancelled or failed run left open: the run status sensors abort it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from dstl_dagster import build_abort_sensors
from dstl_dagster.checkpoint import Attempt
from dstl_dagster.keyed import AttemptReport, store_report

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

CANCELED, FAILURE = dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE
ENDED = {CANCELED: "canceled", FAILURE: "failed"}


def left_open(days: Days, status: dg.DagsterRunStatus) -> tuple[dg.DagsterRun, Attempt]:
    """A run with that ending, and the attempt that it opened."""
    run = dg.DagsterRun(job_name="days", run_id=str(uuid.uuid4()), status=status)
    days.instance.add_run(run)
    return run, days.coordinator(f"dagster-run:{run.run_id}").trigger()


def evaluate(days: Days, run: dg.DagsterRun, *, bound: bool = False) -> str:
    """What the sensor for that ending says about the run."""
    given = {"changelog": days.resource()}
    sensors = build_abort_sensors(days.code.JOB, **(given if bound else {}))
    (sensor,) = (each for each in sensors if each.name.endswith(ENDED[run.status]))
    context = dg.build_run_status_sensor_context(
        sensor_name=sensor.name,
        dagster_instance=days.instance,
        dagster_run=run,
        dagster_event=dg.DagsterEvent("PIPELINE_CANCELED", "days", message="over"),
        resources={} if bound else given,
    )
    with context:
        said = sensor(context)
    assert isinstance(said, dg.SkipReason)
    assert said.skip_message is not None
    return said.skip_message


def finish_work(days: Days, attempt: Attempt) -> None:
    """Steps 2 and 3 of the attempt are done: everything is reported."""
    change = days.code.write_change(days.store, attempt, b"key")
    store_report(days.store, attempt, AttemptReport(operators=(change,)))


@pytest.mark.parametrize("status", list(ENDED))
@pytest.mark.parametrize("bound", [False, True])
def test_what_a_run_left_open_is_aborted(status: dg.DagsterRunStatus, bound: bool, days: Days) -> None:
    """The attempt ends before the job's next run; the sensor names it, and the store has the reason."""
    run, _ = left_open(days, status)
    said = evaluate(days, run, bound=bound)
    assert said == f"aborted the attempt of run {run.run_id} on checkpoint 1"
    assert days.kinds() == ["opened", "aborted"]
    last = list(days.coordinator().timeline.records())[-1]
    assert f"Dagster run {run.run_id} was {ENDED[status]}" in last.reason  # type: ignore[attr-defined]


def test_the_same_end_seen_twice_aborts_once(days: Days) -> None:
    """A daemon that died after the sensor's tick evaluates it again."""
    run, _ = left_open(days, CANCELED)
    evaluate(days, run)
    assert "left no attempt" in evaluate(days, run)
    assert days.kinds() == ["opened", "aborted"]


def test_a_failed_runs_finished_work_is_kept(days: Days) -> None:
    """A reported attempt can still be completed: re-execute the run from failure, without its Spark job."""
    run, attempt = left_open(days, FAILURE)
    finish_work(days, attempt)
    assert "re-execute it from failure to complete checkpoint 1" in evaluate(days, run)
    assert days.kinds() == ["opened"]


def test_a_cancelled_runs_finished_work_is_not_kept(days: Days) -> None:
    """A cancelled run is not meant to be continued."""
    run, attempt = left_open(days, CANCELED)
    finish_work(days, attempt)
    evaluate(days, run)
    assert days.kinds() == ["opened", "aborted"]


def test_a_run_that_is_executed_again_keeps_its_attempt(days: Days) -> None:
    """A re-execution continues with the attempt, or ends it itself."""
    root, _ = left_open(days, FAILURE)
    days.instance.add_run(
        dg.DagsterRun(
            job_name="days",
            run_id=str(uuid.uuid4()),
            status=dg.DagsterRunStatus.STARTED,
            root_run_id=root.run_id,
            parent_run_id=root.run_id,
            tags={"dagster/root_run_id": root.run_id, "dagster/parent_run_id": root.run_id},
        )
    )
    assert "being re-executed" in evaluate(days, root)
    assert days.kinds() == ["opened"]


def test_somebody_elses_attempt_is_left_alone(days: Days) -> None:
    """The end of a run does not touch another owner's attempt, nor a completed checkpoint."""
    run, _ = left_open(days, CANCELED)
    days.coordinator(f"dagster-run:{run.run_id}").trigger(take_over=True)
    other = dg.DagsterRun(job_name="days", run_id=str(uuid.uuid4()), status=CANCELED)
    days.instance.add_run(other)
    assert "left no attempt" in evaluate(days, other)
    assert days.kinds()[-1] == "opened"


def test_a_checkpoint_that_completed_stays(days: Days) -> None:
    """Past the commit point there is nothing to abort."""
    assert days.run("2024-01-01").success
    (run,) = days.instance.get_runs()
    evaluate(days, run.with_status(CANCELED))
    assert days.kinds() == ["opened", "completed", "committed"]


def test_an_interrupted_op_leaves_nothing_open(days: Days) -> None:
    """Dagster interrupts the op of a cancelled run, once or again: the batch is aborted on the way out."""

    def interrupted(context: dg.OpExecutionContext, batch: object) -> None:
        raise dg.DagsterExecutionInterruptedError

    days.body = interrupted
    assert not days.run("2024-01-01").success
    # Once for each of the three tries of the op's retry policy.
    assert days.kinds() == ["opened", "aborted"] * 3
