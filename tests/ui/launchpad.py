"""The launchpad of a job in Dagster's page, as a person uses it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUN_SECONDS = 120


def confirm_restore(page: Page, launchpad: str, last: int, to: int) -> None:
    """Choose the checkpoint, put the config that a run without it asks for in place of the defaults, press
    the button, and wait until the run has succeeded.
    """
    partition = f"chk-{to:08}"
    open_partitions(page, launchpad, partition)
    page.get_by_text(partition, exact=True).first.click()
    page.get_by_text("confirm:").first.wait_for()
    page.locator(".CodeMirror").first.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(f'ops: {{restore: {{config: {{confirm: "{last} -> {to}"}}}}}}')
    launch(page)
    page.get_by_text("Success", exact=True).first.wait_for(timeout=RUN_SECONDS * 1000)


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
