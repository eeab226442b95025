"""What no run reported reaches the page all the same, once, and nothing is green that is not in order."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster import checkpoint_asset_specs
from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.orchestration import steps
from dstl_dagster.storage import ABSENT
from tests.dagster.later_clock import LaterClock
from tests.dagster.shown import failed_partitions, materialized_partitions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.dagster.conftest import Daemon, Days

    DaemonOf = Callable[..., Daemon]

pytestmark = pytest.mark.dagster

FIRST, SECOND, THIRD = "2024-01-01", "2024-01-02", "2024-01-03"
MANY = 28


# ---- what is reported once ----


def test_a_cursor_set_back_doubles_nothing_however_long_ago(days: Days, daemon: Daemon) -> None:
    """On assets without partitions, and with more events since than anybody would look through."""
    for number in range(MANY):
        days.code.make_outside(days.uri, f"batch-{number}")
    daemon.options = {"partitions_def": None}
    daemon.tick()
    daemon.cursor = '{"slot": 1}'
    daemon.tick()
    assert len(days.events("files")) == len(days.events("checkpoints")) == MANY
    operator = days.instance.fetch_materializations(days.code.JOB.operator_key("totals"), limit=100)
    assert len(operator.records) == MANY


def test_a_cursor_set_between_completed_and_committed_misses_no_file(days: Days, daemon: Daemon) -> None:
    """It does not say which checkpoint waits for its files: the timeline does."""
    days.code.make_outside(days.uri, FIRST)
    daemon.cursor = '{"slot": 2}'
    daemon.tick()
    assert [event.partition for event in days.events("files")] == [FIRST]


def test_events_say_when_who_and_which_batch(days: Days, daemon: Daemon) -> None:
    """An event of the sensor has a time of its own: the checkpoint's is in its metadata."""
    days.code.make_outside(days.uri, FIRST)
    daemon.tick()
    for asset in ("checkpoints", "files"):
        said = {name: entry.value for name, entry in days.events(asset)[0].metadata.items()}
        completed = days.coordinator().timeline.tail().checkpoints[1].completed
        at = said["dagster/last_updated_timestamp"]
        assert at == pytest.approx(completed.recorded_at.timestamp())
        assert str(said["checkpoint"]).endswith(f"of {FIRST}, by `spark-submit`")


# ---- holes ----


def test_the_state_of_an_outside_job_is_materialized(days: Days, daemon: Daemon) -> None:
    """Where the definitions have it, the sensor reports it by checkpoint, once, in its partition."""
    specs = checkpoint_asset_specs(days.code.JOB, partitions_def=days.code.DAYS, deps=[dg.AssetKey("topic")])
    daemon.definitions = dg.Definitions(assets=specs)
    for day in (FIRST, SECOND):
        days.code.make_outside(days.uri, day)
    daemon.tick()
    daemon.cursor = '{"slot": 0}'
    daemon.tick()
    assert [event.tags["dstl/checkpoint_id"] for event in days.events("state")] == ["1", "2"]


def test_the_state_of_a_job_without_that_asset_is_left_alone(days: Days, daemon: Daemon) -> None:
    """No asset appears that nobody defined."""
    daemon.definitions = dg.Definitions(assets=[])
    days.code.make_outside(days.uri, FIRST)
    daemon.tick()
    assert days.events("state") == []


def test_a_day_that_died_after_step_5_is_reported_by_the_next(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run told of nothing; the run that publishes its files tells of all: no hole, without a sensor."""
    with monkeypatch.context() as patched:
        patched.setattr(steps, "report_checkpoint", _dies)
        assert not days.run(FIRST).success
    assert days.events("checkpoints") == []
    assert days.run(SECOND).success
    assert [event.partition for event in days.events("checkpoints")] == ["chk-00000001", "chk-00000002"]
    for asset in ("state", "files"):
        assert materialized_partitions(days, asset) == {FIRST, SECOND}
        assert len(days.events(asset)) == 2


def test_a_day_that_died_after_step_5_is_reported_by_the_sensor(
    days: Days, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files were published by hand, and no other day ran: the sensor fills the hole."""
    daemon.definitions = dg.Definitions(assets=[days.code.build_state()], resources={"changelog": None})
    with monkeypatch.context() as patched:
        patched.setattr(steps, "report_checkpoint", _dies)
        assert not days.run(FIRST).success
    days.coordinator().compose_commit()
    daemon.tick()
    for asset in ("state", "files"):
        assert materialized_partitions(days, asset) == {FIRST}
    assert days.run(SECOND).success
    daemon.tick()
    assert len(days.events("state")) == 2, "the run reported the second day, and nobody did again"


def test_a_blocked_day_is_red_until_it_is_resolved(
    days: Days, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Green means published. A person's word reaches the page by the sensor, once."""
    _block(monkeypatch, days, f"out/{FIRST}/0.txt")
    days.run(FIRST)
    daemon.tick()
    assert failed_partitions(days, "files") == {FIRST}
    assert days.events("files") == []
    (name,) = (file.name for file in days.coordinator().get(1).blocked)
    days.coordinator().resolve(1, name, "replace")
    daemon.tick()
    daemon.cursor = '{"slot": 1}'
    daemon.tick()
    assert failed_partitions(days, "files") == set()
    (files,) = days.events("files")
    assert "blocked" not in str(files.metadata["file names"].value)


def test_a_page_that_was_wiped_is_filled_again(days: Days, daemon: Daemon) -> None:
    """The sensor had shown the job, and nothing of it is there any more: it begins at the beginning."""
    for day in (FIRST, SECOND):
        days.code.make_outside(days.uri, day)
    daemon.tick()
    assert daemon.tick() == "slot 6: nothing new"
    days.instance.wipe_assets([days.code.JOB.checkpoints_key])
    daemon.tick()
    assert [event.partition for event in days.events("checkpoints")] == ["chk-00000001", "chk-00000002"]
    assert daemon.tick() == "slot 6: nothing new"


def test_a_page_that_was_wiped_before_a_run_is_filled_again(days: Days, daemon: Daemon) -> None:
    """The run's event is there when the sensor looks, and those before it are not."""
    for day in (FIRST, SECOND):
        assert days.run(day).success
    daemon.tick()
    days.instance.wipe_assets([days.code.JOB.checkpoints_key, days.code.JOB.files_key])
    assert days.run(THIRD).success
    daemon.tick()
    assert {event.partition for event in days.events("checkpoints")} == {
        f"chk-{number:08}" for number in (1, 2, 3)
    }
    assert materialized_partitions(days, "files") == {FIRST, SECOND, THIRD}
    newest = days.events("checkpoints")[-1]
    assert newest.partition == "chk-00000003"
    shown = len(days.events("checkpoints"))
    daemon.tick()
    assert len(days.events("checkpoints")) == shown


def test_a_checkpoint_that_is_reported_late_is_not_the_newest(
    days: Days, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a restore undid, met after the runs that went on: the last one is shown once more."""
    assert days.run(FIRST).success
    days.code.make_outside(days.uri, SECOND)
    days.coordinator().restore(1)
    assert days.run(SECOND).success
    daemon.tick()
    daemon.tick()
    newest = days.events("checkpoints")[-1]
    assert (newest.partition, newest.tags["dstl/reported_by"]) == ("chk-00000003", "sensor")
    assert materialized_partitions(days, "files") == {FIRST, SECOND}
    assert "nothing new" in (daemon.tick() or "")


def test_a_blocked_file_takes_no_day_of_the_state(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails for its files; the state has the day, which stays so when it is run again in vain."""
    with monkeypatch.context() as patched:
        _block(patched, days, f"out/{FIRST}/0.txt")
        assert not days.run(FIRST).success
    for _ in range(2):
        assert materialized_partitions(days, "state") == {FIRST}
        assert failed_partitions(days, "files") == {FIRST}
        assert not days.run(FIRST).success
    assert len(days.events("state")) == 1


# ---- a host that died ----


def test_a_commit_run_on_a_dead_host_is_replaced(days: Days, daemon_of: DaemonOf) -> None:
    """It stays `started` for ever: the tick says that it waits, and after its patience asks again."""
    clock = LaterClock()
    daemon = daemon_of(commit=True, options={"clock": clock, "patience": timedelta(minutes=30)})
    days.code.make_outside(days.uri, FIRST, until="completed")
    daemon.tick()
    said = daemon.tick() or ""
    assert "waiting for step 6 of checkpoint 1: run" in said
    assert "(STARTED)" in said
    assert len(daemon.runs) == 1
    clock.later = timedelta(minutes=31)
    daemon.tick()
    assert [key.rpartition("/")[2] for key, _ in daemon.runs] == ["1", "2"]


def test_a_run_on_a_dead_host_is_not_waited_for_for_ever(days: Days, daemon_of: DaemonOf) -> None:
    """The owner of a checkpoint never reports it: after the patience of the sensor, it does."""
    clock = LaterClock()
    daemon = daemon_of(options={"clock": clock, "patience": timedelta(minutes=30)})
    run_id = str(uuid.uuid4())
    days.instance.add_run(dg.DagsterRun(job_name="days", run_id=run_id, status=dg.DagsterRunStatus.STARTED))
    days.code.make_outside(days.uri, FIRST, owner=f"dagster-run:{run_id}")
    assert f"waiting for dagster-run:{run_id}" in (daemon.tick() or "")
    assert days.events("checkpoints") == []
    clock.later = timedelta(minutes=31)
    daemon.tick()
    assert len(days.events("checkpoints")) == len(days.events("files")) == 1


def _dies(*_: Any) -> None:
    raise dg.Failure("the worker is gone", allow_retries=False)


def _block(monkeypatch: pytest.MonkeyPatch, days: Days, name: str) -> None:
    """Somebody takes the name of a file between step 5 and step 6."""
    real = CheckpointCoordinator.confirm

    def and_then_somebody_writes(coordinator: CheckpointCoordinator, attempt: Attempt) -> Any:
        checkpoint = real(coordinator, attempt)
        days.store.put(name, b"foreign", precondition=ABSENT)
        return checkpoint

    monkeypatch.setattr(CheckpointCoordinator, "confirm", and_then_somebody_writes)
