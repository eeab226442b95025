"""A bad day: after each thing that goes wrong, all that Dagster's page shows agrees with `dstl checkpoints`.

What its GraphQL answers, and what a browser makes of it: a difference fails with both sides.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from dstl_dagster import build_maintenance, restore_run_config
from tests.dagster import days as days_code
from tests.dagster.bad_day import Page as Answers
from tests.dagster.bad_day import Truth, command_says, differences
from tests.dagster.bad_events import BadDay, foreign_object_after_step_5
from tests.ui.conftest import SETTINGS, new_page
from tests.ui.rendered import RenderedPage
from tests.ui.served import served

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize

pytestmark = [pytest.mark.dagster, pytest.mark.ui, pytest.mark.timeout(600)]

ONE_LOG = """\
event_log_storage:
  module: dagster._core.storage.event_log
  class: ConsolidatedSqliteEventLogStorage
  config: {base_dir: {env: DSTL_DAYS_EVENTS}}
"""
"""All runs in one database: making one for each costs a third of a run."""


@dataclass
class ShownDay(BadDay):
    """The day, what its page answers, and what a browser shows of that.

    The browser has a thread of its own: Dagster and its driver each want to be the only event loop of theirs.
    """

    answers: Answers | None = None
    rendered: RenderedPage | None = None
    thread: Executor | None = None

    def answers_agree(self, after: str) -> Truth:
        """Freshness is judged, and the check run that no step evaluates; then what it answers is compared."""
        assert self.answers is not None
        self.look()
        so = command_says(self.days.uri)
        assert not differences(self.answers.says(), so), f"after {after}, (what is answered, the command)"
        return so

    def agrees(self, after: str, *, whole: bool = False) -> None:
        """The sensor looks; then what is answered is compared, and what is rendered."""
        self.follow()
        found = self._rendered(self.answers_agree(after), whole=whole)
        assert not found, f"after {after}, (what is rendered, the command)"

    def is_seen(self, **wrong: bool) -> None:
        """The reading of what is the same all day bites: against what is not so it finds the difference."""
        assert self.rendered is not None
        so = command_says(self.days.uri)
        self.rendered.settled_seconds = 1
        assert set(wrong) <= set(self._rendered(replace(so, **wrong), whole=False))

    def _rendered(self, so: Truth, *, whole: bool) -> dict[str, tuple[object, object]]:
        assert self.thread is not None
        assert self.rendered is not None
        return self.thread.submit(self.rendered.differences, so, whole=whole).result()

    def roll_back(self, last: int, to: int, **tags: str) -> dg.ExecuteInProcessResult:
        return build_maintenance(self.days.code.JOB, "restore").execute_in_process(
            instance=self.days.instance,
            resources={"changelog": self.days.resource()},
            partition_key=f"chk-{to:08}",
            run_config=restore_run_config(last, to),
            tags=tags,
            raise_on_error=False,
        )


@pytest.fixture
def bad(
    browser_path: str, unflushed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ShownDay]:
    uri, home = (tmp_path / "store").as_uri(), tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(SETTINGS + ONE_LOG)
    monkeypatch.setenv("DSTL_DAYS_URI", uri)
    monkeypatch.setenv("DSTL_DAYS_EVENTS", str(home / "events"))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        bad = ShownDay.of(days_code, instance, uri)  # before there are threads
        with (
            Answers.of(instance) as bad.answers,
            served(bad.answers.process) as url,
            ThreadPoolExecutor(1) as bad.thread,
        ):
            opened = ExitStack()
            size: ViewportSize = {"width": 1400, "height": 1600}
            tab = bad.thread.submit(opened.enter_context, new_page(browser_path, size)).result()
            bad.rendered = RenderedPage(tab, url)
            yield bad
            bad.thread.submit(opened.close).result()


@pytest.fixture
def unflushed() -> Iterator[None]:
    """Dagster's databases need not outlive this machine: half of the time goes by waiting for its disk."""

    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", connected)
    yield
    event.remove(Engine, "connect", connected)


def test_the_page_agrees_with_the_command_all_day_long(bad: ShownDay) -> None:
    """Killed, cancelled, blocked, resolved, rolled back twice, on a dead host, its store away, its page
    wiped, its cursor cleared.
    """
    days = bad.days
    assert bad.day(1).success
    bad.answers_agree("a good day")

    bad.instance_says("failed", bad.day_on_a_host_that_dies(2, "report_checkpoint"))
    assert bad.day(3).success
    bad.answers_agree("a kill after step 5, and the next day, without the sensor")
    bad.follow()
    bad.answers_agree("a kill after step 5, and the next day")

    bad.instance_says("canceled", bad.day_on_a_host_that_dies(4, "report_checkpoint"))
    bad.follow()
    bad.answers_agree("a cancel after step 5")
    days.coordinator().compose_commit()
    bad.follow()
    bad.answers_agree("its files, published by hand")

    with foreign_object_after_step_5(bad.days, "out/2024-01-05/0.txt"):
        assert not bad.day(5).success
    bad.agrees("a blocked file")
    (blocked,) = (file.name for file in days.coordinator().get(5).blocked)
    bad.command("resolve", "5", blocked, "--replace")
    bad.follow()
    bad.answers_agree("the word of a person on it")

    assert not bad.roll_back(5, 3, **{"dagster/backfill": "missing"}).success
    bad.answers_agree("a backfill of the restore job, which is refused")
    assert bad.roll_back(5, 3).success
    bad.answers_agree("a restore, without the sensor")
    bad.agrees("a restore", whole=True)
    assert bad.day(4).success
    bad.answers_agree("a day that ran again")

    bad.day_on_a_host_that_dies(5, "report_files")
    bad.sensor.tick()
    assert "waiting for" in (bad.sensor.tick() or "")
    bad.clock.later = timedelta(hours=2)
    bad.follow()
    bad.answers_agree("a host that died, which nobody told Dagster")

    bad.command("restore", "6", "--yes")
    bad.follow()
    bad.answers_agree("a restore by the command")

    home = Path(days.uri.removeprefix("file://"))
    home.rename(home.with_name("aside"))
    assert "is not the one that this Dagster instance knows" in days.failure(bad.day(6))[1]
    home.with_name("aside").rename(home)
    bad.follow()
    bad.answers_agree("a store that was away, and is back")

    days.instance.wipe_assets([days.code.JOB.checkpoints_key])
    bad.follow()
    bad.answers_agree("a wipe in the page")

    told = len(days.events("checkpoints")), len(days.events("files")), len(days.events("state"))
    bad.sensor.cursor = '{"slot": 0}'
    bad.follow()
    bad.answers_agree("a cursor that was set back")
    bad.sensor.cursor = None
    bad.agrees("a cursor that was cleared")
    assert told == (len(days.events("checkpoints")), len(days.events("files")), len(days.events("state")))
    bad.is_seen(checked=False, fresh=False)
