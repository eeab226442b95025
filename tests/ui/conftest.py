"""Dagster's own page over a few days of the flights, and a browser of the system's to look at it.

`DSTL_UI_PICTURES=docs/images pytest tests/ui/test_dagster_page.py` runs the flights example itself, on Spark,
and writes a picture of each page that a test has looked at. `DSTL_UI_FOLDER` names a folder to keep the days
and Dagster's home in, which is used as it is where it has them; by default they go with the test.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import FloatRect, Page, ViewportSize

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PICTURES = "DSTL_UI_PICTURES"
TEST_SECONDS = 1800 if os.environ.get(PICTURES) else 600
PATIENCE_SECONDS = 240.0
SHORT_SECONDS = 60.0
POLL_SECONDS = 0.2
SETTINGS = """\
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
"""


@dataclass(frozen=True)
class Site:
    """A running `dagster dev`: where its page is, and the folder of the days."""

    url: str
    folder: Path
    days: ModuleType

    def location(self, path: str) -> str:
        """A page of the example's code location."""
        return f"{self.url}/locations/dstl_flights.definitions/{path}"

    def asset(self, name: str, view: str) -> str:
        return f"{self.url}/assets/nyc_flights/{name}?view={view}"


@pytest.fixture(scope="session")
def browser_path() -> str:
    """The system's browser. Where there is none: in CI a failure, elsewhere a skip; both say what to do."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        missing = "no browser to test Dagster's page with: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="module")
def site(browser_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """`dagster dev` over four days; a fifth is made while it runs (`make_outside`)."""
    folder = Path(os.environ.get("DSTL_UI_FOLDER") or tmp_path_factory.mktemp("ui"))
    # Spark for pictures alone: what the tests look at is Dagster's page, and a JVM costs minutes.
    days = import_module(f"tests.ui.{'spark' if os.environ.get(PICTURES) else 'flights'}_days")
    before = dict(os.environ)
    try:
        if not (folder / "dagster").exists():
            days.make_folder(folder)
        with _dagster_dev(folder) as url:
            yield Site(url, folder, days)
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def browser_page(browser_path: str, site: Site) -> Iterator[Page]:
    """One page for all tests of the flights."""
    with new_page(browser_path, {"width": 1400, "height": 880}) as page:
        yield page


@contextlib.contextmanager
def new_page(browser_path: str, size: ViewportSize) -> Iterator[Page]:
    """A browser with one tab; times are shown as in Greenwich."""
    from playwright.sync_api import sync_playwright  # with the extras of `dev` only

    with sync_playwright() as playwright:
        # As root, which CI may be, the browser refuses to run in a sandbox.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=browser_path, args=flags)
        context = browser.new_context(viewport=size, timezone_id="UTC", locale="en-US")
        context.set_default_timeout(SHORT_SECONDS * 1000)
        yield context.new_page()
        browser.close()


@pytest.fixture
def picture(browser_page: Page) -> Callable[..., None]:
    """Takes a picture, of the page, its top or a part, if pictures are asked for."""
    folder = os.environ.get(PICTURES)

    def take(name: str, height: int | None = None, part: FloatRect | None = None) -> None:
        if folder is None:
            return
        size = browser_page.viewport_size
        assert size is not None
        whole: FloatRect = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"]}
        browser_page.screenshot(path=Path(folder) / f"{name}.png", clip=part or whole)

    return take


@contextlib.contextmanager
def _dagster_dev(folder: Path) -> Iterator[str]:
    """Webserver and daemon over the flights, in a session of their own, which ends with the block."""
    homes = {"DAGSTER_HOME": str(folder / "dagster"), "DSTL_DEMO_FOLDER": str(folder)}
    command = ["dagster", "dev", "-m", "dstl_flights.definitions"]
    port = free_port()
    log_path = folder / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "-h", "127.0.0.1", "-p", str(port)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **homes},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _answers(f"{url}/server_info"):
            assert process.poll() is None, f"the server ended:\n{log_path.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"no page came up:\n{log_path.read_text()[-3000:]}"
            time.sleep(POLL_SECONDS)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):  # killed below, with all that it started
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
