"""One process of the simulated job, and the job's settings.

Owns what a process is: a view of the storage with faults of its own, and ids derived from its name. Does not
own what it does (`actions`, `bystanders`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.settings import CheckpointOptions, GSFileSystemOptions, JobOptions
from dstl_dagster.testing.fault_schedules import Fault, FaultSchedule, NoFaults, Request
from dstl_dagster.testing.fault_store import FaultStore
from tests.simulated.oracle import JOB
from tests.simulated.world import World, ids_of

OWNER = "run"
DELAY_SECONDS = 7_200.0
"""How long a delayed request takes: longer than any grace time of the simulation."""

Notes = Mapping[str, Attempt | None]


@dataclass(frozen=True)
class Setting:
    """The settings of a history's job."""

    num_retained: int = 2
    snapshot_interval: int = 8
    reader_grace: timedelta = timedelta(0)
    temporary_bucket: str | None = None
    entropy: bool = False

    @cached_property
    def options(self) -> JobOptions:
        """Of all processes of the job: they are parsed and checked once."""
        control = CheckpointOptions(
            num_retained=self.num_retained,
            snapshot_interval=self.snapshot_interval,
            reader_grace=self.reader_grace,
            commit_threads=1,
        )
        return JobOptions.of(control, self.file_options)

    @cached_property
    def file_options(self) -> GSFileSystemOptions:
        return GSFileSystemOptions(
            writer_temporary_bucket_name=self.temporary_bucket, filesink_entropy_enabled=self.entropy
        )


Trace = Callable[[str, Request, "Fault | None"], None]
"""Called for each request with the process, the request, and its fault."""


class _Traced:
    """A schedule that traces what it decides."""

    def __init__(self, name: str, schedule: FaultSchedule, trace: Trace) -> None:
        self._name = name
        self._schedule = schedule
        self._trace = trace

    def decide(self, request: Request) -> Fault | None:
        fault = self._schedule.decide(request)
        self._trace(self._name, request, fault)
        return fault

    def deliver_late_effect(self) -> bool:
        return self._schedule.deliver_late_effect()


class Process:
    """One process: its requests through `store` may fail, and after a crash every one does.

    Args:
        name: determines its ids; unique within a run.
        before_request: where actors take turns.
        trace: called for each request.
    """

    def __init__(
        self,
        world: World,
        setting: Setting,
        name: str,
        schedule: FaultSchedule | None = None,
        *,
        before_request: Callable[[], None] | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.world = world
        self.setting = setting
        self.name = name
        self.before_request = before_request
        self.trace = trace
        if trace is not None:
            schedule = _Traced(name, schedule or NoFaults(), trace)
        self.store = FaultStore(
            world.store,
            schedule,
            clock=world.clock,
            delay_seconds=DELAY_SECONDS,
            before_request=before_request,
        )
        self.new_id = ids_of(name)

    def coordinator(self, owner: str = OWNER) -> CheckpointCoordinator:
        """A coordinator of this process that has not read anything yet."""
        return CheckpointCoordinator(
            JOB,
            self.store,
            self.setting.options,
            owner=owner,
            clock=self.world.clock,
            new_id=self.new_id,
        )


Action = Callable[[Process, Notes], Notes]
