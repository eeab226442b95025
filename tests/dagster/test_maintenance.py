"""The jobs between a job's runs: roll back, clean up, fold, verify."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster import (
    JobAssets,
    build_checkpoint_job,
    build_cleanup_job,
    build_cleanup_schedule,
    build_maintenance,
    build_state_asset,
    restore_run_config,
)
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.format import readable_bytes
from dstl_dagster.orchestration.operate.maintenance import Work
from dstl_dagster.storage import ANY, ObjectStore

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

AT_ONCE = dg.RetryPolicy(max_retries=2, delay=0)


def run_job(
    days: Days,
    work: Work,
    partition: str | None = None,
    *,
    config: dict[str, Any] | None = None,
    tags: dict[str, str] | None = None,
) -> dg.ExecuteInProcessResult:
    """One run of one of the jobs, in this process."""
    return build_maintenance(days.code.JOB, work, retry_policy=AT_ONCE).execute_in_process(
        instance=days.instance,
        resources={"changelog": days.resource()},
        partition_key=partition,
        run_config=config or {},
        tags=tags,
        raise_on_error=False,
    )


def roll_back(days: Days, last: int, checkpoint_id: int) -> dg.ExecuteInProcessResult:
    """A confirmed run of the restore job."""
    config = restore_run_config(last, checkpoint_id)
    return run_job(days, "restore", f"chk-{checkpoint_id:08}", config=config)


def three_days(days: Days) -> None:
    for day in ("2024-01-01", "2024-01-02", "2024-01-03"):
        assert days.run(day).success


# ---- beside the job ----


def test_a_clone_takes_the_place_of_its_job(days: Days) -> None:
    """Both by runs from the page; the swap is a checkpoint there, and a wrong name one sentence."""
    three_days(days)
    cloned = run_job(days, "clone", config={"ops": {"clone": {"config": {"new": "beside", "at": "3"}}}})
    assert "job 'beside' begins with checkpoint 3" in days.logged(cloned)
    swap = {"ops": {"swap": {"config": {"clone": "beside"}}}}
    swapped = run_job(days, "swap", config=swap)
    assert swapped.success
    assert "checkpoint 4 of" in days.logged(swapped)
    assert JobAssets.partition_key(4) in days.instance.get_dynamic_partitions(days.code.JOB.partitions_name)
    assert [each.checkpoint_id for each in days.coordinator().list()] == [1, 2, 3, 4]
    swap["ops"]["swap"]["config"]["clone"] = "besides"
    (failure,) = run_job(days, "swap", config=swap).get_step_failure_events()
    assert "no job 'besides'" in str(failure.step_failure_data.error)
    assert "did you mean 'beside'?" in str(failure.step_failure_data.error)


# ---- rolling back ----


def test_a_restore_rolls_the_job_back_to_its_partition(days: Days) -> None:
    """State, positions and files go back to the checkpoint; the day after it can run again."""
    three_days(days)
    result = roll_back(days, 3, 1)
    assert result.success
    latest = days.coordinator().latest()
    assert latest is not None
    assert latest.checkpoint_id == 1
    assert days.store.stat("out/2024-01-01/0.txt") is not None
    assert days.store.stat("out/2024-01-03/0.txt") is None
    assert "resumes from checkpoint 1" in days.logged(result)
    assert days.run("2024-01-02").success
    latest = days.coordinator().latest()
    assert latest is not None
    assert (latest.checkpoint_id, latest.parent) == (4, 1)


def test_a_restore_takes_the_abandoned_partitions_away(days: Days) -> None:
    """Abandoned checkpoints cannot be restored, so Dagster does not offer them."""
    three_days(days)
    assert roll_back(days, 3, 2).success
    assert days.shown_checkpoints() == ["chk-00000001", "chk-00000002"]
    *_, newest = days.events("checkpoints")
    assert newest.partition == "chk-00000002"
    assert "rolled back" in str(newest.description)


def test_a_retried_restore_happens_once(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record was written and the step died: the retry finds it."""
    three_days(days)
    real, left = CheckpointCoordinator.restore, [RuntimeError("crash")]

    def crashing(coordinator: CheckpointCoordinator, *args: Any, **named: Any) -> Any:
        checkpoint = real(coordinator, *args, **named)
        if left:
            raise left.pop()
        return checkpoint

    monkeypatch.setattr(CheckpointCoordinator, "restore", crashing)
    result = roll_back(days, 3, 1)
    assert result.success
    assert days.retries(result) == ["restore"]
    assert days.kinds().count("restored") == 1


def test_a_restore_run_again_throws_nothing_away(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late retry of a run that already rolled back: what was written since stays, and the log says so."""
    three_days(days)
    real, left = CheckpointCoordinator.restore, [RuntimeError("crash")]

    def crashing(coordinator: CheckpointCoordinator, *args: Any, **named: Any) -> Any:
        checkpoint = real(coordinator, *args, **named)
        if left:
            days.code.make_outside(days.uri, "2024-01-02")
            raise left.pop()
        return checkpoint

    monkeypatch.setattr(CheckpointCoordinator, "restore", crashing)
    result = roll_back(days, 3, 1)
    assert result.success
    latest = days.coordinator().latest()
    assert latest is not None
    assert latest.checkpoint_id == 4
    assert "has since advanced to checkpoint 4" in days.logged(result)


@pytest.mark.parametrize(
    ("partition", "said"),
    [("chk-00000009", "no completed checkpoint 9"), ("latest", "names no checkpoint")],
)
def test_a_restore_to_nothing_changes_nothing(partition: str, said: str, days: Days) -> None:
    """A partition that is not a checkpoint: the step fails once, and says why."""
    days.run("2024-01-01")
    days.instance.add_dynamic_partitions(days.code.JOB.partitions_name, [partition])
    before = days.objects()
    result = run_job(days, "restore", partition)
    step, message = days.failure(result)
    assert step == "restore"
    assert said in message
    assert days.retries(result) == []
    assert days.objects() == before


def test_a_restore_asks_for_its_partition(days: Days) -> None:
    """Launched without one, it says which one to choose."""
    days.run("2024-01-01")
    result = run_job(days, "restore")
    assert "launch this job for its partition" in days.failure(result)[1]
    assert days.kinds() == ["opened", "completed", "committed"]


# ---- clean-up ----


def gone(result: dg.ExecuteInProcessResult, key: str) -> set[str]:
    (output,) = (each for each in result.all_events if each.is_successful_output)
    return set(str(output.step_output_data.metadata[key].value).split("  \n"))


def test_a_clean_up_subsumes_and_deletes_and_says_so(days: Days, capfd: pytest.CaptureFixture[str]) -> None:
    """Step 7 alone removes checkpoints beyond retention, their partitions, and a dead attempt's garbage; and
    lists each object in its standard output, by which a backup returns it.
    """
    three_days(days)
    dead = days.coordinator().trigger()
    days.code.write_change(days.store, dead, b"left behind")
    days.coordinator().abort(dead)
    days.options = {"execution.checkpointing.num-retained": "1", "dstl.checkpoint.reader-grace": "0 s"}
    before = days.objects()
    preview = run_job(days, "cleanup", config={"ops": {"cleanup": {"config": {"preview": True}}}})
    assert "preview, nothing was changed: step 7 clean up: " in days.logged(preview)
    assert (days.objects(), len(days.shown_checkpoints())) == (before, 3)
    known = _backed_up(days.store)
    capfd.readouterr()
    result = run_job(days, "cleanup")
    assert result.success
    listed = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert {(each["uri"], each["generation"]) for each in listed} == known - _backed_up(days.store)
    assert gone(result, "objects") == {str(len(listed))}
    assert gone(preview, "goes") == gone(result, "gone")
    assert {"chk-00000001", "chk-00000002"} < gone(result, "gone")
    assert days.shown_checkpoints() == ["chk-00000003"]
    assert not [name for name in days.objects() if str(dead.attempt) in name]
    said = days.logged(result)
    assert "2 checkpoints subsumed" in said
    assert "left by a dead attempt" in said


def _backed_up(store: ObjectStore) -> set[tuple[str, int]]:
    """Without the mark of a clean-up: the next one replaces it, and a backup need not return it."""
    return {
        (store.uri_of(stat.name), stat.generation) for stat in store.list() if "/clean-up/" not in stat.name
    }


def test_a_clean_up_counts_all_that_it_deleted(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result names a thousand objects at most; the log says how many there were."""
    days.run("2024-01-01")
    real = CheckpointCoordinator.clean_up

    def many(coordinator: CheckpointCoordinator, **how: bool) -> Any:
        return dataclasses.replace(
            real(coordinator, **how), objects=54_321, deleted=("one",), deleted_bytes=2**20
        )

    monkeypatch.setattr(CheckpointCoordinator, "clean_up", many)
    assert "54,321 objects (1 MiB) deleted" in days.logged(run_job(days, "cleanup"))


# ---- folding ----


def test_a_fold_is_a_checkpoint_that_dagster_shows(days: Days) -> None:
    """Many runs are merged to one, in a checkpoint of its own with its partition and event."""
    three_days(days)
    days.options = {"dstl.state.materialize.max-runs": "2"}
    result = run_job(days, "materialize")
    assert result.success, days.failure(result)
    assert days.shown_checkpoints()[-1] == "chk-00000004"
    assert days.events("checkpoints")[-1].partition == "chk-00000004"
    latest = days.coordinator().latest()
    assert latest is not None
    totals = latest.manifest.operators["totals"]
    assert [run.whole for run in totals.runs] == [True]
    assert f"| 0 B | {readable_bytes(totals.merged_bytes)} |" in str(
        days.events("checkpoints")[-1].metadata["details"].value
    )
    assert latest.positions == {"calendar": "2024-01-04T00:00:00+00:00"}
    said = days.logged(result)
    assert "checkpoint 4 holds the whole state" in said
    assert "materialize: 1 of 1 ranges of key groups" in said


def test_a_short_log_is_left_alone(days: Days) -> None:
    """Nothing is due: nothing is written, and the log says why."""
    three_days(days)
    before = days.objects()
    result = run_job(days, "materialize")
    assert result.success
    assert days.objects() == before
    assert "no operator of days is due" in days.logged(result)


def test_a_fold_waits_for_an_open_batch(days: Days) -> None:
    """While a batch is open the fold is refused, and not retried."""
    three_days(days)
    days.coordinator("somebody else").trigger()
    days.options = {"dstl.state.materialize.max-runs": "2"}
    result = run_job(days, "materialize")
    assert "'somebody else'" in days.failure(result)[1]
    assert days.retries(result) == []


# ---- verifying ----


def test_a_sound_checkpoint_verifies(days: Days) -> None:
    """Everything is read back, and the log says how much it was."""
    three_days(days)
    before = days.objects()
    result = run_job(days, "verify")
    assert result.success, days.failure(result)
    assert "of checkpoint 3 of days were read back" in days.logged(result)
    assert days.objects() == before


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_a_damaged_checkpoint_is_named_with_the_way_out(how: str, days: Days) -> None:
    """The failure names the object and an older undamaged checkpoint; it is not retried."""
    three_days(days)
    latest = days.coordinator().latest()
    assert latest is not None
    ((stream, _),) = latest.manifest.operators["totals"].report.handles[0].handles_and_offsets
    if how == "lost":
        days.store.delete(stream.name, precondition=ANY)
    else:
        days.store.put(stream.name, days.store.get(stream.name)[:-1] + b"?", precondition=ANY)
    result = run_job(days, "verify")
    step, message = days.failure(result)
    assert step == "verify"
    assert stream.name in message
    assert "the state of checkpoint 2 is undamaged" in message
    assert days.retries(result) == []
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert stream.name in str(failed.step_failure_data.user_failure_data.metadata["problems"].value)


def test_a_lost_file_does_not_condemn_the_state(days: Days) -> None:
    """A component of a file is missing: it is named, and no older checkpoint is suggested."""
    days.code.make_outside(days.uri, "2024-01-01", until="completed")
    lost, *_ = days.components()
    days.store.in_bucket(days.store.bucket_name).delete(lost, precondition=ANY)
    _, message = days.failure(run_job(days, "verify"))
    assert lost in message
    assert "the state is undamaged, and the job can go on" in message


def test_a_job_without_a_checkpoint_has_nothing_to_verify_or_fold(days: Days) -> None:
    """A schedule may be turned on before the first run."""
    works: tuple[Work, ...] = ("verify", "materialize", "cleanup")
    for work in works:
        assert run_job(days, work).success
    assert days.kinds() == []


# ---- how they are offered ----


def test_schedules_ship_stopped(days: Days) -> None:
    """Nothing deletes, folds or reads everything until a person turns it on."""
    assets = days.code.JOB
    for schedule in (
        build_cleanup_schedule(build_cleanup_job(assets)),
        *(build_maintenance(assets, work, when="@daily") for work in ("cleanup", "verify", "checks")),
    ):
        assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
        assert schedule.execution_timezone == "UTC"


def test_all_of_them_load_beside_the_job(days: Days) -> None:
    """Names do not clash, even with another job's; restore has the checkpoints as partitions."""
    other, assets = JobAssets("nights"), days.code.JOB
    works: tuple[Work, ...] = ("cleanup", "materialize", "verify", "restore", "commit")
    update = days.code.build_update(source=None)
    defs = dg.Definitions(
        assets=[build_state_asset(assets, update), build_state_asset(other, update)],
        jobs=[
            *(build_maintenance(each, work) for work in works for each in (assets, other)),
            build_checkpoint_job("hourly", update, retry_policy=AT_ONCE),
            build_checkpoint_job("weekly", update),
        ],
        resources={"changelog": days.resource()},
    )
    dg.Definitions.validate_loadable(defs)
    assert defs.resolve_job_def("days_restore").partitions_def == assets.partitions
