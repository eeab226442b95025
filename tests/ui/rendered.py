"""What Dagster's page shows of the job `days` once a browser has rendered it: words and colours.

Owns the reading. Does not own what is so (`tests/dagster/bad_day.py` asks the command), or what happens.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.dagster.bad_day import BLOCKED, CHECK, Truth

if TYPE_CHECKING:
    from playwright.sync_api import Page

SETTLED_SECONDS = 30.0
POLL_MILLISECONDS = 200
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
    """A tab of a browser on the assets of `days`."""

    def __init__(self, page: Page, url: str, settled_seconds: float = SETTLED_SECONDS) -> None:
        self._page = page
        self._url = f"{url}/assets/days"
        self._settled_seconds = settled_seconds

    def differences(self, so: Truth) -> dict[str, tuple[Any, Any]]:
        """What it shows and what is so, where they still differ once the page has settled."""
        wanted = asdict(so)
        shown: dict[str, Any] = {"newest": {}}
        for name, asset in (("checkpoints", "checkpoints"), ("files", "files"), ("totals", "state/totals")):
            self._open(asset)
            expected = so.newest[name]
            shown["newest"][name] = self._settled(lambda: self._entry("checkpoint"), expected)
            if name == "checkpoints":
                shown["fresh"] = self._settled(self._fresh, so.fresh)
                self._tab("Checks")
                shown["checked"] = self._settled(lambda: self._check(CHECK), so.checked)
                shown["blocked"] = self._settled(lambda: _negated(self._check(BLOCKED)), so.blocked)
                self._tab("Partitions")
                shown["restorable"] = self._settled(self._restorable, so.restorable)
            elif name == "files":
                self._tab("Partitions")
                shown["published"] = self._settled(self._green, so.published)
        self._open("state")
        shown["newest"]["state"] = self._settled(lambda: self._entry("checkpoint"), so.newest["state"])
        self._tab("Partitions")
        shown["in_state"] = self._settled(self._green, so.in_state)
        return {name: (shown[name], wanted[name]) for name in wanted if shown[name] != wanted[name]}

    def _settled(self, read: Callable[[], Any], expected: Any) -> Any:
        """What is read once it is as expected, or what still is not when the page has had its time."""
        deadline = time.monotonic() + self._settled_seconds
        while (found := read()) != expected and time.monotonic() < deadline:
            self._page.wait_for_timeout(POLL_MILLISECONDS)
        return found

    def _open(self, asset: str) -> None:
        self._page.goto(f"{self._url}/{asset}?view=overview")
        self._page.get_by_text("Latest materialization").wait_for()

    def _tab(self, name: str) -> None:
        self._page.get_by_role("tab", name=name).or_(
            self._page.get_by_role("link", name=name, exact=True)
        ).first.click()

    def _entry(self, label: str) -> int | None:
        shown = self._page.evaluate(ENTRY, label)
        return int(shown[0]) if shown else None

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

    def _restorable(self) -> list[int]:
        return [int(name.removeprefix("chk-")) for name, _ in self._dots()]

    def _green(self) -> list[str]:
        return sorted(name for name, green in self._dots() if green)

    def _dots(self) -> list[tuple[str, bool]]:
        self._page.locator("[class*=assetListRow]").first.wait_for()
        return [(name, green) for name, green in self._page.evaluate(GREEN_DOTS)]


def _negated(found: bool | None) -> bool | None:
    return None if found is None else not found
