"""The checkpoint sensor: every checkpoint from outside is reported once, whatever happens to a tick."""

from __future__ import annotations

import itertools
import json
import random
import uuid
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import ConflictError, FormatError, InvalidInputError
from dstl_dagster.orchestration.watch import timeline_follower
from dstl_dagster.settings.checkpoint import CheckpointOptions
from dstl_dagster.storage import ANY

if TYPE_CHECKING:
    from tests.dagster.conftest import Daemon, Days

pytestmark = pytest.mark.dagster


def reported(days: Days, asset: str = "checkpoints") -> list[str | None]:
    """The partitions of all materialisations, in the order in which they were written."""
    return [event.partition for event in days.events(asset)]


def test_checkpoints_from_outside_are_reported_in_order(days: Days, daemon: Daemon) -> None:
    """Each completed checkpoint becomes a materialisation, its files and operators too."""
    for day in ("2024-01-01", "2024-01-02"):
        days.code.make_outside(days.uri, day)
    said = daemon.tick()
    assert reported(days) == ["chk-00000001", "chk-00000002"]
    assert reported(days, "files") == ["2024-01-01", "2024-01-02"]
    assert days.shown_checkpoints() == ["chk-00000001", "chk-00000002"]
    assert said == "slot 6: reported chk-00000001 to chk-00000002"
    assert daemon.tick() == "slot 6: nothing new"
    assert len(reported(days)) == 2
    operators = days.instance.fetch_materializations(days.code.JOB.operator_key("totals"), limit=10)
    assert len(operators.records) == 2


def test_the_event_is_that_of_a_run(days: Days, daemon: Daemon) -> None:
    """Reported by the sensor or by a run, a checkpoint looks the same except for its reporter."""
    days.run("2024-01-01")
    days.code.make_outside(days.uri, "2024-01-02")
    daemon.tick()
    by_run, by_sensor = days.events("checkpoints")
    assert set(by_run.metadata) - {"requests", "cost micro-USD"} == set(by_sensor.metadata), (
        "steps 1 to 3 were not counted"
    )
    assert [event.tags["dstl/reported_by"] for event in (by_run, by_sensor)] == ["run", "sensor"]
    assert by_sensor.tags["dstl/parent_id"] == "1"


def test_what_a_run_reported_is_not_reported_again(days: Days, daemon: Daemon) -> None:
    """A job that also runs in Dagster: the sensor reports only the checkpoints that the runs did not."""
    days.run("2024-01-01")
    days.code.make_outside(days.uri, "2024-01-02")
    days.run("2024-01-03")
    daemon.tick()
    assert sorted(reported(days)) == ["chk-00000001", "chk-00000002", "chk-00000003"]
    assert sorted(reported(days, "files")) == ["2024-01-01", "2024-01-02", "2024-01-03"]


def test_a_run_that_is_alive_is_waited_for(days: Days, daemon: Daemon) -> None:
    """Its checkpoint is not yet reported: the sensor leaves that to the run, as long as it is alive."""
    run_id = str(uuid.uuid4())
    days.instance.add_run(dg.DagsterRun(job_name="days", run_id=run_id, status=dg.DagsterRunStatus.STARTED))
    days.code.make_outside(days.uri, "2024-01-01", owner=f"dagster-run:{run_id}")
    assert "waiting for" in (daemon.tick() or "")
    assert reported(days) == []
    daemon.end_runs(dg.DagsterRunStatus.FAILURE)
    daemon.tick()
    assert reported(days) == ["chk-00000001"], "it died before it reported, so the sensor does"
    assert reported(days, "files") == ["2024-01-01"]


def test_a_tick_is_bounded_and_the_next_goes_on(
    days: Days, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tick reports more checkpoints than its limit."""
    for number in range(1, 6):
        days.code.make_outside(days.uri, f"2024-01-0{number}", files=0)
    monkeypatch.setattr(timeline_follower, "MOST_CHECKPOINTS", 2)
    assert daemon.tick() == "slot 7: reported chk-00000001 to chk-00000002; more in the next tick"
    daemon.tick()
    assert len(reported(days)) == 4
    daemon.tick()
    assert reported(days) == [f"chk-0000000{number}" for number in range(1, 6)]


def test_a_tick_stops_when_its_time_is_up(
    days: Days, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time left a tick reports nothing, and loses nothing."""

    class Clock(SystemClock):
        seconds = itertools.count(0, 10)

        def monotonic_seconds(self) -> float:
            return float(next(self.seconds))

    for number in range(1, 4):
        days.code.make_outside(days.uri, f"2024-01-0{number}", files=0)
    monkeypatch.setattr(timeline_follower, "MOST_SECONDS", 45.0)
    daemon.options = {"clock": Clock()}
    daemon.tick()
    assert reported(days) == ["chk-00000001"]
    daemon.tick()
    daemon.tick()
    assert reported(days) == ["chk-00000001", "chk-00000002", "chk-00000003"]


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(n, marks=pytest.mark.soak) for n in range(12, 50))]
)
def test_a_killed_tick_reports_once(
    seed: int, days: Days, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between any two effects, again and again: each checkpoint once, in order, with its files."""
    rng = random.Random(seed)
    daemon.commit = rng.random() < 0.5
    monkeypatch.setattr(timeline_follower, "MOST_CHECKPOINTS", rng.randint(1, 4))
    made = 0
    for _ in range(rng.randint(2, 5)):
        for _ in range(rng.randint(0, 2)):
            made += 1
            days.code.make_outside(days.uri, f"2024-01-{made:02}")
        daemon.tick(rng)
        if rng.random() < 0.2:
            daemon.cursor = None
        if rng.random() < 0.2:
            daemon.name = f"renamed_{rng.randrange(1000)}"
    if daemon.commit:
        made += 1
        days.code.make_outside(days.uri, f"2024-01-{made:02}", until="completed")
        daemon.tick(rng)
    while "reported" in (daemon.tick() or ""):
        pass
    assert reported(days) == [f"chk-{number:08}" for number in range(1, made + 1)]
    assert len(set(reported(days, "files"))) == len(reported(days, "files")) == made - daemon.commit
    assert days.shown_checkpoints() == [f"chk-{number:08}" for number in range(max(1, made - 9), made + 1)]
    assert [checkpoint for _, checkpoint in daemon.runs] == ([made] if daemon.commit else [])


def test_a_cleared_cursor_doubles_nothing(days: Days, daemon: Daemon) -> None:
    """The cursor is cleared: the sensor continues after the last reported checkpoint."""
    for number in range(1, 4):
        days.code.make_outside(days.uri, f"2024-01-0{number}")
    daemon.tick()
    daemon.cursor = None
    assert daemon.tick() == "slot 9: nothing new"
    days.code.make_outside(days.uri, "2024-01-04")
    daemon.tick()
    assert len(reported(days)) == len(reported(days, "files")) == 4


def test_a_cursor_set_back_by_hand_doubles_nothing(days: Days, daemon: Daemon) -> None:
    """The cursor is set back: everything after that slot is looked at, and nothing is reported twice."""
    for number in range(1, 4):
        days.code.make_outside(days.uri, f"2024-01-0{number}")
    daemon.tick()
    daemon.cursor = '{"slot": 1}'
    daemon.tick()
    assert len(reported(days)) == len(reported(days, "files")) == 3


def test_a_cleared_cursor_misses_nothing_that_runs_reported_around(days: Days, daemon: Daemon) -> None:
    """A later checkpoint that a run reported does not imply that earlier ones were."""
    days.code.make_outside(days.uri, "2024-01-01")
    days.run("2024-01-02")
    daemon.tick()
    assert sorted(reported(days)) == ["chk-00000001", "chk-00000002"]


@pytest.mark.parametrize(
    "text", ["7", "chk-00000003", '{"slot": -1}', '{"slot": "one"}', "{}", '{"slot": true}']
)
def test_a_cursor_that_is_none_is_refused(text: str, days: Days, daemon: Daemon) -> None:
    """No silent restart: the tick fails, shows what a cursor looks like, and reports nothing."""
    days.code.make_outside(days.uri, "2024-01-01")
    daemon.cursor = text
    with pytest.raises(InvalidInputError, match="clear it"):
        daemon.tick()
    assert reported(days) == []


def test_another_timeline_under_the_cursor_is_noticed(days: Days, daemon: Daemon) -> None:
    """The store was emptied and the job restarted: the tick says so instead of waiting for the old slots."""
    days.code.make_outside(days.uri, "2024-01-01")
    daemon.tick()
    for stat in list(days.store.list()):
        days.store.delete(stat.name, precondition=ANY)
    with pytest.raises(ConflictError, match="it has no checkpoint of that job"):
        daemon.tick()
    days.code.make_outside(days.uri, "2024-01-01")
    for cursor in (daemon.cursor, None, '{"slot": 0}'):
        daemon.cursor = cursor
        with pytest.raises(ConflictError, match="it has the timeline"):
            daemon.tick()
    daemon.cursor = '{"start_over": true}'
    daemon.tick()
    assert reported(days) == ["chk-00000001", "chk-00000001"], "two checkpoints of two timelines"


def test_a_hole_in_the_timeline_is_noticed(days: Days, daemon: Daemon) -> None:
    """A deleted record is not skipped: the tick fails and names the slot."""
    days.code.make_outside(days.uri, "2024-01-01")
    daemon.tick()
    days.code.make_outside(days.uri, "2024-01-02")
    (slot,) = days.store.list(f"dstl/days/timeline/{5:020}")
    days.store.delete(slot.name, precondition=ANY)
    with pytest.raises(FormatError, match="slot 5"):
        daemon.tick()
    assert reported(days) == ["chk-00000001"]


def test_what_was_cleaned_up_is_reported_too(days: Days, daemon: Daemon) -> None:
    """A sensor that starts late reports checkpoints whose manifest is gone from their records."""
    options = CheckpointOptions.from_mapping(
        {"execution.checkpointing.num-retained": "1", "dstl.checkpoint.reader-grace": "0 s"}
    )
    for number in range(1, 4):
        days.code.make_outside(days.uri, f"2024-01-0{number}", state=False, options=options)
    days.options = {"execution.checkpointing.num-retained": "1", "dstl.checkpoint.reader-grace": "0 s"}
    days.resource().coordinator("days").clean_up()
    daemon.tick()
    assert reported(days) == ["chk-00000001", "chk-00000002", "chk-00000003"]
    assert days.shown_checkpoints() == ["chk-00000003"]
    assert "cannot be restored" in str(days.events("checkpoints")[0].metadata["state"].value)


def test_the_cursor_is_readable(days: Days, daemon: Daemon) -> None:
    """The slot, and by what a timeline that was replaced is known."""
    days.code.make_outside(days.uri, "2024-01-01", until="completed")
    daemon.tick()
    cursor = json.loads(daemon.cursor or "")
    assert {"slot", "decision"} <= cursor.keys() <= {"slot", "decision", "shown"}
    assert cursor["slot"] == 2


def test_snapshots_on_the_timeline_change_nothing(days: Days, daemon: Daemon) -> None:
    """With snapshots between the checkpoints each is reported once, tick by tick and from the start."""
    options = CheckpointOptions(snapshot_interval=8, num_retained=2)
    for number in range(1, 10):
        days.code.make_outside(days.uri, f"2024-01-0{number}", files=0, options=options)
        if number % 4 == 0:
            daemon.tick()
    assert days.kinds().count("snapshot") >= 2
    daemon.cursor = None
    daemon.tick()
    assert reported(days) == [f"chk-0000000{number}" for number in range(1, 10)]
