"""A bad day in a browser: after each thing that goes wrong, what is rendered agrees with the command.

The long form: what Dagster answers is compared after each of these events in `tests/dagster/test_bad_day.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import dagster as dg
import pytest

from tests.dagster import days as days_code
from tests.dagster.bad_day import Page as Answers
from tests.dagster.bad_day import Truth, command_says
from tests.dagster.bad_events import BadDay, foreign_object_after_step_5
from tests.ui.conftest import new_page, webserver
from tests.ui.launchpad import confirm_restore
from tests.ui.rendered import RenderedPage

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

pytestmark = [pytest.mark.dagster, pytest.mark.ui, pytest.mark.timeout(900)]

CODE = "tests.dagster.bad_day"
T = TypeVar("T")


@dataclass
class RenderedDay(BadDay):
    """The day, and a tab of a browser on its page; the browser has a thread of its own.

    Dagster and the browser's driver each want to be the only event loop of their thread.
    """

    answers: Answers | None = None
    tab: Page | None = None
    thread: Executor | None = None
    url: str = ""

    def agrees(self, after: str) -> None:
        """The sensor looks, the checks run, Dagster judges freshness; then the page is loaded anew."""
        self.follow()
        self.look()
        assert self.answers is not None
        self.answers.judge_freshness()
        so = command_says(self.days.uri)
        differences = self._in_browser(lambda tab: RenderedPage(tab, self.url).differences(so))
        assert not differences, f"after {after}, (the page, the command)"

    def sees_that_nothing_agrees_with(self, wrong: Truth) -> None:
        """The same reading, against what is not so: no part of it can be passed over."""
        look = self._in_browser(lambda tab: RenderedPage(tab, self.url, settled_seconds=5).differences(wrong))
        assert set(look) == set(asdict(wrong))

    def roll_back(self, last: int, to: int) -> None:
        """By hand: the launchpad, the partition, the config that confirms it, and the button."""
        page = f"{self.url}/locations/{CODE}/jobs/days_restore/playground"
        self._in_browser(lambda tab: confirm_restore(tab, page, last, to))

    def _in_browser(self, act: Callable[[Page], T]) -> T:
        assert self.thread is not None
        assert self.tab is not None
        return self.thread.submit(act, self.tab).result()


@pytest.fixture
def bad(browser_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RenderedDay]:
    uri, home = (tmp_path / "store").as_uri(), tmp_path / "home"
    monkeypatch.setenv("DSTL_DAYS_URI", uri)
    with (
        webserver(home, CODE) as url,
        dg.DagsterInstance.from_config(str(home)) as instance,
        Answers.of(instance) as answers,
        ThreadPoolExecutor(1) as thread,
    ):
        opened = ExitStack()
        size: ViewportSize = {"width": 1400, "height": 1600}
        tab = thread.submit(opened.enter_context, new_page(browser_path, size)).result()
        bad = RenderedDay.of(days_code, instance, uri)
        bad.answers, bad.tab, bad.thread, bad.url = answers, tab, thread, url
        yield bad
        thread.submit(opened.close).result()


@pytest.mark.soak
def test_what_is_rendered_agrees_with_the_command_all_day_long(bad: RenderedDay) -> None:
    """Killed, cancelled, blocked, resolved, rolled back by hand, on a dead host, with its cursor cleared."""
    assert bad.day(1).success
    bad.instance_says("failed", bad.day_on_a_host_that_dies(2, "report_checkpoint"))
    assert bad.day(3).success
    bad.agrees("a kill after step 5, and the next day")

    bad.instance_says("canceled", bad.day_on_a_host_that_dies(4, "report_checkpoint"))
    bad.agrees("a cancel after step 5")

    with foreign_object_after_step_5(bad.days, "out/2024-01-05/0.txt"):
        assert not bad.day(5).success
    bad.agrees("a blocked file")
    (blocked,) = (file.name for file in bad.days.coordinator().get(5).blocked)
    bad.command("resolve", "5", blocked, "--replace")
    bad.agrees("the word of a person on it")

    bad.roll_back(5, 3)
    bad.agrees("a restore from the launchpad")

    bad.day_on_a_host_that_dies(4, "report_files")
    bad.clock.later = timedelta(hours=2)
    bad.agrees("a host that died, which nobody told Dagster")

    bad.sensor.cursor = None
    bad.agrees("a cursor that was cleared")
    nowhere = dict.fromkeys(("checkpoints", "state", "files", "totals"), 7)
    bad.sees_that_nothing_agrees_with(Truth(nowhere, [7], ["2024-01-07"], [], False, True, False))
