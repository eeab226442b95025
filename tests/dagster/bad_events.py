"""What may happen to the job `days` on a bad day, on a real instance and a store of its own.

Owns the events. Does not own what is compared after each of them (`bad_day`), or their order (the tests).
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner

from dstl_dagster import build_checkpoint_checks
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.checkpoints import checkpoints_group
from dstl_dagster.orchestration import steps
from dstl_dagster.storage import ABSENT
from tests.dagster.bad_day import CHECK, defs
from tests.dagster.conftest import Daemon, Days
from tests.dagster.later_clock import LaterClock

HOSTS = 3
"""That can die in one story."""


class Host:
    """A process that runs one day and dies of it. Forked at once: later there are threads with locks."""

    def __init__(self, days: Days) -> None:
        context = multiprocessing.get_context("fork")
        self._orders, orders = context.Pipe()
        self._process = context.Process(target=_live, args=(days, orders), daemon=True)
        self._process.start()

    def die(self, day: str, where: str) -> None:
        self._orders.send((day, where))
        self._process.join(120)
        assert self._process.exitcode == 9


def _live(days: Days, orders: Connection) -> None:
    days.instance = dg.DagsterInstance.from_ref(days.instance.get_ref())
    day, where = orders.recv()
    setattr(steps, where, lambda *_, **__: os._exit(9))
    days.run(day)


@dataclass
class BadDay:
    """One job on one instance, and its sensor. Each method is something that happens."""

    days: Days
    clock: LaterClock = field(default_factory=LaterClock)

    def __post_init__(self) -> None:
        days = self.days
        self._hosts = deque(Host(days) for _ in range(HOSTS))
        self.sensor = Daemon(days, definitions=defs, options={"clock": self.clock})
        checks = build_checkpoint_checks(days.code.JOB, changelog=days.resource())
        key = dg.AssetCheckKey(days.code.JOB.checkpoints_key, CHECK)
        looks = [dg.define_asset_job("look", selection=dg.AssetSelection.checks(key))]
        self._look = dg.Definitions(asset_checks=[checks], jobs=looks).resolve_job_def("look")

    @classmethod
    def of(cls, code: ModuleType, instance: dg.DagsterInstance, uri: str) -> BadDay:
        return cls(Days(code, instance, uri, code._nothing))

    def look(self) -> None:
        """The check that nobody evaluates beside a checkpoint, as the checks' job runs it."""
        assert self._look.execute_in_process(instance=self.days.instance).success

    def follow(self) -> None:
        """Ticks of the sensor, until nothing is left to tell."""
        while "more in the next tick" in (self.sensor.tick() or ""):
            pass

    def day(self, number: int) -> dg.ExecuteInProcessResult:
        return self.days.run(f"2024-01-{number:02}")

    def day_on_a_host_that_dies(self, number: int, where: str) -> str:
        """Its process ends without a word; returns the run, which stays as it was."""
        before = {run.run_id for run in self.days.instance.get_runs()}
        self._hosts.popleft().die(f"2024-01-{number:02}", where)
        (run,) = (run for run in self.days.instance.get_runs() if run.run_id not in before)
        assert run.status is dg.DagsterRunStatus.STARTED
        return run.run_id

    def instance_says(self, word: str, run_id: str) -> None:
        """As `run_monitoring` (failed) or a person who forces the end of a run (canceled) has it say."""
        instance = self.days.instance
        run = instance.get_run_by_id(run_id)
        assert run is not None
        (instance.report_run_failed if word == "failed" else instance.report_run_canceled)(run)

    def command(self, *arguments: str) -> None:
        where = {"DSTL_STORE": self.days.uri, "DSTL_JOB": "days"}
        result = CliRunner().invoke(checkpoints_group, list(arguments), env=where)
        assert result.exit_code == 0, result.output


@contextmanager
def foreign_object_after_step_5(days: Days, name: str) -> Iterator[None]:
    """Somebody else's object gets a file's final name, too late for step 4 to see it."""
    real, store = CheckpointCoordinator.confirm, days.store

    def and_then(coordinator: CheckpointCoordinator, attempt: Any) -> Any:
        checkpoint = real(coordinator, attempt)
        store.put(name, b"foreign", precondition=ABSENT)
        return checkpoint

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "confirm", and_then)
        yield
