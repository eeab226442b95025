"""Failures around a step, and what Dagster's retries make of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster import persist_op
from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.errors import (
    ClosedError,
    ConflictError,
    DstlError,
    FencedError,
    FormatError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from dstl_dagster.orchestration.failures import without_useless_retries
from dstl_dagster.orchestration.inject import resources
from dstl_dagster.storage import ABSENT, open_store
from dstl_dagster.testing.fault_schedules import Fault, Request
from dstl_dagster.testing.fault_store import FaultStore

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster


@pytest.fixture
def days(days: Days) -> Days:
    """With a step for each of 4 to 7: a failure, and what is tried again, are shown at one of them."""
    days.separate_steps = True
    return days


class Once:
    """One fault, at the first request that a condition picks."""

    def __init__(self, fault: Fault, condition: Callable[[Request], bool]) -> None:
        self.fault: Fault | None = fault
        self.condition = condition

    def decide(self, request: Request) -> Fault | None:
        if self.fault is None or not self.condition(request):
            return None
        fault, self.fault = self.fault, None
        return fault

    def deliver_late_effect(self) -> bool:
        return False


def once(error: Exception, at: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
    """`at`, which raises in its first call: before it does anything, or after it did everything."""
    left = [error]

    def replaced(*args: Any, **kwargs: Any) -> Any:
        if left and not after:
            raise left.pop()
        result = at(*args, **kwargs)
        if left:
            raise left.pop()
        return result

    return replaced


# ---- attempts of others ----


def test_an_open_attempt_of_somebody_else_stops_the_run(days: Days) -> None:
    """While another owner's attempt is open the run fails at once, and names the owner."""
    days.coordinator("somebody else").trigger()
    result = days.run("2024-01-01")
    step, message = days.failure(result)
    assert step == "update"
    assert "'somebody else'" in message
    assert "tag the run dstl/take_over: true" in message
    assert days.retries(result) == []
    assert days.kinds() == ["opened"]


def test_a_tagged_run_takes_over(days: Days) -> None:
    """With `dstl/take_over: true` the run fences the other attempt and opens its own."""
    days.coordinator("somebody else").trigger()
    assert days.run("2024-01-01", tags={"dstl/take_over": "true"}).success
    assert days.kinds() == ["opened", "fenced", "opened", "completed", "committed"]


def test_another_value_of_the_tag_takes_nothing_over(days: Days) -> None:
    """Only `true` means yes."""
    days.coordinator("somebody else").trigger()
    assert not days.run("2024-01-01", tags={"dstl/take_over": "no"}).success
    assert days.kinds() == ["opened"]


def test_a_run_that_is_alive_is_not_taken_over(days: Days) -> None:
    """The attempt of a run that has not ended is not fenced."""
    _other_run(days, dg.DagsterRunStatus.STARTED)
    assert not days.run("2024-01-01").success
    assert days.kinds() == ["opened"]


def test_a_run_that_ended_is_taken_over(days: Days) -> None:
    """The attempt that a finished run left open is fenced by the next run, without take-over."""
    _other_run(days, dg.DagsterRunStatus.FAILURE)
    assert days.run("2024-01-01").success
    assert days.kinds() == ["opened", "fenced", "opened", "completed", "committed"]


def test_a_reexecution_that_is_alive_holds_the_attempt(days: Days) -> None:
    """An attempt belongs to its root run and all re-executions: one of them alive is enough to keep it."""
    root = _other_run(days, dg.DagsterRunStatus.FAILURE)
    days.instance.add_run(
        dg.DagsterRun(
            job_name="days",
            run_id=str(uuid.uuid4()),
            status=dg.DagsterRunStatus.STARTED,
            root_run_id=root,
            parent_run_id=root,
            tags={"dagster/root_run_id": root, "dagster/parent_run_id": root},
        )
    )
    assert not days.run("2024-01-01").success
    assert days.kinds() == ["opened"]


def test_a_run_of_another_instance_is_not_taken_over(days: Days) -> None:
    """A run that this instance does not know may be alive elsewhere."""
    days.coordinator(f"dagster-run:{uuid.uuid4()}").trigger()
    assert not days.run("2024-01-01").success
    assert days.kinds() == ["opened"]


def _other_run(days: Days, status: dg.DagsterRunStatus) -> str:
    run_id = str(uuid.uuid4())
    days.instance.add_run(dg.DagsterRun(job_name="days", run_id=run_id, status=status))
    days.coordinator(f"dagster-run:{run_id}").trigger()
    return run_id


# ---- steps that fail ----


def test_a_failing_body_aborts_its_attempt_and_is_tried_again(days: Days) -> None:
    """A retry opens its own attempt; the first one is aborted."""
    days.body = once(RuntimeError("a bad moment"), lambda context, batch: None)
    result = days.run("2024-01-01")
    assert result.success
    assert days.retries(result) == ["update"]
    assert days.kinds() == ["opened", "aborted", "opened", "completed", "committed"]


def test_an_op_that_fails_behind_its_batch_is_made_once(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt was reported, then the op failed: the retry fences it and completes the one checkpoint."""
    failing = once(RuntimeError("behind the batch"), lambda self: self.attempt.to_json())
    monkeypatch.setattr("dstl_dagster.spark.batch.CheckpointBatch.reference", property(failing))
    assert days.run("2024-01-01").success
    assert days.kinds() == ["opened", "fenced", "opened", "completed", "committed"]


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LOST_ANSWER])
@pytest.mark.parametrize(
    ("slot", "may_retry"),
    [(1, "update"), (2, "confirm"), (3, "compose_commit")],
    ids=["open", "confirm", "commit"],
)
def test_a_decision_whose_answer_fails_is_made_once(
    fault: Fault, slot: int, may_retry: str, days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is unavailable at a decision: the step is retried if needed, and everything happens once."""
    schedule = Once(
        fault, lambda request: request.method == "put" and f"timeline/{slot:020d}" in request.name
    )
    monkeypatch.setattr(resources, "open_store", lambda uri, _: FaultStore(open_store(uri), schedule))
    result = days.run("2024-01-01")
    assert result.success
    assert schedule.fault is None, "the fault never struck"
    assert days.retries(result) == ([may_retry] if fault is Fault.ERROR_BEFORE else [])
    assert days.kinds() == ["opened", "completed", "committed"]
    assert len(days.events("checkpoints")) == len(days.events("files")) == 1
    assert days.store.get("out/2024-01-01/0.txt") == b"first line\nsecond line\n"


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LOST_ANSWER])
def test_a_compose_whose_answer_fails_makes_one_file(
    fault: Fault, days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the compose with the lost answer took effect, the file is published once and whole."""
    schedule = Once(fault, lambda request: request.method == "compose")
    monkeypatch.setattr(resources, "open_store", lambda uri, _: FaultStore(open_store(uri), schedule))
    result = days.run("2024-01-01")
    assert result.success, days.failure(result)
    assert schedule.fault is None
    assert days.store.get("out/2024-01-01/0.txt") == b"first line\nsecond line\n"
    assert days.components() == []
    assert len(days.events("files")) == 1


def test_a_crash_between_record_and_event_reports_once(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint completed but was not reported: the retry reports it, once."""
    crashing = once(RuntimeError("crash"), CheckpointCoordinator.confirm, after=True)
    monkeypatch.setattr(CheckpointCoordinator, "confirm", crashing)
    result = days.run("2024-01-01")
    assert result.success
    assert days.retries(result) == ["confirm"]
    assert [event.partition for event in days.events("checkpoints")] == ["chk-00000001"]
    assert days.kinds() == ["opened", "completed", "committed"]


def test_the_last_try_says_why_and_not_how_often(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's own words for an op that failed each time name the number of tries alone."""

    def full(*_: Any, **__: Any) -> Any:
        raise UnavailableError("No space left on device: free space, then repeat the call")

    monkeypatch.setattr(CheckpointCoordinator, "confirm", full)
    result = days.run("2024-01-01")
    assert days.retries(result) == ["confirm", "confirm"]
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    shown = failed.step_failure_data.error
    assert shown is not None
    assert "No space left on device" in shown.message
    assert "Exceeded max_retries" not in shown.message


@pytest.mark.parametrize("step", ["report_checkpoint", "report_files"])
def test_a_crash_behind_the_event_reports_once(
    step: str, days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event was written and the step died: the retry finds it and does not write a second one."""
    from dstl_dagster.orchestration import steps

    monkeypatch.setattr(steps, step, once(RuntimeError("crash"), getattr(steps, step), after=True))
    result = days.run("2024-01-01")
    assert result.success
    assert len(days.retries(result)) == 1
    assert len(days.events("checkpoints")) == len(days.events("files")) == 1


def test_a_crash_in_clean_up_leaves_no_partition_behind(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints were subsumed and the step died: the retry still deletes their partitions."""
    days.options = {"execution.checkpointing.num-retained": "1"}
    days.run("2024-01-01")
    crashing = once(RuntimeError("crash"), CheckpointCoordinator.clean_up, after=True)
    monkeypatch.setattr(CheckpointCoordinator, "clean_up", crashing)
    assert days.run("2024-01-02").success
    assert days.shown_checkpoints() == ["chk-00000002"]


def test_a_blocked_file_fails_its_step_and_no_other_file(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign object is left untouched; the step names it, is not retried, and publishes the rest."""
    days.files = 3
    real = CheckpointCoordinator.confirm

    def and_then_somebody_writes(coordinator: CheckpointCoordinator, attempt: Attempt) -> Any:
        checkpoint = real(coordinator, attempt)
        days.store.put("out/2024-01-01/1.txt", b"foreign", precondition=ABSENT)
        return checkpoint

    monkeypatch.setattr(CheckpointCoordinator, "confirm", and_then_somebody_writes)
    result = days.run("2024-01-01")
    step, message = days.failure(result)
    assert step == "compose_commit"
    assert "blocked: 1 of 3 files of checkpoint 1" in message
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    (name,) = failed.step_failure_data.user_failure_data.metadata
    assert name.endswith("out/2024-01-01/1.txt")
    assert days.retries(result) == []
    assert days.store.get("out/2024-01-01/1.txt") == b"foreign"
    assert days.store.get("out/2024-01-01/0.txt") == days.store.get("out/2024-01-01/2.txt")
    (record,) = days.instance.fetch_observations(days.code.JOB.files_key, limit=5).records
    files = record.asset_observation
    lines = str(files.metadata["file names"].value).splitlines()[1:]
    assert ["**blocked**" in line for line in lines] == [False, True, False]
    # The way out that the message names works.
    assert f"`dstl checkpoints resolve 1 {name}` with `--keep` or `--replace`" in message
    assert days.coordinator().resolve(1, name, "replace").blocked == ()
    assert days.store.get("out/2024-01-01/1.txt") == days.store.get("out/2024-01-01/0.txt")


# ---- which errors are retried ----


@pytest.mark.parametrize(
    "error",
    [InvalidInputError, NotFoundError, ConflictError, FencedError, ClosedError, FormatError, InternalError],
)
def test_what_a_retry_cannot_mend_is_not_retried(error: type[DstlError]) -> None:
    """The step ends with our message and kind, and Dagster does not retry it."""
    with pytest.raises(dg.Failure) as failure, without_useless_retries():
        raise error("the reason")
    assert failure.value.allow_retries is False
    assert failure.value.description == "the reason"
    assert failure.value.metadata["kind"].value == error.default_kind


@pytest.mark.parametrize("error", [UnavailableError("away"), RuntimeError("anything"), OSError("disk")])
def test_what_a_retry_may_mend_is_passed_on(error: Exception) -> None:
    """An unavailable store, and any error that is not ours, is left to the op's retry policy."""
    with pytest.raises(type(error)) as raised, without_useless_retries():
        raise error
    assert raised.value is error


def test_a_store_that_is_away_is_said_to_be_away_at_a_step() -> None:
    """Which step of which checkpoint, before the store's own words; it may be tried again."""
    expected = pytest.raises(UnavailableError, match="step 6 of checkpoint 4: gone fishing")
    with expected as raised, without_useless_retries("step 6 of checkpoint 4"):
        raise UnavailableError("gone fishing", kind="unavailable")
    assert raised.value.kind == "unavailable"


def test_a_long_commit_tells_how_far_it_is(days: Days) -> None:
    """Each tenth of the files, and the last: enough to see that it moves, and no flood."""
    days.files = 25
    logged = days.logged(days.run("2024-01-01")).splitlines()
    progress = [line for line in logged if line.startswith("step 6 compose-commit: ") and "of 25" in line]
    assert len(progress) == 13
    assert progress[0] == "step 6 compose-commit: 2 of 25 files"
    assert progress[-1] == "step 6 compose-commit: 25 of 25 files"


def test_a_step_of_another_store_is_refused(days: Days) -> None:
    """Steps configured for another store than the attempt's say so, and touch nothing."""
    attempt = days.coordinator().trigger()
    before = days.objects()
    other = resources.ChangelogStorageResource(uri=days.uri + "-other")
    with dg.build_op_context() as context, pytest.raises(dg.Failure) as failure:
        persist_op(context, attempt.to_json(), changelog=other)
    assert days.uri in str(failure.value.description)
    assert f"{days.uri}-other" in str(failure.value.description)
    assert days.objects() == before


def test_a_reference_that_is_none_is_refused(days: Days) -> None:
    """What is handed to a step must be an attempt's JSON form, and the sentence says how to return it."""
    refused = pytest.raises(dg.DagsterTypeCheckDidNotPass, match=r"return batch\.reference")
    with dg.build_op_context() as context, refused:
        persist_op(context, {"checkpoint_id": 1}, changelog=days.resource())
