"""What Dagster's page shows of the job `days` once a browser has rendered it: words and colours.

Owns the reading. Does not own what is so (`tests/dagster/bad_day.py` asks the command), or what happens.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.dagster.bad_day import BLOCKED, CHECK, Truth

if TYPE_CHECKING:
    from playwright.sync_api import Page

SETTLED_SECONDS = 30.0
GONE_MILLISECONDS = 5_000
POLL_MILLISECONDS = 250
GO = """to => {
    history.pushState({}, '', to);
    dispatchEvent(new PopStateEvent('popstate', {state: {}}));
}"""
"""As a click on a link within the page goes: what is loaded stays loaded."""
NEWEST = {"checkpoints": "checkpoints", "state": "state", "files": "files", "totals": "state/totals"}
"""Where the newest event of each is shown."""
IS_TITLE = "title => document.title === title"
GREEN_DOTS = """() => [...document.querySelectorAll('[class*=assetListRow]')].map(row => {
    const style = [...row.querySelectorAll('div')].map(each => getComputedStyle(each));
    const dot = style.find(each => each.borderRadius === '100%').backgroundColor;
    const [red, green, blue] = dot.match(/[0-9]+/g).map(Number);
    return [row.querySelector('span').innerText, green > red + 50 && green > blue + 20];
})"""
"""The rows of the list of partitions, and whether the dot of each is green to the eye."""
ENTRY = """label => [...document.querySelectorAll('tr')]
    .map(row => [...row.querySelectorAll(':scope > td')].map(cell => cell.innerText.trim()))
    .filter(cells => cells[0] === label).map(cells => cells[cells.length - 1])"""
"""The values of the rows of the table of metadata that have this label."""


class RenderedPage:
    """A tab of a browser on the assets of `days`. It stays open: to load the page costs more than to go on.

    Attributes:
        settled_seconds: how long it may take until what is shown is so.
    """

    def __init__(self, page: Page, url: str) -> None:
        self._page = page
        self._url = url
        self.settled_seconds = SETTLED_SECONDS

    def differences(self, so: Truth, *, whole: bool = False) -> dict[str, tuple[Any, Any]]:
        """What it shows and what is so, where they still differ once the page has settled.

        Args:
            whole: the newest events of all assets, too, and not of the checkpoints alone.
        """
        wanted = asdict(so)
        shown: dict[str, Any] = {}
        for asset, days in (("files", "published"), ("state", "in_state")):
            self._go(asset, "partitions")
            shown[days] = self._settled(self._green, wanted[days])
        self._go("checkpoints", "partitions")
        shown["restorable"] = self._settled(self._restorable, so.restorable)
        self._go("checkpoints", "checks")
        shown["checked"] = self._settled(lambda: self._check(CHECK), so.checked)
        shown["blocked"] = self._settled(lambda: _negated(self._check(BLOCKED)), so.blocked)
        shown["newest"] = dict(so.newest)
        for name, asset in NEWEST.items() if whole else [("checkpoints", "checkpoints")]:
            self._go(asset, "overview")
            shown["newest"][name] = self._settled(lambda: self._entry("checkpoint"), so.newest[name])
            if name == "checkpoints":
                shown["fresh"] = self._settled(self._fresh, so.fresh)
        return {name: (shown[name], wanted[name]) for name in wanted if shown[name] != wanted[name]}

    def _settled(self, read: Callable[[], Any], expected: Any) -> Any:
        """What is read once it is as expected, or what still is not when the page has had its time."""
        deadline = time.monotonic() + self.settled_seconds
        while (found := read()) != expected and time.monotonic() < deadline:
            self._page.wait_for_timeout(POLL_MILLISECONDS)
        return found

    def _go(self, asset: str, view: str) -> None:
        """To a page of an asset, and wait until it is there: the one before may still be shown."""
        from playwright.sync_api import TimeoutError as NotShown  # with the extras of `dev` only

        path = f"/assets/days/{asset}?view={view}"
        title = " / ".join(["Assets | days", *asset.split("/")])
        if self._page.url.startswith(self._url):
            self._page.evaluate(GO, path)
            with contextlib.suppress(NotShown):
                self._page.wait_for_function(IS_TITLE, arg=title, timeout=GONE_MILLISECONDS)
                return
        self._page.goto(self._url + path)
        self._page.wait_for_function(IS_TITLE, arg=title)

    def _entry(self, label: str) -> int | None:
        """The checkpoint of a row; `None` while the row, or what it holds, is not drawn yet."""
        found = re.match(r"chk-(\d{8})", "".join(self._page.evaluate(ENTRY, label)[:1]))
        return int(found[1]) if found else None

    def _fresh(self) -> bool | None:
        return self._word("Freshness policy", "Passing")

    def _check(self, name: str) -> bool | None:
        """Whether the list of checks calls it succeeded."""
        return self._word(name, "Succeeded")

    def _word(self, label: str, good: str) -> bool | None:
        """Whether this word follows the label; `None` while none does, since the page is still loading."""
        text = self._page.locator("body").inner_text()
        found = re.search(rf"{label}\s+(?:{label}\s+)?(\w+)", text)
        return None if found is None else found[1] == good

    def _restorable(self) -> list[int] | None:
        dots = self._dots()
        return None if dots is None else [int(name.removeprefix("chk-")) for name, _ in dots]

    def _green(self) -> list[str] | None:
        dots = self._dots()
        return None if dots is None else sorted(name for name, green in dots if green)

    def _dots(self) -> list[tuple[str, bool]] | None:
        """The partitions; `None` while there are none, since the page is still loading."""
        return [(name, green) for name, green in self._page.evaluate(GREEN_DOTS)] or None


def _negated(found: bool | None) -> bool | None:
    return None if found is None else not found
