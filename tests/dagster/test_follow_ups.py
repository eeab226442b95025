"""What a checkpoint's page says that became so after its event: that its files are published, or blocked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import pytest

from tests.dagster.bad_events import foreign_object_after_step_5

if TYPE_CHECKING:
    from tests.dagster.conftest import Daemon, Days

pytestmark = pytest.mark.dagster

FILES = "1 of 1 files are published"


def told(days: Days, number: int) -> list[dict[str, str]]:
    """The observations of a checkpoint's partition, oldest first: what each says."""
    found = days.instance.fetch_observations(
        dg.AssetRecordsFilter(
            asset_key=dg.AssetKey(["days", "checkpoints"]), asset_partitions=[f"chk-{number:08}"]
        ),
        limit=100,
        ascending=True,
    )
    events = [record.asset_observation for record in found.records]
    return [{name: str(said.value) for name, said in event.metadata.items()} for event in events if event]


def test_a_page_says_that_files_are_published(days: Days) -> None:
    """By the runs: each once, though the steps run again."""
    for day in ("2024-01-01", "2024-01-02"):
        days.run(day)
        days.run(day)
    assert told(days, 1) == [{"published": FILES}]
    assert told(days, 2) == [{"published": FILES}]


def test_the_sensor_tells_the_same(days: Days, daemon: Daemon) -> None:
    """Of a job outside Dagster, and once: also after its cursor was cleared."""
    for day in ("2024-01-01", "2024-01-02"):
        days.code.make_outside(days.uri, day)
    for _ in range(2):
        daemon.cursor = None
        daemon.tick()
    assert told(days, 1) == [{"published": FILES}]
    assert told(days, 2) == [{"published": FILES}]


def test_a_blocked_file_is_seen_on_the_checkpoints_page(days: Days, daemon: Daemon) -> None:
    """It is named with the reason; the word of a person on it follows."""
    with foreign_object_after_step_5(days, "out/2024-01-01/0.txt"):
        assert not days.run("2024-01-01").success
    (blocked,) = told(days, 1)
    assert blocked["published"] == "0 of 1 files are published"
    (name,) = (file.name for file in days.coordinator().get(1).blocked)
    assert blocked["blocked"].startswith(f"`{name}`: ")
    assert "is a foreign object" in blocked["blocked"]
    assert "1 file blocked" in blocked["chain"]
    days.coordinator().resolve(1, name, "replace")
    daemon.tick()
    assert told(days, 1)[1:] == [{"published": FILES}]


def test_a_backlog_tells_only_of_pages_that_there_are(days: Days, daemon: Daemon) -> None:
    """An observation for each checkpoint that is retained, and none for those that are subsumed."""
    for number in range(1, 6):
        days.code.make_outside(days.uri, f"2024-01-{number:02}", state=False)
    days.options["execution.checkpointing.num-retained"] = "2"
    days.resource().coordinator("days").clean_up()
    daemon.tick()
    assert [len(told(days, number)) for number in range(1, 6)] == [0, 0, 0, 1, 1]
