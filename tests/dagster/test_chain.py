"""The chain of checkpoints as text: what was left behind, what is kept, what can be restored, with links."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from dstl_dagster.orchestration.report.checkpoint_page import chain_metadata
from dstl_dagster.settings.checkpoint import CheckpointOptions
from dstl_dagster.timeline import TimelineView

if TYPE_CHECKING:
    from tests.dagster.conftest import Daemon, Days

pytestmark = pytest.mark.dagster

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PAGE = "/assets/days/checkpoints?view=partitions&partition="
LINK = re.compile(r"\[(chk-\d+)\]\(" + re.escape(PAGE) + r"\1\)")
DRAWN = """\
as of 2030-01-01 00:00 UTC
● chk-00000005 2024-01-03, 1 file, resumes here
● chk-00000004 2024-01-02, 1 file
│ ○ chk-00000003 2024-01-03, 1 file, undone, on 2
│ ○ chk-00000002 2024-01-02, 1 file, savepoint before-the-fix, undone, on 1
├─╯
● chk-00000001 2024-01-01, 1 file"""


def history(days: Days) -> TimelineView:
    """Three days, a savepoint, a restore, and two of the days again; the last one is not published."""
    for day in ("2024-01-01", "2024-01-02", "2024-01-03"):
        days.code.make_outside(days.uri, day)
    days.coordinator().savepoint(2, "before-the-fix")
    days.coordinator().restore(1)
    days.code.make_outside(days.uri, "2024-01-02")
    days.code.make_outside(days.uri, "2024-01-03", until="completed")
    return days.coordinator().timeline.tail()


def drawn(days: Days, view: TimelineView, restore_job: str = "days_restore") -> tuple[str, list[str]]:
    """The chain without its links, and the lines of what can be restored."""
    found = chain_metadata(days.code.JOB, view, NOW, restore_job)
    chain, restorable = str(found["chain"].value), str(found["restore to"].value)
    assert LINK.findall(chain), "each is a link"
    return LINK.sub(r"\1", chain).replace("  \n", "\n"), restorable.split("  \n")


def test_the_picture_shows_what_a_restore_left_behind(days: Days) -> None:
    """One line a checkpoint, newest first, the abandoned ones aside."""
    assert drawn(days, history(days))[0] == DRAWN


def test_a_long_chain_is_cut(days: Days) -> None:
    """It says how many are not drawn; and that older ones are gone, where they are."""
    options = CheckpointOptions(num_retained=40)
    for number in range(1, 41):
        days.code.make_outside(days.uri, f"number {number:03}", files=0, state=False, options=options)
    view = days.coordinator().timeline.tail()
    lines = drawn(days, view)[0].splitlines()
    assert lines[-1] == f"┆ {40 - (len(lines) - 2)} older ones"
    assert len(lines) > 15, "the first five are links"
    for text in chain_metadata(days.code.JOB, view, NOW, "days_restore").values():
        assert 700 < len(str(text.value)) < 1000, "as much as Dagster shows without a click"
    days.options["execution.checkpointing.num-retained"] = "3"
    days.resource().coordinator("days").clean_up()
    lines = drawn(days, days.coordinator().timeline.tail())[0].splitlines()
    assert len(lines) == 5
    assert lines[-1] == "┆ older ones are cleaned up"


def test_what_can_be_restored_is_listed_with_its_launchpad(days: Days) -> None:
    """Day, and what keeps it; the config confirms what is undone as of now, which the restore checks."""
    view = history(days)
    assert "restore to" not in chain_metadata(days.code.JOB, view, NOW, None), "the chain says it"
    last, before, _ = drawn(days, view)[1]
    assert last == "chk-00000005 2024-01-03", "the job is there already"
    link = urlsplit(before.removeprefix("[chk-00000004](").removesuffix(") 2024-01-02"))
    assert link.path == "/guess/days_restore/playground/setup"
    filled = dict(parse_qsl(link.query))
    assert (filled["tags[0][key]"], filled["tags[0][value]"]) == ("dagster/partition", "chk-00000004")
    assert yaml.safe_load(filled["config"])["ops"]["restore"]["config"] == {"confirm": "5->4"}


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
        assert said["file names"] == f"in `job/out/2024-01-0{number}/`:  \n`0.txt`, 2 rows, 23 B"
        first = LINK.sub(r"\1", said["chain"].splitlines()[1])
        assert first.strip() == f"● chk-0000000{number} 2024-01-0{number}, 1 file, resumes here"
        about = LINK.sub(r"\1", said["checkpoint"])
        on = "the first" if number == 1 else f"on chk-0000000{number - 1}"
        assert about.startswith(f"chk-0000000{number}, {on}, of 2024-01-0{number}, by ")
