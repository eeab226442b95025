"""What a person sees of the flights job in Dagster's page, through a real browser."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.ui.conftest import PICTURES, TEST_SECONDS
from tests.ui.launchpad import launch, open_partitions

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

    from tests.ui.conftest import Site

pytestmark = [pytest.mark.dagster, pytest.mark.ui, pytest.mark.timeout(TEST_SECONDS)]

RAW = re.compile(r"(?<![\w.-])\d{6,}(?![\w-])")
"""A count of bytes that nobody made readable: six digits in a row that are no part of a name."""


SIZE: ViewportSize = {"width": 1400, "height": 880}
MEASURES = (
    *("changes", "changelog MiB", "files", "file MiB", "state MiB", "rows at most", "batch seconds"),
    "requests",
)
SET_FACETS = "facets => localStorage.setItem('asset-node-facets', JSON.stringify(facets))"
SET_THEME = "theme => localStorage.setItem('dagster-theme', JSON.stringify(theme))"
IS_DARK = """() => {
    const background = [document.body, ...document.querySelectorAll('body *')]
        .map(each => getComputedStyle(each).backgroundColor).find(each => !each.endsWith(', 0)'));
    return background.match(/[0-9]+/g).slice(0, 3).every(each => Number(each) < 64);
}"""
TABLE = "[class*=MetadataEntriesTable]"
CUT = f"""() => [...document.querySelectorAll('{TABLE}, {TABLE} *')]
    .filter(each => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
    .map(each => each.innerText)"""
"""All that is wider than its place, within the table of metadata."""


def text_of(page: Page) -> str:
    return page.locator("body").inner_text()


def raw_numbers(page: Page) -> list[str]:
    """All that is `RAW`. The eight digits by which a run is named are all decimal once in forty times."""
    runs = set(page.locator("a[href*='/runs/']").all_inner_texts())
    unnamed = re.sub(r"\brun \d{8}\b", "", text_of(page))
    return [number for number in RAW.findall(unnamed) if number not in runs]


def test_the_asset_graph(site: Site, browser_page: Page, picture: Any) -> None:
    """Source, state, its operators, reports and checkpoints hang together; the checks have passed."""
    browser_page.set_viewport_size({"width": 1400, "height": 1000})
    browser_page.goto(site.location("asset-groups/nyc_flights/lineage"))
    for name in ("flights", "state", "aircraft", "routes", "reports", "checkpoints"):
        browser_page.get_by_text(name, exact=True).first.wait_for()
    browser_page.get_by_text("7 / 7 Passed").wait_for()
    for shown in ("4 partitions", "PySpark"):
        browser_page.get_by_text(shown).first.wait_for()
    assert browser_page.get_by_text("Materialized").count() >= 2, "the operators' states"
    assert browser_page.locator("svg path[marker-end], svg g path").count() > 0
    browser_page.evaluate(SET_FACETS, ["checks", "status", "kind-tag"])
    browser_page.reload()
    browser_page.get_by_text("7 / 7 Passed").wait_for()
    picture("asset-graph", part={"x": 314, "y": 332, "width": 1010, "height": 436})  # without the navigation
    browser_page.evaluate(SET_FACETS, None)
    browser_page.set_viewport_size(SIZE)


def test_a_checkpoints_page(site: Site, browser_page: Page) -> None:
    """Status, checks, freshness, sizes, and behind a click a row for each operator; nothing raw."""
    browser_page.goto(site.asset("checkpoints", "overview"))
    browser_page.get_by_text("chk-00000004").first.wait_for()
    browser_page.get_by_text(re.compile("KiB of changes")).first.wait_for()
    browser_page.get_by_text("[Show Markdown]").click()
    for keys in (site.days.AIRCRAFT_KEYS, site.days.ROUTE_KEYS):
        browser_page.get_by_role("cell", name=keys, exact=True).first.wait_for()
    assert not raw_numbers(browser_page)
    browser_page.get_by_role("button", name="Close").click()
    for late in ("Passing", "chk-00000003", "2013-01-04"):  # each comes with an answer of its own
        browser_page.get_by_text(late).first.wait_for()
    text = text_of(browser_page)
    for shown in ("Passing", "team:flights", "chk-00000003", "2013-01-04"):
        assert shown in text.replace("\nflights\n", "\nteam:flights\n"), shown
    assert not raw_numbers(browser_page)


@pytest.mark.parametrize(
    ("theme", "assets"),
    [("Dark", ["checkpoints"]), ("Light", ["state", "reports", "state/aircraft", "checkpoints"])],
)
def test_nothing_is_cut(site: Site, browser_page: Page, theme: str, assets: list[str]) -> None:
    """At 1,280 pixels, where Dagster's page gives a value 25 characters; a longer name would be noticed."""
    browser_page.set_viewport_size({"width": 1280, "height": 2000})
    browser_page.goto(site.url)  # whose theme it is
    browser_page.evaluate(SET_THEME, theme)
    for asset in assets:
        browser_page.goto(site.asset(asset, "overview"))
        link = browser_page.locator(f"{TABLE} a", has_text="chk-00000004").first
        link.wait_for()
        assert browser_page.evaluate(IS_DARK) is (theme == "Dark")
        assert browser_page.evaluate(CUT) == []
    link.evaluate("each => each.innerText = 'x'.repeat(60)")
    assert browser_page.evaluate(CUT) != [], "the measure bites"
    browser_page.set_viewport_size(SIZE)


def test_a_checkpoints_chain(site: Site, browser_page: Page, picture: Any) -> None:
    """The chain, with links that work.

    The page of a checkpoint says what came later: that its files are published.
    """
    browser_page.set_viewport_size({"width": 1280, "height": 1800})
    browser_page.goto(site.asset("checkpoints", "overview"))
    browser_page.get_by_text("Passing").first.wait_for()
    picture("checkpoint-chain", 1800)
    link = browser_page.locator("a[href*='partition=chk-00000003']").last  # not that of what can be restored
    link.wait_for()
    browser_page.get_by_text(re.compile(r"● chk-00000004\s+2013-01-04, \d files, resumes here")).wait_for()
    link.click()
    browser_page.wait_for_url("**partition=chk-00000003")
    browser_page.set_viewport_size(SIZE)
    browser_page.get_by_text(re.compile(r"^(\d) of \1 files are published$")).first.wait_for()


def test_the_jobs_page_shows_the_runs(site: Site, browser_page: Page) -> None:
    """Also those that the page did not launch: the demo's."""
    browser_page.goto(site.location("jobs/nyc_flights_day/runs"))
    browser_page.get_by_text("2013-01-04").first.wait_for()
    for day in site.days.IN_DAGSTER:
        assert browser_page.get_by_text(day).count(), day


def test_a_checkpoints_plots(site: Site, browser_page: Page, picture: Any) -> None:
    """One plot for each measure, by checkpoint, and none of anything else."""
    browser_page.goto(site.asset("checkpoints", "overview"))
    browser_page.get_by_text("Plots", exact=True).click()
    browser_page.locator("canvas").first.wait_for()
    for measure in MEASURES:
        browser_page.get_by_text(measure, exact=True).first.wait_for()
    assert browser_page.locator("canvas").count() == len(MEASURES), "an id is no measure"
    _drawn(browser_page)
    picture("checkpoint-plots")


def _drawn(page: Page) -> None:
    """Wait until the first plot has coloured points."""
    page.wait_for_function(
        """() => {
            const canvas = document.querySelector('canvas');
            const bytes = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            let coloured = 0;
            for (let at = 0; at < bytes.length; at += 4)
                if (bytes[at + 3] > 200 && bytes[at + 2] > bytes[at] + 40) coloured++;
            return coloured > 200;
        }"""
    )


def test_a_state_shows_its_columns(site: Site, browser_page: Page) -> None:
    """The state of an operator has a column schema, with its keys."""
    browser_page.goto(site.asset("state/aircraft", "overview"))
    browser_page.get_by_text(site.days.AIRCRAFT_KEYS, exact=True).first.wait_for()
    text = text_of(browser_page)
    assert "int64" in text
    assert "Columns" in text


def test_a_run_with_a_retried_step(site: Site, browser_page: Page, picture: Any) -> None:
    """All five steps stand in the run; the first was tried twice, and the log says why, and sizes."""
    browser_page.set_viewport_size({"width": 1400, "height": 1250})
    browser_page.goto(f"{site.url}/runs/{site.days.run_of(site.folder, site.days.RETRIED)}")
    log_filter = browser_page.get_by_placeholder("Filter…")
    log_filter.fill("checkpoint 4")
    browser_page.get_by_text("step 5 confirm: checkpoint 4 is complete").wait_for()
    published = re.compile(r"published \d files of checkpoint 4 \(\S+ KiB in all\)")
    browser_page.get_by_text(published).wait_for()
    browser_page.get_by_text("Succeeded (5)").wait_for()
    log_filter.fill("retry")
    browser_page.get_by_text("STEP_UP_FOR_RETRY").first.wait_for()
    browser_page.get_by_text(site.days.RETRY_REASON).first.wait_for()
    _steps_side_by_side(browser_page)
    for step in ("update", "persist", "confirm", "cleanup"):
        bars = browser_page.get_by_text(f"nyc_flights__state.{step}", exact=True)
        tries = 2 if step == "update" else 1
        bars.nth(tries - 1).wait_for()
        assert bars.count() == tries, step
        bars.last.element_handle().wait_for_element_state("stable")
    picture("run-with-retry", 640)
    browser_page.set_viewport_size(SIZE)


def _steps_side_by_side(page: Page) -> None:
    """Press the first of the three buttons that say how the steps are drawn, which have no names."""
    page.locator("xpath=//*[count(.//button)=3 and normalize-space()='']//button").first.click()


def test_the_checkpoints_that_can_be_restored(site: Site, browser_page: Page, picture: Any) -> None:
    """The partitions are the checkpoints of now; one of them shows all there is to it."""
    browser_page.set_viewport_size({"width": 1800, "height": 1000})
    browser_page.goto(site.asset("checkpoints", "partitions&partition=chk-00000002"))
    browser_page.get_by_text("Materialized (4)").wait_for()
    browser_page.get_by_role("link", name="chk-00000001", exact=True).first.wait_for()
    for number in range(1, 5):
        assert browser_page.get_by_text(f"chk-0000000{number}").count()
    assert not raw_numbers(browser_page)
    picture("checkpoint-partitions")
    browser_page.set_viewport_size(SIZE)


def test_the_sensors_ticks(site: Site, browser_page: Page, picture: Any) -> None:
    """The example's sensor is on, and reports the checkpoint that is made outside Dagster."""
    browser_page.goto(site.location("sensors/nyc_flights_checkpoints"))
    switch = browser_page.locator("input[type=checkbox]").first
    switch.wait_for(state="attached")
    assert switch.is_checked()
    site.days.make_outside(site.folder)
    reported = browser_page.locator("tr", has_text="1 partition created")
    reported.first.wait_for(timeout=90_000)
    browser_page.reload()  # its head asks more seldom than its list
    reported.first.wait_for()
    picture("sensor-ticks")
    reported.first.get_by_text("View logs").click()
    browser_page.get_by_text("reported chk-00000005").first.wait_for()
    browser_page.goto(site.asset("checkpoints", "partitions"))
    browser_page.get_by_text("Materialized (5)").wait_for()


# A run by the launchpad takes a third of a minute: in CI it is that of the confirmed restore.
# A preview's words, and that it changes nothing: `tests/dagster/test_restore_page.py`.
@pytest.mark.skipif(PICTURES not in os.environ, reason="for pictures")
def test_a_restore_says_what_it_would_undo(site: Site, browser_page: Page, picture: Any) -> None:
    """The launchpad offers exactly the checkpoints; a run that nobody confirmed leaves all of them."""
    open_partitions(browser_page, site.location("jobs/nyc_flights_restore/playground"), "chk-00000005")
    offered = browser_page.get_by_text(re.compile(r"^chk-\d+$"))
    assert offered.all_inner_texts() == [f"chk-0000000{number}" for number in range(1, 6)]
    offered.nth(2).click()
    launch(browser_page)
    browser_page.get_by_text("nothing was changed").first.wait_for(timeout=120_000)
    assert browser_page.get_by_text("2013-01-04, 2013-01-05").count()
    browser_page.get_by_text("Failure", exact=True).first.wait_for()
    browser_page.get_by_placeholder("Filter").fill("type:STEP_FAILURE")  # without the traces of other events
    browser_page.get_by_text("RUN_FAILURE").first.wait_for(state="hidden")
    picture("restore-preview")
    browser_page.goto(site.asset("checkpoints", "partitions"))
    browser_page.get_by_text("Materialized (5)").wait_for()


def test_a_confirmed_restore(site: Site, browser_page: Page, picture: Any) -> None:
    """By the link of what can be restored, which fills in partition and config; then the page is right."""
    browser_page.goto(site.asset("checkpoints", "overview"))
    browser_page.locator("a[href*='nyc_flights_restore']", has_text="chk-00000003").click()
    browser_page.get_by_text("partition: chk-00000003").wait_for()
    browser_page.get_by_text("5->3").first.wait_for()
    launch(browser_page)
    browser_page.get_by_text("Success", exact=True).first.wait_for(timeout=120_000)
    browser_page.set_viewport_size({"width": 1280, "height": 1800})
    browser_page.goto(site.asset("checkpoints", "overview"))
    browser_page.get_by_text("chk-00000004, chk-00000005").wait_for()
    browser_page.get_by_text("│ ○ chk-00000005").wait_for()
    browser_page.get_by_text(re.compile(r"● chk-00000003\s+2013-01-03, \d files, resumes here")).wait_for()
    assert not raw_numbers(browser_page)
    assert browser_page.evaluate(CUT) == []
    picture("restore-done", 1800)
    browser_page.set_viewport_size(SIZE)
    browser_page.goto(site.asset("checkpoints", "partitions"))
    browser_page.get_by_text("Materialized (3)").wait_for()
    for name in ("state", "reports"):
        browser_page.goto(site.asset(name, "partitions"))
        browser_page.get_by_role("button", name="All", exact=True).click()
        browser_page.get_by_text("Failed (2)").wait_for()
        browser_page.get_by_text("Materialized (3)").wait_for()
