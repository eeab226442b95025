"""A bad day: after each thing that goes wrong, all that the page shows agrees with `dstl checkpoints`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import dagster as dg
import pytest

from dstl_dagster import build_restore_job, restore_run_config
from tests.dagster.bad_day import Page, command_says, differences
from tests.dagster.bad_events import BadDay, foreign_object_after_step_5

pytestmark = pytest.mark.dagster


@dataclass
class PagedDay(BadDay):
    """The day, and its page as GraphQL answers it."""

    page: Page | None = None

    def agrees(self, after: str) -> None:
        """Run the checks, let the sensor look, and compare."""
        self.follow()
        self.agrees_without_the_sensor(after)

    def agrees_without_the_sensor(self, after: str) -> None:
        assert self.page is not None
        self.look()
        page, command = self.page.says(), command_says(self.days.uri)
        assert not differences(page, command), f"after {after}, (the page, the command)"

    def roll_back(self, last: int, to: int, **tags: str) -> dg.ExecuteInProcessResult:
        return build_restore_job(self.days.code.JOB).execute_in_process(
            instance=self.days.instance,
            resources={"changelog": self.days.resource()},
            partition_key=f"chk-{to:08}",
            run_config=restore_run_config(last, to),
            tags=tags,
            raise_on_error=False,
        )


@pytest.fixture
def bad(tmp_path: Path, days_code: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[PagedDay]:
    home, uri = tmp_path / "home", (tmp_path / "store").as_uri()
    home.mkdir()
    monkeypatch.setenv("DSTL_DAYS_URI", uri)
    with dg.DagsterInstance.local_temp(str(home)) as instance, Page.of(instance) as page:
        bad = PagedDay.of(days_code, instance, uri)
        bad.page = page
        yield bad


@pytest.mark.timeout(600)
def test_the_page_agrees_with_the_command_all_day_long(bad: PagedDay) -> None:
    """Killed, cancelled, blocked, resolved, rolled back twice, on a dead host, with its cursor cleared."""
    days = bad.days
    assert bad.day(1).success
    bad.agrees_without_the_sensor("a good day")

    bad.instance_says("failed", bad.day_on_a_host_that_dies(2, "report_checkpoint"))
    assert bad.day(3).success
    bad.agrees_without_the_sensor("a kill after step 5, and the next day")
    bad.agrees("the same, with the sensor")

    bad.instance_says("canceled", bad.day_on_a_host_that_dies(4, "report_checkpoint"))
    bad.agrees("a cancel after step 5")
    days.coordinator().compose_commit()
    bad.agrees("its files, published by hand")

    with foreign_object_after_step_5(bad.days, "out/2024-01-05/0.txt"):
        assert not bad.day(5).success
    bad.agrees("a blocked file")
    (blocked,) = (file.name for file in days.coordinator().get(5).blocked)
    bad.command("resolve", "5", blocked, "--replace")
    bad.agrees("the word of a person on it")

    assert not bad.roll_back(5, 3, **{"dagster/backfill": "missing"}).success
    bad.agrees("a backfill of the restore job, which is refused")
    assert bad.roll_back(5, 3).success
    bad.agrees_without_the_sensor("a restore")
    bad.agrees("the same, with the sensor")
    assert bad.day(4).success
    bad.agrees("a day that ran again")

    bad.day_on_a_host_that_dies(5, "report_files")
    bad.sensor.tick()
    assert "waiting for" in (bad.sensor.tick() or "")
    bad.clock.later = timedelta(hours=2)
    bad.agrees("a host that died, which nobody told Dagster")

    bad.command("restore", "6", "--yes")
    bad.agrees("a restore by the command")

    told = len(days.events("checkpoints")), len(days.events("files")), len(days.events("state"))
    for cursor in ('{"slot": 0}', None):
        bad.sensor.cursor = cursor
        bad.agrees(f"a cursor set to {cursor}")
    assert told == (len(days.events("checkpoints")), len(days.events("files")), len(days.events("state")))
