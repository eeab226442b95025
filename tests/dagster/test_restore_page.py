"""After a restore Dagster's page is right: what counts, what is gone, and which days to run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from click.testing import CliRunner

from dstl_dagster import build_checkpoint_job, build_maintenance, restore_run_config
from dstl_dagster.cli.checkpoints import checkpoints_group
from dstl_dagster.errors import FormatError
from dstl_dagster.storage import ANY
from tests.dagster.shown import failed_partitions, materialized_partitions

if TYPE_CHECKING:
    from tests.dagster.conftest import Daemon, Days

pytestmark = pytest.mark.dagster

AT_ONCE = dg.RetryPolicy(max_retries=1, delay=0)
FIRST, SECOND, THIRD, FOURTH = "2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"


@pytest.fixture
def three(days: Days) -> Days:
    for day in (FIRST, SECOND, THIRD):
        assert days.run(day).success
    return days


def launch(
    days: Days, to: int, config: dict[str, Any] | None = None, **tags: str
) -> dg.ExecuteInProcessResult:
    job = build_maintenance(days.code.JOB, "restore", partitions_def=days.code.DAYS, retry_policy=AT_ONCE)
    return job.execute_in_process(
        instance=days.instance,
        resources={"changelog": days.resource()},
        partition_key=f"chk-{to:08}",
        run_config=config or {},
        tags=tags,
        raise_on_error=False,
    )


def newest(days: Days, asset: str) -> tuple[str | None, str]:
    """The partition of an asset's newest materialization, and the checkpoint that it names."""
    event = days.events(asset)[-1]
    return event.partition, event.tags["dstl/checkpoint_id"]


# ---- before it ----


def test_nothing_is_undone_that_nobody_confirmed(three: Days) -> None:
    """Launched as it is, the run fails with what it would undo, and with the config that confirms it."""
    before = three.objects()
    refused = launch(three, 1)
    step, said = three.failure(refused)
    assert step == "restore"
    for part in (
        "nothing was changed",
        "2 checkpoints behind",
        "retracts 2 files",
        SECOND,
        THIRD,
        '"3 -> 1"',
    ):
        assert part in said, part
    (failed,) = (event for event in refused.all_events if event.is_step_failure)
    metadata = failed.step_failure_data.user_failure_data.metadata
    assert [row.data["batch"] for row in metadata["goes"].records] == [SECOND, THIRD]
    assert "1 object, " in metadata["reads"].value
    assert three.retries(refused) == []
    assert three.objects() == before


def test_a_preview_succeeds_and_changes_nothing(three: Days) -> None:
    """Asked for on purpose, the same is shown by a run that succeeds."""
    before = three.objects()
    shown = launch(three, 2, {"ops": {"restore": {"config": {"preview": True}}}})
    assert shown.success
    assert "preview, nothing was changed" in three.logged(shown)
    assert three.objects() == before


def test_a_job_begins_anew(three: Days) -> None:
    """Confirmed with the config that the refusal names; then the days run again, from the first."""
    refused = launch(three, 2, {"ops": {"restore": {"config": {"anew": True}}}})
    assert 'confirm: "3 -> 0", anew: true' in three.failure(refused)[1]
    done = launch(three, 2, restore_run_config(3, 0))
    assert done.success
    assert f"run again, oldest first: {FIRST}, {SECOND}, {THIRD}" in three.logged(done)
    assert three.coordinator().latest() is None
    assert three.coordinator().at().checkpoint_id == 3
    for day in (FIRST, SECOND, THIRD):
        assert three.run(day).success
    assert three.coordinator().latest().checkpoint_id == 6


def test_another_confirmation_is_none(three: Days) -> None:
    """What was confirmed is from another checkpoint, or to another one: nothing is undone."""
    for confirmed in ("2 -> 1", "3 -> 2", "yes"):
        refused = launch(three, 1, {"ops": {"restore": {"config": {"confirm": confirmed}}}})
        assert f"the config confirms {confirmed!r}" in three.failure(refused)[1]
    assert "restored" not in three.kinds()


def test_what_completed_since_the_preview_is_not_undone(three: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint completes between the last look and the decision: the restore is refused."""
    coordinator = type(three.coordinator())
    real = coordinator.plan_restore

    def late(self: Any, checkpoint_id: int) -> Any:
        plan = real(self, checkpoint_id)
        three.code.make_outside(three.uri, "2024-01-04")
        return plan

    monkeypatch.setattr(coordinator, "plan_restore", late)
    refused = launch(three, 1, restore_run_config(3, 1))
    assert "last checkpoint is now 4" in three.failure(refused)[1]
    assert "restored" not in three.kinds()


def test_a_run_of_a_backfill_is_refused(three: Days) -> None:
    """Whoever launches a backfill of the restore job loses nothing, even with a confirmed config."""
    refused = launch(three, 1, restore_run_config(3, 1), **{"dagster/backfill": "abcdefgh"})
    assert "a restore is no backfill" in three.failure(refused)[1]
    assert "restored" not in three.kinds()


# ---- after it ----


def test_the_checkpoint_that_counts_is_the_newest_of_every_asset(three: Days) -> None:
    """State, its operators, files and checkpoints: the newest materialization names the restored one."""
    assert three.events("state")[-1].metadata["next partition"].value == "2024-01-04", "by the run itself"
    assert launch(three, 1, restore_run_config(3, 1)).success
    assert newest(three, "checkpoints") == ("chk-00000001", "1")
    assert newest(three, "files") == (FIRST, "1")
    assert newest(three, "state") == (FIRST, "1")
    operator = three.instance.get_latest_materialization_event(three.code.JOB.operator_key("totals"))
    assert operator is not None
    assert operator.asset_materialization is not None
    assert operator.asset_materialization.tags["dstl/checkpoint_id"] == "1"
    last = three.events("checkpoints")[-1].metadata
    assert last["left behind"].value == "chk-00000002, chk-00000003"
    assert last["run again"].value == f"{SECOND}  \n{THIRD}"
    state = three.events("state")[-1].metadata
    assert (last["next partition"].value, state["next partition"].value) == (SECOND, SECOND)


def test_a_run_without_partitions_is_named_as_the_page_names_it(days: Days) -> None:
    """What a restore undid is a link to its run: the key of its batch says nothing to people."""
    job = build_checkpoint_job(days.code.JOB.job, days.code.build_update(source=None))
    resources = {"changelog": days.resource()}
    runs = [job.execute_in_process(instance=days.instance, resources=resources).run_id for _ in range(2)]
    name = f"run {runs[1][:8]}"
    refused = launch(days, 1)
    (failed,) = (event for event in refused.all_events if event.is_step_failure)
    goes = failed.step_failure_data.user_failure_data.metadata["goes"].records
    assert [row.data["batch"] for row in goes] == [name]
    assert f"; to run again: {name}." in failed.step_failure_data.user_failure_data.description
    command = CliRunner().invoke(
        checkpoints_group,
        ["restore", "1", "--dry-run"],
        env={"DSTL_STORE": days.uri, "DSTL_JOB": days.code.JOB.job},
    )
    assert (f", batch {name}," in command.stdout, runs[1] in command.stdout) == (True, False)
    assert f"run again, oldest first: {name}" in days.logged(launch(days, 1, restore_run_config(2, 1)))
    assert days.events("checkpoints")[-1].metadata["run again"].value == f"[{name}](/runs/{runs[1]})"


def test_the_days_to_run_again_are_shown_as_failed(three: Days) -> None:
    """`failed and missing` chooses exactly these days; one that ran again is in order again."""
    result = launch(three, 1, restore_run_config(3, 1))
    assert f"run again, oldest first: {SECOND}, {THIRD}" in three.logged(result)
    for asset in ("state", "files"):
        assert failed_partitions(three, asset) == {SECOND, THIRD}
        assert materialized_partitions(three, asset) == {FIRST}
    assert three.run(SECOND).success
    for asset in ("state", "files"):
        assert failed_partitions(three, asset) == {THIRD}
        assert materialized_partitions(three, asset) == {FIRST, SECOND}


def test_the_sensor_tells_of_a_restore_from_the_command_line_once(three: Days, daemon: Daemon) -> None:
    """Nobody ran it in Dagster: the page is as right, and stays so however often the sensor looks."""
    three.coordinator().restore(1)
    assert "reported the restore to chk-00000001" in (daemon.tick() or "")
    told = {asset: len(three.events(asset)) for asset in ("checkpoints", "files", "state")}
    assert newest(three, "checkpoints") == ("chk-00000001", "1")
    assert failed_partitions(three, "state") == failed_partitions(three, "files") == {SECOND, THIRD}
    assert three.shown_checkpoints() == ["chk-00000001"]
    for cursor in (None, '{"slot": 0}', '{"slot": 2}', '{"slot": 9}'):
        daemon.cursor = cursor
        daemon.tick()
    assert {asset: len(three.events(asset)) for asset in told} == told


def test_the_sensor_tells_nothing_that_the_run_told(three: Days, daemon: Daemon) -> None:
    """The restore's own run reported it: the sensor adds no event."""
    launch(three, 1, restore_run_config(3, 1))
    told = {asset: len(three.events(asset)) for asset in ("checkpoints", "files", "state")}
    daemon.tick()
    assert {asset: len(three.events(asset)) for asset in told} == told


def test_a_restore_that_is_told_late_leaves_what_ran_again_alone(three: Days, daemon: Daemon) -> None:
    """A day ran again before the sensor looked: only the other one is failed, and the newest stays newest."""
    three.coordinator().restore(1)
    assert three.run(SECOND).success
    daemon.tick()
    assert failed_partitions(three, "state") == {THIRD}
    assert newest(three, "checkpoints") == ("chk-00000004", "4")


def test_a_damaged_checkpoint_that_was_left_behind_does_not_stop_the_sensor(
    three: Days, daemon: Daemon
) -> None:
    """It was never reported, and a restore went back to before it: preview, restore and sensor pass it."""
    three.code.make_outside(three.uri, FOURTH)
    coordinator = three.coordinator()
    manifest = coordinator.timeline.tail().checkpoints[4].completed.manifest
    coordinator.store.put(manifest, b"not a manifest", precondition=ANY)
    with pytest.raises(FormatError, match="damaged or replaced"):
        daemon.tick()
    launch(three, 3, restore_run_config(4, 3))
    assert three.run(FOURTH).success
    daemon.tick()
    assert newest(three, "checkpoints") == ("chk-00000005", "5")


def test_a_restore_that_is_told_after_its_checkpoint_was_subsumed_is_told(days: Days, daemon: Daemon) -> None:
    """What did not run again is shown as failed, though what the job went back to is not known any more."""
    days.options = {
        "execution.checkpointing.num-retained": "2",
        "dstl.checkpoint.snapshot-interval": "8",
        "dstl.checkpoint.reader-grace": "0 s",
    }
    for day in (FIRST, SECOND, THIRD):
        assert days.run(day).success
    daemon.tick()
    coordinator = days.resource().coordinator("days", owner="a person")
    coordinator.restore(2)
    for number in range(6):
        days.code.make_outside(days.uri, f"late-{number}", options=coordinator.options)
        coordinator.clean_up()
    assert 2 not in days.coordinator().timeline.tail().checkpoints
    daemon.tick()
    assert failed_partitions(days, "state") == failed_partitions(days, "files") == {THIRD}


def test_a_restore_that_was_outside_all_along_is_told(days: Days, daemon: Daemon) -> None:
    """The sensor meets checkpoints and their restore at once: a day that was undone is missing, as it was."""
    for day in (FIRST, SECOND):
        days.code.make_outside(days.uri, day)
    days.coordinator().restore(1)
    daemon.tick()
    assert [event.partition for event in days.events("checkpoints")] == [
        *("chk-00000001", "chk-00000002", "chk-00000001")
    ]
    assert newest(days, "checkpoints") == ("chk-00000001", "1")
    assert materialized_partitions(days, "files") == {FIRST}
    assert failed_partitions(days, "files") == set()
    assert "nothing new" in (daemon.tick() or "")


def test_a_step_killed_while_it_tells_is_repeated_without_a_double(
    three: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies between two marks; its retry writes the rest, and each event once."""
    left = [RuntimeError()]
    report = dg.DagsterInstance.report_dagster_event

    def dying(self: Any, event: Any, *args: Any, **named: Any) -> Any:
        if event.event_type_value == "ASSET_MATERIALIZATION_PLANNED" and left:
            raise left.pop()
        return report(self, event, *args, **named)

    monkeypatch.setattr(dg.DagsterInstance, "report_dagster_event", dying)
    result = launch(three, 1, restore_run_config(3, 1))
    assert result.success
    assert three.retries(result) == ["restore"]
    assert failed_partitions(three, "state") == {SECOND, THIRD}
    assert [event.partition for event in three.events("checkpoints")].count("chk-00000001") == 2
