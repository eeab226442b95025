"""The launchpad of a job in Dagster's page, as a person uses it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page


def open_partitions(page: Page, launchpad: str, name: str) -> None:
    """Open the launchpad's list of partitions. On a slow machine the page may drop a click while it loads."""
    from playwright.sync_api import TimeoutError as NotShown  # with the extras of `dev` only

    for _ in range(5):
        page.goto(launchpad)
        page.get_by_placeholder("Partition").click()
        with contextlib.suppress(NotShown):
            page.get_by_text(name).first.wait_for(timeout=30_000)
            return
    pytest.fail(f"the launchpad never offered {name}")


def launch(page: Page) -> None:
    """Press the button, and follow to the page of the run."""
    page.get_by_role("button", name="Launch Run").click()
    page.wait_for_url("**/runs/**")
