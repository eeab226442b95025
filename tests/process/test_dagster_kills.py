"""A run's worker killed with SIGKILL in each step and in a fan-out.

Executing the run again from its failure makes everything whole: Dagster alone would call a fan-in over the
parts that it happens to remember a success. Steps with a process of their own are killed in `flights_kills`,
and in README's demo.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import dagster as dg
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.format.names import COMPONENTS_PREFIX
from dstl_dagster.storage import LocalObjectStore
from tests.process import killed_days

pytestmark = [pytest.mark.kill, pytest.mark.dagster, pytest.mark.timeout(600)]

FORKED = multiprocessing.get_context("forkserver")
"""Workers are forked from a process that has Dagster imported, which takes seconds."""
FORKED.set_forkserver_preload([killed_days.__name__])
FILES = [f"out/run-1/{number}.txt" for number in range(4)]
CONTENT = b"first line\nsecond line\n"
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.02
SETTINGS = "telemetry:\n  enabled: false\n"
Request = tuple[str, str, int]


@dataclass
class Job:
    """Runs of one job in a folder; each run resumes from the failure of the previous one.

    Attributes:
        run: the last run.
    """

    name: str
    folder: Path
    instance: dg.DagsterInstance
    run: dg.DagsterRun | None = None

    @property
    def store(self) -> LocalObjectStore:
        return LocalObjectStore(self.folder / "store")

    @property
    def coordinator(self) -> CheckpointCoordinator:
        return CheckpointCoordinator("days", self.store, owner="the test")

    def kill_at(self, request: Request) -> str | None:
        """Run until a step is about to send this request, then kill its process; returns the step's name.

        `None`: the run ended before.
        """
        stopped = self.folder / f"stopped-{uuid.uuid4()}"
        method, name, nth = request
        asked = json.dumps({"method": method, "name": name, "nth": nth})
        with self._worker(DSTL_STOP_AT=asked, DSTL_STOPPED=str(stopped)) as (worker, token):
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not stopped.exists() and worker.is_alive():
                assert time.monotonic() < deadline, f"no step came to {request}"
                time.sleep(POLL_SECONDS)
        run = self._find(token)  # by now its process is killed
        if not stopped.exists():
            self.run = run
            return None
        assert not run.is_finished, "no process was left to report its end"
        started = [
            event
            for event in self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_START)
            if event.dagster_event is not None
        ]
        # As Dagster's run monitoring does.
        self.instance.report_run_failed(run, "its worker was killed")
        self.run = self.instance.get_run_by_id(run.run_id)
        return str(started[-1].dagster_event.step_key)  # type: ignore[union-attr]

    def run_to_end(self) -> bool:
        """Run from the last failure to the end; whether Dagster calls it a success."""
        with self._worker() as (worker, token):
            worker.join(PATIENCE_SECONDS)
        self.run = self._find(token)
        return self.run.is_success

    @contextlib.contextmanager
    def _worker(self, **environment: str) -> Iterator[tuple[BaseProcess, str]]:
        token = str(uuid.uuid4())
        failed = None if self.run is None else self.run.run_id
        log = str(self.folder / "runs.log")
        how = (self.name, token, failed, {**os.environ, **environment}, log)
        worker = FORKED.Process(target=killed_days.run, args=how)
        worker.start()
        try:
            yield worker, token
        finally:
            worker.kill()
            worker.join(PATIENCE_SECONDS)

    def _find(self, token: str) -> dg.DagsterRun:
        (run,) = self.instance.get_runs(dg.RunsFilter(tags={"dstl/kills": token}))
        return run

    def published(self) -> list[str]:
        """The files that are there, each of which must be whole."""
        names = [stat.name for stat in self.store.list("out/")]
        assert all(self.store.get(name) == CONTENT for name in names)
        return names

    def kinds(self) -> list[str]:
        return [record.kind for record in self.coordinator.timeline.records()]

    def reported(self, asset: str) -> int:
        found = self.instance.fetch_materializations(dg.AssetKey(["days", asset]), limit=100)
        return len(found.records)

    def logged(self) -> str:
        assert self.run is not None
        return "\n".join(entry.user_message for entry in self.instance.all_logs(self.run.run_id))


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    # A short name: sockets of the step processes lie below it, whose paths the system limits.
    path = tmp_path_factory.mktemp("k")
    (path / "home").mkdir()
    (path / "home" / "dagster.yaml").write_text(SETTINGS)
    monkeypatch.setenv("DAGSTER_HOME", str(path / "home"))
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setenv("DSTL_DAYS_URI", (path / "store").as_uri())
    return path


@pytest.fixture
def instance(folder: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.get() as found:
        yield found


REPORT: Request = ("put", "/report", 1)
MANIFEST: Request = ("put", "manifests/", 1)
CONFIRM: Request = ("put", "timeline/", 1)
SECOND_FILE: Request = ("compose", "out/", 2)
LISTING: Request = ("list", "attempts/", 1)


def test_a_run_killed_in_each_step_makes_one_checkpoint(folder: Path, instance: dg.DagsterInstance) -> None:
    """Five kills of one piece of work, each followed by a re-execution from the failure."""
    job = Job("five_steps", folder, instance)

    assert job.kill_at(REPORT) == "update"
    assert job.kinds() == ["opened"]
    assert job.published() == []

    assert job.kill_at(MANIFEST) == "persist"
    assert job.kinds() == ["opened", "fenced", "opened"], "the dead try was fenced by its own owner"

    assert job.kill_at(CONFIRM) == "confirm"
    assert job.kinds() == ["opened", "fenced", "opened"]
    assert job.published() == [], "nothing is visible before the commit point"

    assert job.kill_at(SECOND_FILE) == "compose_commit"
    assert job.kinds()[-1] == "completed"
    assert job.run is not None
    assert job.run.status is dg.DagsterRunStatus.FAILURE
    assert len(job.published()) < len(FILES), "killed among the files"

    assert job.kill_at(LISTING) == "cleanup"
    assert job.published() == FILES
    assert job.reported("files") == 1

    assert job.run_to_end()
    assert job.kinds() == ["opened", "fenced", "opened", "completed", "committed"]
    _whole(job)


def test_a_fan_in_that_saw_a_part_commits_everything(folder: Path, instance: dg.DagsterInstance) -> None:
    """Killed in its third part, the fan-out is cut short by Dagster; all files are there all the same."""
    job = Job("with_fan_out", folder, instance)
    assert job.kill_at(("stat", "part-part_2", 1)) == "look_at_part[part_2]"
    assert job.kinds()[-1] == "completed"
    assert job.published() == []
    assert job.run_to_end()
    assert job.published() == FILES
    _whole(job)
    assert "fan-in saw" in job.logged(), "whatever it saw"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_kills_at_any_request_lose_nothing(seed: int, folder: Path, instance: dg.DagsterInstance) -> None:
    """Up to six kills, each before the nth request of the run."""
    rng = random.Random(seed)
    job = Job("five_steps", folder, instance)
    for _ in range(6):
        step = job.kill_at(("", "", rng.randint(1, 60)))
        assert job.published() == [] or "completed" in job.kinds()
        if step is None:
            break
    assert job.run is not None
    assert job.run.is_success or job.run_to_end()
    _whole(job)


def _whole(job: Job) -> None:
    """One checkpoint, all its files, each reported once, and no garbage."""
    (checkpoint,) = job.coordinator.list()
    assert job.published() == FILES
    assert checkpoint.entry.committed is not None
    assert len(checkpoint.entry.committed.published) == len(FILES)
    assert job.reported("checkpoints") == 1
    assert job.reported("files") == 1
    assert list(job.instance.get_dynamic_partitions("days_checkpoints")) == ["chk-00000001"]
    job.coordinator.clean_up()
    assert list(job.store.list(COMPONENTS_PREFIX)) == []
