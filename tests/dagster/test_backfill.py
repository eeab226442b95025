"""A backfill through a real daemon: days in order, one run each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.storage import open_store

DAYS_FILE = Path(__file__).with_name("days.py")
SETTINGS = """\
telemetry:
  enabled: false
run_coordinator:
  module: dagster._core.run_coordinator
  class: DefaultRunCoordinator
"""
# The daemon looks at backfills every 30 seconds; a test of three days would wait a minute and a half for it.
DAEMON = """
import dagster._daemon.controller
dagster._daemon.controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 1
from dagster._daemon.cli import main
main()
"""
LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
PATIENCE_SECONDS = 150.0
POLL_SECONDS = 0.2


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dagster's home, and the store of the days beside it."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(SETTINGS)
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    monkeypatch.setenv("DSTL_DAYS_URI", (tmp_path / "store").as_uri())
    return folder


@pytest.fixture
def daemon(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon with its code server, in a session of their own that ends with the test."""
    with (home / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, "run", "-f", str(DAYS_FILE)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yield process
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):  # killed below, with all that it started
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


def _wait_for(condition: Callable[[], bool], what: str, home: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        said = (home / "daemon.log").read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, f"{what}; the daemon said:\n{said}"
        time.sleep(POLL_SECONDS)


def _launch(days: list[str], answered: Path) -> str:
    params = {
        "params": {
            "assetSelection": [{"path": ["days", "state"]}],
            "partitionNames": days,
            "fromFailure": False,
        }
    }
    asked = ["-f", str(DAYS_FILE), "-t", LAUNCH, "-v", json.dumps(params), "-o", str(answered)]
    done = subprocess.run(
        [sys.executable, "-c", "from dagster_graphql.cli import main; main()", *asked],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(answered.read_text())["data"]["launchPartitionBackfill"]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    return str(answer["backfillId"])


@pytest.mark.dagster
def test_a_backfill_runs_the_days_in_order(home: Path, daemon: subprocess.Popen[bytes]) -> None:
    """Asked for in any order, the days become checkpoints one behind the other, each in a run of its own."""
    backfill = _launch(["2024-01-03", "2024-01-01", "2024-01-02"], home / "answer.json")
    with dg.DagsterInstance.get() as instance:

        def ended() -> bool:
            assert daemon.poll() is None, "the daemon ended"
            found = instance.get_backfill(backfill)
            return found is not None and found.status.value.startswith(("COMPLETED", "FAILED"))

        _wait_for(ended, "the backfill did not end", home)
        runs = instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))
        assert [run.status for run in runs] == [dg.DagsterRunStatus.SUCCESS] * 3
        reported = instance.fetch_materializations(
            dg.AssetKey(["days", "checkpoints"]), limit=10, ascending=True
        )
    coordinator = CheckpointCoordinator("days", open_store(os.environ["DSTL_DAYS_URI"]))
    positions = [checkpoint.positions["calendar"] for checkpoint in coordinator.list()]
    assert positions == ["2024-01-01", "2024-01-02", "2024-01-03"]
    assert [record.partition_key for record in reported.records] == [
        "chk-00000001",
        "chk-00000002",
        "chk-00000003",
    ]
    # No run had to be refused: order is Dagster's doing here, not the refusal's.
    kinds = [record.kind for record in coordinator.timeline.records()]
    assert kinds == ["opened", "completed", "committed"] * 3
