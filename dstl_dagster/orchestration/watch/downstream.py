"""A sensor that asks for a job of the user's for each checkpoint, once its files are published.

Owns which checkpoints are asked for, and the input of the run. Does not own the events of checkpoints
(`timeline_follower`), or what the job does.

Why each is asked for once. The runs decide, not the cursor alone: a request carries the checkpoint as a tag
and as its run key, and is left out where a run with that tag exists. So a tick that is killed between its
runs and its cursor asks again for what it did not get to, and neither a cleared cursor nor a renamed sensor
repeats anything. A run that exists but never started is asked for again: by its key Dagster starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import dagster as dg

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource, with_changelog
from dstl_dagster.orchestration.keys import TAG_ATTEMPT, TAG_CHECKPOINT, TAG_DOWNSTREAM, TAG_JOB, JobAssets
from dstl_dagster.orchestration.partitions import has_partition, is_of, window_of
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.orchestration.watch.timeline_follower import CheckpointCursor, TimelineFollower
from dstl_dagster.timeline import Committed, Completed, Restored, TimelineView

_RunConfig = Callable[[Completed], Mapping[str, Any]]
_NAMED: Final = 5
_BY_SENSOR: Final = "dagster/sensor_name"


def build_downstream_sensor(
    job: str | JobAssets,
    downstream: Any,
    *,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    run_config: _RunConfig | None = None,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    max_runs_per_tick: int = 20,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Asks for a run of `downstream` for each checkpoint of `job`, in order, exactly once.

    A checkpoint is asked for when it is committed: its files are published, but for blocked ones. One that a
    restore undid before the sensor saw it is passed over. A run that fails is not asked for again: re-execute
    it, or let `run_retries` do that. Without a cursor the sensor begins with the oldest checkpoint that is
    retained; set it to `{"slot": N}` to begin behind slot N of the timeline.

    Each run has the tags `dstl/job`, `dstl/checkpoint_id` and `dstl/attempt`.

    Args:
        job: the job whose checkpoints are followed, or its asset keys.
        downstream: the job to run, as `@job` or `define_asset_job` made it, or its name.
        partitions_def: of `downstream`. `JobAssets.partitions`: a run is for the partition of the checkpoint,
            such as chk-00000042; one that was cleaned up in the meantime is passed over. Any other: a run is
            for the partition of the checkpoint's batch, of several there is a run each, and a checkpoint
            without one, such as a base, is passed over. None: the job has no partitions.
        run_config: the config of a run, from the checkpoint's `completed` record.
        name: of the sensor; by default the downstream job's, with `_after_<job>`.
        changelog: where `job` lives; without it, the resource named `changelog`.
        max_runs_per_tick: where a tick stops; the next one continues there.

    A tick fails where a partition of `partitions_def` is of another time than the batch of its name, and
    where another sensor, or code location, asks for runs of a job of the same name.

    Raises: InvalidInputError for something that is no job, no partitions, no function.
    """
    assets = JobAssets.of(job)
    target = downstream if isinstance(downstream, str) else getattr(downstream, "name", None)
    if not isinstance(target, str):
        raise InvalidInputError(f"downstream is a job or the name of one, not {downstream!r}")
    if partitions_def is not None and not isinstance(partitions_def, dg.PartitionsDefinition):
        raise InvalidInputError(f"partitions_def is that of {target}, not {partitions_def!r}")
    if run_config is not None and not callable(run_config):
        raise InvalidInputError(f"run_config is a function of the completed record, not {run_config!r}")
    if max_runs_per_tick < 1:
        raise InvalidInputError(f"max_runs_per_tick is 1 or more, not {max_runs_per_tick}")

    own_name = name or f"{target}_after_{assets.group_name}"

    def ask(context: dg.SensorEvaluationContext, changelog: ChangelogStorageResource) -> dg.SensorResult:
        coordinator = changelog.coordinator(assets.job)
        asking = _Asking(context, own_name, assets, coordinator, target, partitions_def, run_config)
        asking.follow(asking.start(context.cursor), max_runs_per_tick)
        said = asking.summary()
        context.log.info(said)
        return dg.SensorResult(
            run_requests=asking.requests,
            skip_reason=None if asking.requests else said,
            cursor=asking.cursor.to_text(),
            dynamic_partitions_requests=asking.partition_requests(),
        )

    return dg.sensor(
        name=own_name,
        job_name=target,  # by name: Dagster copies a job when it binds resources
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=f"Asks for a run of {target} for each checkpoint of job {assets.job}.",
    )(with_changelog(changelog, ask))


@dataclass
class _Asking:
    """One tick. Attributes: `requests`, oldest checkpoint first; `passed`: over whom, and why."""

    context: dg.SensorEvaluationContext
    name: str
    assets: JobAssets
    coordinator: CheckpointCoordinator
    target: str
    partitions_def: dg.PartitionsDefinition[str] | None
    run_config: _RunConfig | None
    cursor: CheckpointCursor = field(default_factory=CheckpointCursor)
    requests: list[dg.RunRequest] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)

    def start(self, cursor_text: str | None) -> CheckpointCursor:
        """Raises: as `TimelineFollower.start`."""
        page = Page(self.assets, self.instance)
        start = TimelineFollower(page, self.coordinator, SystemClock()).start(cursor_text)
        if cursor_text is not None and not CheckpointCursor.from_text(cursor_text).start_over:
            return replace(start, shown=None)  # a page that is wiped asks for nothing again
        retained = self.coordinator.timeline.tail().retained
        return CheckpointCursor(slot=retained[0].completed.slot - 1) if retained else CheckpointCursor()

    @property
    def instance(self) -> dg.DagsterInstance:
        return self.context.instance

    @cached_property
    def _view(self) -> TimelineView:
        """Read behind the record that is considered first: a restore that undid it is seen."""
        return self.coordinator.timeline.tail()

    def follow(self, start: CheckpointCursor, max_runs: int) -> None:
        """The cursor stays before a checkpoint that is not committed, or newer than the view: the next tick
        meets it again.
        """
        self.cursor, reached = start, start
        completed: Completed | None = None
        for record in self.coordinator.timeline.records(start.slot):
            if record.slot > self._view.slot:
                return
            reached = reached.after(record)
            match record:
                case Completed():
                    completed = record
                    continue
                case Committed() if completed is not None:
                    for request in self._lacking(completed):
                        if len(self.requests) == max_runs:
                            return
                        self.requests.append(request)
                    completed = None
                case Restored():
                    completed = None
                case _:
                    pass
            if completed is None:
                self.cursor = reached

    def _lacking(self, completed: Completed) -> Iterator[dg.RunRequest]:
        """The requests of a checkpoint, less those that have a run: one, or one for each of its partitions.

        Raises: InvalidInputError.
        """
        checkpoint_id = completed.checkpoint_id
        if self._view.is_abandoned(checkpoint_id):
            self.passed.append(f"{checkpoint_id}: undone by a restore")
            return
        of_it = f"{self.target}/{self._view.timeline_id}/{checkpoint_id}/{completed.attempt}"
        asked: dict[str, str | None] = {of_it: None}
        if self.partitions_def is not None:
            asked = {
                f"{of_it}/{part}" if completed.batch is not None and completed.batch.parts else of_it: part
                for part in self._partitions(completed)
            }
        runs = self.instance.get_runs(dg.RunsFilter(tags={TAG_DOWNSTREAM: [*asked]})) if asked else []
        began: dict[str, list[dg.DagsterRun]] = {}
        for run in runs:
            if run.status is not dg.DagsterRunStatus.NOT_STARTED:
                began.setdefault(run.tags[TAG_DOWNSTREAM], []).append(run)
        for each, partition in asked.items():
            if each in began:
                self._require_own(began[each])
                continue
            yield dg.RunRequest(
                run_key=each,
                partition_key=partition,
                run_config={} if self.run_config is None else dict(self.run_config(completed)),
                tags={
                    TAG_DOWNSTREAM: each,
                    TAG_JOB: self.assets.job,
                    TAG_CHECKPOINT: str(checkpoint_id),
                    TAG_ATTEMPT: str(completed.attempt),
                },
            )

    def _require_own(self, runs: list[dg.DagsterRun]) -> None:
        """Pass if this sensor asked for one of these runs, perhaps under a name that it had before.

        Raises: ConflictError: by another's it would take each checkpoint for done.
        """
        others = [other for run in runs if (other := self._other(run)) is not None]
        if len(others) == len(runs):
            raise ConflictError(
                f"{others[0]} requests runs of a job {self.target!r} for the checkpoints of job "
                f"{self.assets.job!r} too, so that this sensor would pass over them: give one of the two "
                f"another job. If it is this sensor under a former name, set its cursor to "
                f'{{"slot": {self._view.slot}}}',
                kind=ErrorKind.ALREADY_APPLIED,
            )

    def _other(self, run: dg.DagsterRun) -> str | None:
        """Another sensor that asked for a run, as far as is known: of another code location, or beside."""
        origin, here, around = (
            run.remote_job_origin,
            self.context.code_location_origin,
            self.context.repository_def,
        )
        where = None if origin is None else origin.repository_origin.code_location_origin.location_name
        if where is not None and here is not None and where != here.location_name:
            return f"code location {where!r}"
        by = run.tags.get(_BY_SENSOR, self.name)
        beside = by != self.name and around is not None and around.has_sensor_def(by)
        return f"sensor {by!r}" if beside else None

    def _partitions(self, completed: Completed) -> Iterator[str]:
        """That the runs of a checkpoint are for. Raises: InvalidInputError."""
        definition, number = self.partitions_def, completed.checkpoint_id
        if definition == self.assets.partitions:
            entry = self._view.checkpoints.get(number)
            if entry is not None and entry.subsumed is None:
                yield self.assets.partition_key(number)
            else:
                self.passed.append(f"{number}: cleaned up before it was seen")
            return
        if completed.batch is None:
            self.passed.append(f"{number}: it is of no batch")
            return
        for batch in completed.batch.each:
            if definition is None or not has_partition(definition, batch.key, self.instance):
                self.passed.append(f"{number}: its batch {batch.key!r} is no partition of {self.target}")
            elif is_of(batch, window_of(definition, batch.key)):
                yield batch.key
            else:
                raise InvalidInputError(
                    f"partition {batch.key} of {self.target} is of another time than the batch of that name "
                    f"in checkpoint {number} of job {self.assets.job!r}: let partitions_def be that of the "
                    "batches; or leave it out, and request other partitions in a sensor of your own"
                )

    def partition_requests(self) -> list[Any]:
        """The partitions of checkpoints that runs are for: Dagster adds them before it starts a run."""
        if self.partitions_def != self.assets.partitions or not self.requests:
            return []
        existing = set(self.instance.get_dynamic_partitions(self.assets.partitions_name))
        wanted = [request.partition_key for request in self.requests if request.partition_key is not None]
        missing = [key for key in wanted if key not in existing]
        return [self.assets.partitions.build_add_request(missing)] if missing else []

    def summary(self) -> str:
        ids = [str(request.tags[TAG_CHECKPOINT]) for request in self.requests]
        parts = [f"asked for {self.target} for checkpoints {', '.join(ids)}"] if ids else []
        if self.passed:
            more = len(self.passed) - _NAMED
            listed = "; ".join(self.passed[:_NAMED]) + (f" and {more} more" if more > 0 else "")
            parts.append(f"passed over {listed}")
        return f"slot {self.cursor.slot}: " + ("; ".join(parts) if parts else "nothing new")
