"""A bad day: after each thing that goes wrong, all that the page shows agrees with `dstl checkpoints`."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner

from dstl_dagster import build_checkpoint_checks, build_restore_job, restore_run_config
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.checkpoints import checkpoints_group
from dstl_dagster.orchestration import steps
from dstl_dagster.storage import ABSENT
from tests.dagster.bad_day import Page, command_says, defs, differences
from tests.dagster.conftest import Daemon, Days
from tests.dagster.later_clock import LaterClock

pytestmark = pytest.mark.dagster


class BadDay:
    """One job on one instance, its sensor, and its page. Each method is something that happens."""

    def __init__(self, days: Days, page: Page) -> None:
        self.days = days
        self.page = page
        self.clock = LaterClock()
        self.sensor = Daemon(days, definitions=defs, options={"clock": self.clock})
        checks = build_checkpoint_checks(days.code.JOB, changelog=days.resource())
        looks = [dg.define_asset_job("look", selection=dg.AssetSelection.checks(checks))]
        self.look = dg.Definitions(asset_checks=[checks], jobs=looks).resolve_job_def("look")

    def agrees(self, after: str) -> None:
        """Run the checks, let the sensor look, and compare."""
        while "more in the next tick" in (self.sensor.tick() or ""):
            pass
        self.agrees_without_the_sensor(after)

    def agrees_without_the_sensor(self, after: str) -> None:
        assert self.look.execute_in_process(instance=self.days.instance).success
        page, command = self.page.says(), command_says(self.days.uri)
        assert not differences(page, command), f"after {after}, (the page, the command)"

    def day(self, number: int) -> dg.ExecuteInProcessResult:
        return self.days.run(f"2024-01-{number:02}")

    def day_on_a_host_that_dies(self, number: int, where: str) -> str:
        """Its process ends without a word; returns the run, which stays as it was."""
        before = {run.run_id for run in self.days.instance.get_runs()}
        process = multiprocessing.get_context("fork").Process(
            target=_die_at, args=(self.days, self.days.instance.get_ref(), f"2024-01-{number:02}", where)
        )
        process.start()
        process.join(120)
        assert process.exitcode == 9
        (run,) = (run for run in self.days.instance.get_runs() if run.run_id not in before)
        assert run.status is dg.DagsterRunStatus.STARTED
        return run.run_id

    def instance_says(self, word: str, run_id: str) -> None:
        """As `run_monitoring` (failed) or a person who forces the end of a run (canceled) has it say."""
        instance = self.days.instance
        run = instance.get_run_by_id(run_id)
        assert run is not None
        (instance.report_run_failed if word == "failed" else instance.report_run_canceled)(run)

    def roll_back(self, last: int, to: int, **tags: str) -> dg.ExecuteInProcessResult:
        return build_restore_job(self.days.code.JOB).execute_in_process(
            instance=self.days.instance,
            resources={"changelog": self.days.resource()},
            partition_key=f"chk-{to:08}",
            run_config=restore_run_config(last, to),
            tags=tags,
            raise_on_error=False,
        )

    def command(self, *arguments: str) -> None:
        where = {"DSTL_STORE": self.days.uri, "DSTL_JOB": "days"}
        result = CliRunner().invoke(checkpoints_group, list(arguments), env=where)
        assert result.exit_code == 0, result.output


def _die_at(days: Days, ref: Any, day: str, where: str) -> None:
    def die(*_: Any, **__: Any) -> None:
        os._exit(9)

    setattr(steps, where, die)
    days.instance = dg.DagsterInstance.from_ref(ref)
    days.run(day)


@pytest.fixture
def bad(tmp_path: Path, days_code: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadDay]:
    home, uri = tmp_path / "home", (tmp_path / "store").as_uri()
    home.mkdir()
    monkeypatch.setenv("DSTL_DAYS_URI", uri)
    with dg.DagsterInstance.local_temp(str(home)) as instance, Page.of(instance) as page:
        yield BadDay(Days(days_code, instance, uri, days_code._nothing), page)


@pytest.mark.timeout(600)
def test_the_page_agrees_with_the_command_all_day_long(bad: BadDay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, cancelled, blocked, resolved, rolled back twice, on a dead host, with its cursor cleared."""
    days = bad.days
    assert bad.day(1).success
    bad.agrees_without_the_sensor("a good day")

    bad.instance_says("failed", bad.day_on_a_host_that_dies(2, "report_checkpoint"))
    assert bad.day(3).success
    bad.agrees_without_the_sensor("a kill after step 5, and the next day")
    bad.agrees("the same, with the sensor")

    bad.instance_says("canceled", bad.day_on_a_host_that_dies(4, "report_checkpoint"))
    bad.agrees("a cancel after step 5")
    days.coordinator().compose_commit()
    bad.agrees("its files, published by hand")

    with monkeypatch.context() as patched:
        _block(patched, days, "out/2024-01-05/0.txt")
        assert not bad.day(5).success
    bad.agrees("a blocked file")
    (blocked,) = (file.name for file in days.coordinator().get(5).blocked)
    bad.command("resolve", "5", blocked, "--replace")
    bad.agrees("the word of a person on it")

    assert not bad.roll_back(5, 3, **{"dagster/backfill": "missing"}).success
    bad.agrees("a backfill of the restore job, which is refused")
    assert bad.roll_back(5, 3).success
    bad.agrees_without_the_sensor("a restore")
    bad.agrees("the same, with the sensor")
    assert bad.day(4).success
    bad.agrees("a day that ran again")

    bad.day_on_a_host_that_dies(5, "report_files")
    bad.sensor.tick()
    assert "waiting for" in (bad.sensor.tick() or "")
    bad.clock.later = timedelta(hours=2)
    bad.agrees("a host that died, which nobody told Dagster")

    bad.command("restore", "6", "--yes")
    bad.agrees("a restore by the command")

    told = len(days.events("checkpoints")), len(days.events("files")), len(days.events("state"))
    for cursor in ('{"slot": 0}', None):
        bad.sensor.cursor = cursor
        bad.agrees(f"a cursor set to {cursor}")
    assert told == (len(days.events("checkpoints")), len(days.events("files")), len(days.events("state")))


def _block(patched: pytest.MonkeyPatch, days: Days, name: str) -> None:
    real = CheckpointCoordinator.confirm

    def and_then_somebody_writes(coordinator: CheckpointCoordinator, attempt: Any) -> Any:
        checkpoint = real(coordinator, attempt)
        days.store.put(name, b"foreign", precondition=ABSENT)
        return checkpoint

    patched.setattr(CheckpointCoordinator, "confirm", and_then_somebody_writes)
