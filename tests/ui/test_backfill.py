"""Thirty days and ten places, two runs at once, by the real daemon, while their code is loaded anew.

By the button of Dagster's page or by its API. The days have an order; the places have none, so two of them
race, and the one that is refused runs again by the instance's `run_retries`. Code server, daemon and web
server are processes of their own, as in production: a reload gives the daemon the new code, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster import read_state
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.storage import open_store
from tests.dagster.test_daemon import DAEMON
from tests.ui.conftest import free_port, new_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.dagster, pytest.mark.ui, pytest.mark.soak, pytest.mark.timeout(7200)]

RELOAD_AFTER = 8
PATIENCE_SECONDS = 3600.0
POLL_SECONDS = 1.0
PAGE_MILLISECONDS = 300_000
KEYS = {
    "days": [f"2024-01-{number:02}" for number in range(1, 31)],
    "places": [f"place-{number:02}" for number in range(1, 11)],
}
SETTINGS = """\
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {max_concurrent_runs: 2, dequeue_interval_seconds: 1}
run_retries: {enabled: true, max_retries: 10}
"""
CODE = """\
import os
import time

import dagster as dg
import dstl_dagster as dstl
import pyarrow as pa

KEEP_ALL = {"execution.checkpointing.num-retained": "1000"}
PARTITIONS = {
    "days": dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-31"),
    "places": dg.StaticPartitionsDefinition([f"place-{number:02}" for number in range(1, 11)]),
}


def until_another_is_refused(instance):
    failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE])
    before, deadline = instance.get_runs_count(failed), time.monotonic() + 300
    while instance.get_runs_count(failed) == before and time.monotonic() < deadline:
        time.sleep(0.5)


def rows_of(job):
    @dstl.checkpointed_asset(job, keys=["key"], partitions_def=PARTITIONS[job])
    def rows(context: dg.AssetExecutionContext) -> pa.Table:
        if context.partition_key in ("place-01", "place-05"):
            until_another_is_refused(context.instance)
        return pa.table({"key": [context.partition_key], "code": ["VERSION"]})

    return rows


defs = dg.Definitions(
    assets=[rows_of("days"), rows_of("places")],
    resources={"changelog": dstl.ChangelogStorageResource(uri=os.environ["STORE"], options=KEEP_ALL)},
    executor=dg.in_process_executor,
)
"""
LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on PythonError { message }
  }
}
"""
RELOAD = 'mutation { reloadRepositoryLocation(repositoryLocationName: "here") { __typename } }'
LOADED = "{repositoriesOrError {... on RepositoryConnection {nodes {location {name}}}}}"
WORKSPACE = "load_from: [{grpc_server: {host: localhost, port: %d, location_name: here}}]\n"

InPage = Callable[..., None]


class Site:
    """Three processes over one code location, and what was backfilled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.store = (folder / "store").as_uri()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        code_port, port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        (folder / "workspace.yaml").write_text(WORKSPACE % code_port)
        self.write("first")
        workspace = ["-w", str(folder / "workspace.yaml")]
        code = ["-f", str(folder / "shop.py"), "-h", "127.0.0.1", "-p", str(code_port)]
        self._start("code", "-m", "dagster", "code-server", "start", *code)
        self._start("web", "-m", "dagster_webserver", *workspace, "-h", "127.0.0.1", "-p", str(port))
        self.wait_for(lambda: "here" in str(self.asks(LOADED)), "the code did not load")
        self._start("daemon", "-c", DAEMON, "run", *workspace)

    def write(self, version: str) -> None:
        (self._folder / "shop.py").write_text(CODE.replace("VERSION", version))

    def _start(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *command],
                cwd=self._folder,
                env={**os.environ, "STORE": self.store},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def asks(self, query: str, **variables: Any) -> Any:
        """The answer of the page's API; `None` while there is no page."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        asked = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)
        except OSError:
            return None

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """All three live until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            ended = [name for name, each in self._processes.items() if each.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = {each: (self._folder / f"{each}.log").read_text()[-3000:] for each in self._processes}
                raise AssertionError(f"{what}; ended: {ended}\n" + "\n".join(logs.values()))
            time.sleep(POLL_SECONDS)

    def end(self) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


@pytest.fixture
def in_page(browser_path: str) -> Iterator[InPage]:
    """Its driver wants a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        opened = contextlib.ExitStack()
        tab = new_page(browser_path, {"width": 1400, "height": 1000})
        page = thread.submit(opened.enter_context, tab).result()
        yield lambda act, *arguments: thread.submit(act, page, *arguments).result()
        thread.submit(opened.close).result()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    (tmp_path / "dagster.yaml").write_text(SETTINGS)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    with dg.DagsterInstance.get():  # its databases exist before three processes would make them
        pass
    made = Site(tmp_path)
    try:
        yield made
    finally:
        made.end()


def by_api(site: Site, job: str) -> None:
    params = {"assetSelection": [{"path": [job, "rows"]}], "partitionNames": KEYS[job], "fromFailure": False}
    answer = site.asks(LAUNCH, params=params)["data"]["launchPartitionBackfill"]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer


def by_button(page: Page, site: Site, job: str) -> None:
    """As a person does: Materialize, all that is missing, Launch."""
    page.goto(f"{site.url}/assets/{job}/rows?view=partitions")
    page.get_by_role("button", name=re.compile("Materialize")).first.click(timeout=PAGE_MILLISECONDS)
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="All", exact=True).click()
    dialog.get_by_role("button", name=re.compile("Launch", re.IGNORECASE)).last.click()
    dialog.wait_for(state="hidden")


def made_of(instance: dg.DagsterInstance, job: str) -> list[str]:
    """The partitions of the asset's materializations, in order."""
    found = instance.fetch_materializations(dg.AssetKey([job, "rows"]), limit=1000, ascending=True)
    return [str(record.partition_key) for record in found.records]


@pytest.mark.parametrize("by", ["api", "button"])
def test_a_backfill_ends_green_and_exact(by: str, site: Site, in_page: InPage) -> None:
    """Each day in order, each place once; what raced was refused, and is green without a person's help."""
    with dg.DagsterInstance.get() as instance:
        for job in KEYS:
            in_page(by_button, site, job) if by == "button" else by_api(site, job)
        site.wait_for(
            lambda: sum(len(made_of(instance, job)) for job in KEYS) >= RELOAD_AFTER, "nothing was made"
        )
        site.write("second")
        assert "WorkspaceLocationEntry" in str(site.asks(RELOAD))

        def have_ended() -> bool:
            backfills = [each.status.value for each in instance.get_backfills()]
            ended = [each for each in backfills if each.startswith(("COMPLETED", "FAILED", "CANCELED"))]
            return len(ended) == len(KEYS) and all(run.is_finished for run in instance.get_runs())

        site.wait_for(have_ended, "the backfills did not end")
        for job, keys in KEYS.items():
            made = made_of(instance, job)
            assert sorted(made) == keys, job
            checkpoints = CheckpointCoordinator(job, open_store(site.store)).list()
            assert [each.idempotency_key for each in checkpoints] == made, job
            rows = read_state(site.store, job, "rows").to_arrow().to_pylist()
            assert sorted(row["key"] for row in rows) == keys, job
            assert {row["code"] for row in rows} == {"first", "second"}, job
        runs = [run for run in instance.get_runs() if "dstl/mark" not in run.tags]
        refused = [run for run in runs if not run.is_success]
        assert {run.tags["dagster/partition"][:5] for run in refused} == {"place"}, "days have their order"
        assert {each.status.value for each in instance.get_backfills()} == {"COMPLETED_SUCCESS"}
        print(f"{len(runs)} runs, {len(refused)} of them refused")
