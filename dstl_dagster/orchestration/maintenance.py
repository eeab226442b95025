"""What a person or a schedule asks of a job between its runs: restore, clean up, fold, verify.

Owns the Dagster jobs and their schedules, which ship stopped. Does not own what each does (`checkpoint`).
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import CheckpointCoordinator, Verification
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import readable_bytes
from dstl_dagster.orchestration.failures import without_useless_retries
from dstl_dagster.orchestration.keys import OWNER_PREFIX, TAG_CHECKPOINT, TAG_STEP, JobAssets
from dstl_dagster.orchestration.lineage import Reporter
from dstl_dagster.orchestration.ops import (
    DEFAULT_RETRY_POLICY,
    cleaned_up,
    forget_given_up_partitions,
    progress_to,
)
from dstl_dagster.orchestration.reporting import unreported_checkpoint
from dstl_dagster.orchestration.resources import ChangelogStorageResource

__all__ = [
    "build_cleanup_job",
    "build_cleanup_schedule",
    "build_materialize_job",
    "build_materialize_schedule",
    "build_restore_job",
    "build_verify_job",
    "build_verify_schedule",
]

_PROBLEMS_SHOWN = 20


def build_restore_job(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """Rolls the job back: launch it for the partition of a checkpoint, `chk-00000042`.

    The job goes on from that checkpoint's state and positions. Later checkpoints are left behind: their
    files are taken back, and their batches may run again. Ends an open attempt, whoever has it.
    """
    assets = job if isinstance(job, JobAssets) else JobAssets(job)
    return _job(
        assets,
        _Work("restore", "restore", _restore),
        name,
        retry_policy,
        f"Rolls {assets.job} back to the checkpoint of the chosen partition.",
        changelog,
        assets.partitions,
    )


def build_cleanup_job(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """Step 7 by itself, for a job that nothing else cleans up after."""
    assets = job if isinstance(job, JobAssets) else JobAssets(job)
    return _job(
        assets,
        _Work("cleanup", "7", _clean_up),
        name,
        retry_policy,
        f"Gives up checkpoints of {assets.job} beyond retention, and deletes what nothing needs.",
        changelog,
    )


def build_materialize_job(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """Folds the job's changelog into a base where that is due, as a checkpoint of its own.

    Refused while a batch of the job is open: run it between batches.
    """
    assets = job if isinstance(job, JobAssets) else JobAssets(job)
    return _job(
        assets,
        _Work("materialize", "1-6", _materialize),
        name,
        retry_policy,
        f"Folds the changelog of {assets.job} into a base, so that reading its state stays quick.",
        changelog,
    )


def build_verify_job(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """Reads back everything that the last checkpoint needs, and fails naming each object that is wrong."""
    assets = job if isinstance(job, JobAssets) else JobAssets(job)
    return _job(
        assets,
        _Work("verify", "verify", _verify),
        name,
        retry_policy,
        f"Reads back all that the last checkpoint of {assets.job} needs.",
        changelog,
    )


def build_cleanup_schedule(
    cleanup_job: dg.JobDefinition, cron_schedule: str = "23 * * * *"
) -> dg.ScheduleDefinition:
    """`build_cleanup_job(...)`, hourly. Ships stopped."""
    return _schedule(cleanup_job, cron_schedule)


def build_materialize_schedule(
    materialize_job: dg.JobDefinition, cron_schedule: str = "37 3 * * *"
) -> dg.ScheduleDefinition:
    """`build_materialize_job(...)`, every night. Ships stopped."""
    return _schedule(materialize_job, cron_schedule)


def build_verify_schedule(
    verify_job: dg.JobDefinition, cron_schedule: str = "47 4 * * 0"
) -> dg.ScheduleDefinition:
    """`build_verify_job(...)`, every Sunday. Ships stopped."""
    return _schedule(verify_job, cron_schedule)


def _schedule(job: dg.JobDefinition, cron_schedule: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"{job.name}_schedule",
        target=job,
        cron_schedule=cron_schedule,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )


@dataclass(frozen=True)
class _Work:
    """What the one step of a job does, its name, and its number among the steps of a checkpoint."""

    name: str
    number: str
    body: Callable[[dg.OpExecutionContext, JobAssets, CheckpointCoordinator], None]


def _job(
    assets: JobAssets,
    work: _Work,
    name: str | None,
    retry_policy: dg.RetryPolicy,
    description: str,
    changelog: ChangelogStorageResource | None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
) -> dg.JobDefinition:
    job_name = name or f"{assets.group_name}_{work.name}"

    # Names of ops must differ among all that is loaded together; the graph below gives them short ones.
    @dg.op(
        name=f"{job_name}_op",
        description=work.body.__doc__,
        tags={TAG_STEP: work.number},
        retry_policy=retry_policy,
    )
    def step(context: dg.OpExecutionContext, changelog: ChangelogStorageResource) -> None:
        with without_useless_retries(f"{work.name} of job {assets.job!r}", {"store": changelog.uri}):
            # The run owns what it opens, as the ops of a batch do: a retry goes on with its own.
            owner = OWNER_PREFIX + _root_run_id(context)
            work.body(context, assets, changelog.coordinator(assets.job, owner=owner))

    @dg.graph(name=job_name)
    def steps() -> None:
        step.alias(work.name)()

    return steps.to_job(
        name=job_name,
        description=description,
        partitions_def=partitions_def,
        resource_defs=None if changelog is None else {"changelog": changelog},
        tags={"dstl/job": assets.job},
    )


def _root_run_id(context: dg.OpExecutionContext) -> str:
    return str(context.run.root_run_id or context.run.run_id)


def _restore(context: dg.OpExecutionContext, assets: JobAssets, coordinator: CheckpointCoordinator) -> None:
    """Go on from the checkpoint of the partition; later ones are left behind."""
    if not context.has_partition_key:
        raise InvalidInputError(
            "choose the checkpoint to go back to: launch this job for its partition, like chk-00000042"
        )
    checkpoint_id = assets.checkpoint_of(context.partition_key)
    # The same for each try of this run and its re-executions: what began in between is not thrown away.
    request_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{OWNER_PREFIX}{_root_run_id(context)}/{checkpoint_id}")
    checkpoint = coordinator.restore(checkpoint_id, request_id=request_id)
    forget_given_up_partitions(context.instance, assets, coordinator)
    last = coordinator.timeline.tail().last_completed_id
    if last != checkpoint_id:
        context.log.warning(
            f"restore: this run rolled {assets.job} back to checkpoint {checkpoint_id} before, and the job "
            f"has gone on to checkpoint {last} since: nothing is done. Launch a new run to roll it back again"
        )
        return
    context.log.info(
        f"restore: {assets.job} goes on from checkpoint {checkpoint_id}, "
        f"positions {dict(checkpoint.positions)}"
    )
    context.log_event(
        dg.AssetObservation(
            asset_key=assets.checkpoints_key,
            partition=context.partition_key,
            description=f"{assets.job} was rolled back to checkpoint {checkpoint_id}",
            tags={TAG_CHECKPOINT: str(checkpoint_id)},
            metadata={"positions": dg.MetadataValue.json(dict(checkpoint.positions))},
        )
    )


def _clean_up(context: dg.OpExecutionContext, assets: JobAssets, coordinator: CheckpointCoordinator) -> None:
    """Step 7: give up checkpoints beyond retention, and delete what nothing needs."""
    report = coordinator.clean_up()
    forget_given_up_partitions(context.instance, assets, coordinator)
    context.log.info(cleaned_up(report))


def _materialize(
    context: dg.OpExecutionContext, assets: JobAssets, coordinator: CheckpointCoordinator
) -> None:
    """Fold the changelog of each operator for which it is due into a base."""
    from dstl_dagster.checkpoint import materialize  # Arrow: not while definitions load

    told = progress_to(context, "fold", "ranges of key groups")
    checkpoint = materialize(coordinator, progress=told)
    if checkpoint is None:
        context.log.info(f"no operator of {assets.job} is due: its log is short beside its base")
        return
    context.log.info(
        f"checkpoint {checkpoint.checkpoint_id} holds the whole state as a base of "
        f"{readable_bytes(checkpoint.manifest.state_bytes)}"
    )
    partition = assets.partition_key(checkpoint.checkpoint_id)
    context.instance.add_dynamic_partitions(assets.partitions_name, [partition])
    reporter = Reporter("run", coordinator.store.uri)
    for event in unreported_checkpoint(context.instance, assets, checkpoint, reporter):
        context.log_event(event)


def _verify(context: dg.OpExecutionContext, assets: JobAssets, coordinator: CheckpointCoordinator) -> None:
    """Read back everything that the last checkpoint needs."""
    latest = coordinator.latest()
    if latest is None:
        context.log.info(f"job {assets.job!r} has no checkpoint yet: nothing to verify")
        return
    told = progress_to(context, "verify", "checks")
    found = coordinator.verify(latest.checkpoint_id, progress=told)
    for note in found.notes:
        context.log.info(f"verify: {note}")
    if not found.ok:
        raise _damaged(coordinator, found)
    context.log.info(
        f"verify: {found.objects} objects ({readable_bytes(found.bytes)}) of checkpoint "
        f"{latest.checkpoint_id} of {assets.job} were read back, and are as they should be"
    )


def _damaged(coordinator: CheckpointCoordinator, found: Verification) -> dg.Failure:
    sound, _ = coordinator.newest_verified()
    if sound is None:
        way_out = "no older checkpoint is undamaged either"
    elif sound.checkpoint_id == found.checkpoint_id:
        way_out = "or do without them: the state is undamaged, and the job can go on"
    else:
        way_out = f"or roll the job back: the state of checkpoint {sound.checkpoint_id} is undamaged"
    shown = [f"* `{problem.object_name}` {problem.what}" for problem in found.problems[:_PROBLEMS_SHOWN]]
    return dg.Failure(
        description=(
            f"{len(found.problems)} damages in checkpoint {found.checkpoint_id} of job {coordinator.job!r}. "
            f"The first: {found.problems[0]}. Bring the objects back from a backup, {way_out}"
        ),
        metadata={"problems": dg.MetadataValue.md("\n".join(shown))},
        allow_retries=False,
    )
