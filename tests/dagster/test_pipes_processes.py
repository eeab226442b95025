"""A driver elsewhere killed, and Dagster killed while it waits for one: real processes, real signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.storage import open_store
from tests.dagster import pipes_driver as program

pytestmark = [
    pytest.mark.dagster,
    pytest.mark.kill,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader:Warning"),  # of Dagster's own
]

PATIENCE_SECONDS = 120.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(program.FOLDER, str(tmp_path))
    monkeypatch.setenv(program.STORE, (tmp_path / "store").as_uri())
    return tmp_path


@pytest.fixture
def coordinator(folder: Path) -> CheckpointCoordinator:
    return CheckpointCoordinator(program.JOB, open_store((folder / "store").as_uri()))


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def assert_done_once(coordinator: CheckpointCoordinator, kinds: list[str]) -> None:
    """One checkpoint, its file, and after a clean-up nothing of the attempt that was lost."""
    assert [record.kind for record in coordinator.timeline.records()] == kinds
    assert coordinator.store.get(program.NAME) == program.CONTENT
    coordinator.clean_up()
    (done,) = coordinator.list()
    bucket = coordinator.store.in_bucket(coordinator.store.bucket_name)
    assert list(bucket.list(".inprogress/")) == []
    names = [stat.name for stat in coordinator.store.list(f"dstl/{program.JOB}/attempts/")]
    assert {name.split("/")[3] for name in names} <= {str(done.entry.completed.attempt)}
    assert coordinator.verify().ok


def test_a_driver_killed_before_it_hands_over_is_launched_again(
    folder: Path, coordinator: CheckpointCoordinator
) -> None:
    """With its file durable. The op fails, aborts the attempt, and its retry launches another driver."""
    hold, held = folder / "hold", folder / "held"
    hold.touch()

    def kill() -> None:
        until(held.exists)
        hold.unlink()
        os.kill(int(held.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert program.run()
    killer.join(PATIENCE_SECONDS)
    assert_done_once(coordinator, ["opened", "aborted", "opened", "completed", "committed"])


@contextlib.contextmanager
def dagster_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, program.__file__, str(folder), "run"], stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)


def test_dagster_killed_while_it_waits_leaves_a_driver_that_changes_nothing(
    folder: Path, coordinator: CheckpointCoordinator
) -> None:
    """The driver goes on, and hands over a batch that is dead by then: the run's next try has fenced it."""
    hold, held = folder / "hold", folder / "held"
    hold.touch()
    with dagster_process(folder) as dagster:
        until(lambda: held.exists() or dagster.poll() is not None)
        assert held.exists(), (folder / "log").read_text()[-4000:]
        dagster.send_signal(signal.SIGKILL)
        dagster.wait(PATIENCE_SECONDS)
    orphan = coordinator.timeline.tail().open_attempt
    assert orphan is not None
    held.unlink()
    with dg.DagsterInstance.get() as instance:
        (run,) = instance.get_runs(dg.RunsFilter(tags={program.TOKEN: "1"}))
        instance.report_run_failed(run, "its worker was killed")
    # The next driver stops at the same place, after the attempt before it is fenced; then both go on.
    release = threading.Thread(target=lambda: (until(held.exists), hold.unlink()), daemon=True)
    release.start()
    assert program.run(run.run_id)
    until((folder / f"over-{orphan.attempt}").exists)
    assert_done_once(coordinator, ["opened", "fenced", "opened", "completed", "committed"])
