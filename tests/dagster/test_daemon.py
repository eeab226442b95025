"""A real daemon: a backfill runs days in order; a killed daemon reports each checkpoint once, and asks once
for a user's job for each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import dagster as dg
import pytest

from dstl_dagster import JobAssets
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.settings.checkpoint import CheckpointOptions
from dstl_dagster.storage import open_store
from tests.dagster.bad_day import Page

DAYS_FILE = Path(__file__).with_name("days.py")
ROOT = Path(__file__).parents[2]
SETTINGS = """\
telemetry:
  enabled: false
run_coordinator:
  module: dagster._core.run_coordinator
  class: DefaultRunCoordinator
"""
# The daemon looks at backfills every 30 seconds and at sensors every 5; the tests would wait minutes for it.
DAEMON = """
import dagster._daemon.controller
import dagster._daemon.sensor
dagster._daemon.controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 1
dagster._daemon.sensor.MIN_INTERVAL_LOOP_TIME = 1
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
# The user's job is another test's: here it is noted, and no process is started for it.
NOTED = """\
run_launcher:
  module: tests.dagster.noted_launches
  class: NotedLaunches
  config: {{folder: {folder}, hold_at: 3}}
"""
PATIENCE_SECONDS = 300.0
POLL_SECONDS, SHORT_SECONDS = 0.25, 0.05
"""Between two looks into Dagster's databases, and where one must not miss what lasts for a second."""
CHECKPOINTS = 60
KEEP_ALL = CheckpointOptions(num_retained=1_000)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dagster's home, and the store of the days beside it.

    Its databases exist before any process starts: two processes that make them at once fail with "table
    alembic_version already exists".
    """
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(SETTINGS)
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    with dg.DagsterInstance.get():
        pass
    monkeypatch.setenv("DSTL_DAYS_URI", (tmp_path / "store").as_uri())
    return folder


@pytest.fixture
def daemon(home: Path) -> Iterator[Daemon]:
    """A daemon with its code server, in a session of their own that ends with the test."""
    process = Daemon(home)
    process.start()
    yield process
    process.end()


class Daemon:
    """A daemon that can be killed and started again."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._home / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DAEMON, "run", "-f", str(DAYS_FILE)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = POLL_SECONDS) -> None:
        """It lives until the condition holds."""
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            code, late = self._process.poll(), time.monotonic() > deadline
            if late or code is not None:
                ended = "" if code is None else f", and the daemon ended with {code}"
                log = (self._home / "daemon.log").read_text(errors="replace")[-8000:]
                raise AssertionError(f"{what}{ended}; its log:\n{log}")
            time.sleep(seconds)

    def kill(self) -> None:
        """SIGKILL to it and to every process it started."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)

    def end(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self.kill()


def _launch(days: list[str], instance: dg.DagsterInstance) -> str:
    params = {
        "assetSelection": [{"path": ["days", "state"]}],
        "partitionNames": days,
        "fromFailure": False,
    }
    with Page.of(instance) as page:
        answer = page.answer(LAUNCH, {"params": params})["launchPartitionBackfill"]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    return str(answer["backfillId"])


@pytest.mark.dagster
@pytest.mark.timeout(600)
def test_a_backfill_runs_days_in_order(home: Path, daemon: Daemon) -> None:
    """Requested at once and not in order, each day becomes a checkpoint on top of the one before.

    Thirty of them, beside places that race, while the code is reloaded: `tests/ui/test_backfill.py`.
    """
    days = ["2024-01-01", "2024-01-02"]
    with dg.DagsterInstance.get() as instance:
        backfill = _launch(days[::-1], instance)

        def ended() -> bool:
            found = instance.get_backfill(backfill)
            return found is not None and found.status.value.startswith(("COMPLETED", "FAILED"))

        daemon.wait_for(ended, "the backfill did not end")
        runs = instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))
        assert [run.status for run in runs] == [dg.DagsterRunStatus.SUCCESS] * len(days)
        assert _reported(instance) == [f"chk-{number:08}" for number in (1, 2)]
    coordinator = CheckpointCoordinator("days", open_store(os.environ["DSTL_DAYS_URI"]))
    assert [checkpoint.idempotency_key for checkpoint in coordinator.list()] == days
    # No run had to be refused: Dagster kept the order, not our check.
    kinds = [record.kind for record in coordinator.timeline.records()]
    assert kinds == ["opened", "completed", "committed"] * len(days)


@pytest.mark.dagster
@pytest.mark.kill
@pytest.mark.timeout(600)
def test_a_daemon_killed_twice_reports_and_asks_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, days_code: ModuleType
) -> None:
    """Killed while it writes what a tick reported, and between a run that a sensor asked for and the sensor's
    cursor; started again each time: each checkpoint is reported and each day's run asked for once, in order.
    """
    with (home / "dagster.yaml").open("a") as settings:
        settings.write(NOTED.format(folder=home))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("DSTL_DAYS_FOLLOW", "1")
    days = {6 * number: f"2024-01-{number:02}" for number in range(1, CHECKPOINTS // 6 + 1)}
    for number in range(1, CHECKPOINTS + 1):
        place = days.get(number, str(number))
        days_code.make_outside(os.environ["DSTL_DAYS_URI"], place, files=0, options=KEEP_ALL)
    daemon, held = Daemon(home), home / "held"

    def live_until(happened: Callable[[], bool], what: str, seconds: float = POLL_SECONDS) -> None:
        """One life of the daemon, which is killed. It ends earlier if a launch is held."""
        daemon.start()
        try:
            daemon.wait_for(lambda: held.exists() or happened(), what, seconds)
        finally:
            daemon.kill()
        if held.exists():
            held.rename(home / "was_held")

    with dg.DagsterInstance.get() as instance:
        a_quarter = CHECKPOINTS // 4
        live_until(lambda: _last_reported(instance) >= a_quarter, "too few were reported", SHORT_SECONDS)
        assert len(_reported(instance)) < CHECKPOINTS, "killed too late to show anything"

        def is_done() -> bool:
            return len(_shown(instance)) == CHECKPOINTS and _has_nothing_to_ask(instance)

        while not (home / "was_held").exists() or not is_done():
            live_until(is_done, "not all were reported and asked for")
        expected = [f"chk-{number:08}" for number in range(1, CHECKPOINTS + 1)]
        assert _reported(instance) == expected
        assert _shown(instance) == expected
        assert _asked(home) == [f"{number} {day}" for number, day in days.items()]
        assert instance.get_runs_count(dg.RunsFilter(job_name="mail")) == len(days)


def _has_nothing_to_ask(instance: dg.DagsterInstance) -> bool:
    """The last tick of the sensor that asks for `mail` was skipped, with its cursor at the end."""
    states = [each for each in instance.all_instigator_state() if each.name == "mail_after_days"]
    ticks = [
        tick
        for each in states
        for tick in instance.get_ticks(each.instigator_origin_id, each.selector_id, limit=1)
    ]
    return bool(ticks) and "nothing new" in str(ticks[0].skip_reason)


def _asked(home: Path) -> list[str]:
    """The checkpoint and the day of each run that was launched, in order."""
    launched = home / "launched"
    return launched.read_text().splitlines() if launched.exists() else []


def _reported(instance: dg.DagsterInstance) -> list[str | None]:
    """The partitions of all materialisations of the checkpoints, in the order in which they were written."""
    found = instance.fetch_materializations(
        dg.AssetKey(["days", "checkpoints"]), limit=10 * CHECKPOINTS, ascending=True
    )
    return [record.partition_key for record in found.records]


def _last_reported(instance: dg.DagsterInstance) -> int:
    """The checkpoint of the newest event; 0 if there is none."""
    newest = instance.fetch_materializations(dg.AssetKey(["days", "checkpoints"]), limit=1).records
    return JobAssets.checkpoint_of(str(newest[0].partition_key)) if newest else 0


def _shown(instance: dg.DagsterInstance) -> list[str]:
    return sorted(instance.get_dynamic_partitions("days_checkpoints"))
