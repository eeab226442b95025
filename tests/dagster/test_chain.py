"""The chain of checkpoints as text: what was left behind, what is kept, what can be restored, with links."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from dstl_dagster.orchestration.report.chain import chain_metadata, picture
from dstl_dagster.settings.checkpoint import CheckpointOptions
from dstl_dagster.timeline import TimelineView

if TYPE_CHECKING:
    from tests.dagster.conftest import Daemon, Days

pytestmark = pytest.mark.dagster

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DRAWN = """\
● chk-00000005  2024-01-03, 1 file, resumes here
● chk-00000004  2024-01-02, 1 file
│ ○ chk-00000003  2024-01-03, 1 file, undone, on 2
│ ○ chk-00000002  2024-01-02, 1 file, savepoint before-the-fix, undone, on 1
├─╯
● chk-00000001  2024-01-01, 1 file"""


def history(days: Days) -> TimelineView:
    """Three days, a savepoint, a restore, and two of the days again; the last one is not published."""
    for day in ("2024-01-01", "2024-01-02", "2024-01-03"):
        days.code.make_outside(days.uri, day)
    days.coordinator().savepoint(2, "before-the-fix")
    days.coordinator().restore(1)
    days.code.make_outside(days.uri, "2024-01-02")
    days.code.make_outside(days.uri, "2024-01-03", until="completed")
    return days.coordinator().timeline.tail()


def test_the_picture_shows_what_a_restore_left_behind(days: Days) -> None:
    """One line a checkpoint, newest first, the abandoned ones aside."""
    assert picture(days.code.JOB, history(days)) == DRAWN


def test_a_long_chain_is_cut(days: Days) -> None:
    """It says how many are not drawn; and that older ones are gone, where they are."""
    options = CheckpointOptions(num_retained=40)
    for number in range(1, 41):
        days.code.make_outside(days.uri, f"number {number:03}", files=0, state=False, options=options)
    view = days.coordinator().timeline.tail()
    drawn = picture(days.code.JOB, view).splitlines()
    assert drawn[-1] == f"┆ {40 - (len(drawn) - 1)} older ones"
    for text in chain_metadata(days.code.JOB, view, NOW).values():
        assert 700 < len(str(text.value)) < 1000, "as much as Dagster shows without a click"
    days.coordinator().clean_up()
    drawn = picture(days.code.JOB, days.coordinator().timeline.tail()).splitlines()
    assert len(drawn) == 11
    assert drawn[-1] == "┆ older ones are cleaned up"


def test_what_can_be_restored_is_listed_with_links(days: Days) -> None:
    """Day, time and what keeps it; each links to the page of its partition."""
    view = history(days)
    at = {entry.checkpoint_id: f"{entry.completed.recorded_at:%Y-%m-%d %H:%M} UTC" for entry in view.retained}
    found = chain_metadata(days.code.JOB, view, NOW)
    assert str(found["chain"].value).splitlines()[1] == "as of 2030-01-01 00:00 UTC"
    rows = str(found["restorable"].value).splitlines()[2:]
    page = "/assets/days/checkpoints?view=partitions&partition="
    assert rows == [
        f"| [chk-00000005]({page}chk-00000005) | 2024-01-03 | {at[5]} | retention |",
        f"| [chk-00000004]({page}chk-00000004) | 2024-01-02 | {at[4]} | retention |",
        f"| [chk-00000001]({page}chk-00000001) | 2024-01-01 | {at[1]} | retention |",
    ]


def test_a_checkpoints_page_answers(days: Days, daemon: Daemon) -> None:
    """By the run's event and by the sensor's: the whole state, how far its base is, files, parent, chain."""
    days.run("2024-01-01")
    days.run("2024-01-02")
    days.code.make_outside(days.uri, "2024-01-03")
    daemon.tick()
    events = days.events("checkpoints")
    assert len(events) == 3
    for number, event in enumerate(events, 1):
        said = {name: str(entry.value) for name, entry in event.metadata.items()}
        assert [*said][:5] == ["resumes at", "next partition", "rows", "size", "took"]
        assert said["resumes at"] == f"calendar: 2024-01-0{number + 1}T00:00:00+00:00"
        assert said["next partition"] == f"2024-01-0{number + 1}"
        assert f"of changes in {number - 1} run{'' if number == 2 else 's'} above" in said["size"]
        assert f"out/2024-01-0{number}/0.txt`, 23 B" in said["file names"]
        first = said["chain"].splitlines()[2]
        assert first == f"● chk-0000000{number}  2024-01-0{number}, 1 file, resumes here"
        assert said["restorable"].count("[chk-") == number
        if number > 1:
            assert f"[chk-0000000{number - 1}](/assets/days/checkpoints?" in said["parent"]
    (files, *_) = days.events("files")
    assert "partition=chk-0000000" in str(files.metadata["checkpoint page"].value)
