"""The job that rolls a job back: it shows what it would undo, and does that once a person has confirmed it.

Owns the job, its config, and what its run says. Does not own the restore (`checkpoint`) or what Dagster's
assets show of it (`report.reconcile`).
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import re
import uuid
from typing import Any

import dagster as dg
from pydantic import Field

from dstl_dagster.checkpoint import RestorePlan
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import counted, readable_bytes
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY, without_useless_retries
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import TAG_JOB, TAG_STEP, JobAssets, dagster_name
from dstl_dagster.orchestration.owners import owner_of
from dstl_dagster.orchestration.report.steps import Step, match_partitions, report_checks, report_restored
from dstl_dagster.orchestration.timeline_check import require_shown_timeline
from dstl_dagster.timeline import Restored

__all__ = ["RestoreConfig", "build_restore_job", "report_restore", "restore_run_config"]

_RESTORE_OP = "restore"
_BACKFILL = "dagster/backfill"
_CONFIRMED = re.compile(r"\s*(\d+)\s*->\s*(\d+)\s*")
_FILES_SHOWN = 50


class RestoreConfig(dg.Config):
    """What a person says before a job is rolled back."""

    confirm: str = Field(
        default="",
        description="What is undone, as a run without it says: `5 -> 1` rolls the job back from its last "
        "checkpoint, 5, to 1. Without it nothing is changed.",
    )
    preview: bool = Field(
        default=False,
        description="Only show what a restore would undo; the run succeeds, nothing is changed.",
    )


def restore_run_config(last: int, checkpoint_id: int) -> dict[str, Any]:
    """The run config that confirms a restore from the job's last checkpoint to `checkpoint_id`."""
    return {"ops": {_RESTORE_OP: {"config": {"confirm": _confirmation(last, checkpoint_id)}}}}


def build_restore_job(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """Rolls the job back: launch it for the partition of a checkpoint, `chk-00000042`.

    A run without config changes nothing: it fails with what it would undo, and with the config that confirms
    that. A run of a backfill is refused.

    The job resumes from that checkpoint's state and positions. Later checkpoints are abandoned: their files
    are retracted, and their batches may run again; Dagster shows their partitions as failed until they did.
    Ends an open attempt, whoever owns it. The checks that cost next to nothing are evaluated afterwards.

    Args:
        partitions_def: of the job's state and files, as for `build_checkpoint_checks`: the check that names
            the partitions to run again is evaluated only with it.
    """
    assets = JobAssets.of(job)
    job_name = dagster_name(name or f"{assets.group_name}_restore", "name")

    # Names of ops must be unique among all that is loaded together; the graph below gives them short ones.
    @dg.op(
        name=f"{job_name}_op",
        description=restore.__doc__,
        tags={TAG_STEP: _RESTORE_OP},
        retry_policy=retry_policy,
    )
    def step(
        context: dg.OpExecutionContext, config: RestoreConfig, changelog: ChangelogStorageResource
    ) -> None:
        with without_useless_retries(f"restore of job {assets.job!r}", {"store": changelog.uri}):
            _refuse_backfill(context)
            # The run owns what it opens, as in a batch, so that a retry may end its own attempt.
            coordinator = changelog.coordinator(assets.job, owner=owner_of(context.run))
            require_shown_timeline(context.run, context.instance, coordinator)
            restore(Step(context, assets, coordinator), config, partitions_def)

    @dg.graph(name=job_name)
    def steps() -> None:
        step.alias(_RESTORE_OP)()

    return steps.to_job(
        name=job_name,
        description=f"Rolls {assets.job} back to the checkpoint of the chosen partition.",
        partitions_def=assets.partitions,
        resource_defs=None if changelog is None else {"changelog": changelog},
        tags={TAG_JOB: assets.job},
    )


def restore(
    step: Step, config: RestoreConfig, partitions_def: dg.PartitionsDefinition[Any] | None = None
) -> None:
    """Roll the job back to the checkpoint of the partition; later checkpoints are abandoned."""
    context, assets, coordinator = step.context, step.assets, step.coordinator
    checkpoint_id = _chosen_checkpoint(step)
    # The same for every try of this run and its re-executions: a late one must not undo newer checkpoints.
    request_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{owner_of(context.run)}/{checkpoint_id}")
    expected_last = None
    if coordinator.timeline.tail().answer(request_id) is None:
        plan = coordinator.plan_restore(checkpoint_id)
        if config.preview:
            context.add_output_metadata(_plan_metadata(plan))
            context.log.info(f"preview, nothing was changed: {_in_words(assets, plan)}")
            return
        expected_last = _require_confirmed(assets, plan, config.confirm)
        context.log.info(f"restore: {_in_words(assets, plan)}")
    checkpoint = coordinator.restore(checkpoint_id, request_id=request_id, expected_last=expected_last)
    match_partitions(step)
    report_restore(step, request_id)
    report_checks(step, partitions_def)
    last = coordinator.timeline.tail().last_completed_id
    if last != checkpoint_id:
        context.log.warning(
            f"restore: this run already rolled {assets.job} back to checkpoint {checkpoint_id}, and the job "
            f"has since advanced to checkpoint {last}: nothing to do. Launch a new run to roll back again"
        )
        return
    context.log.info(
        f"restore: {assets.job} resumes from checkpoint {checkpoint_id}, "
        f"positions {dict(checkpoint.positions)}"
    )


def report_restore(step: Step, request_id: uuid.UUID) -> None:
    """Report the restore that answered this request, and log what is to run again."""
    timeline = step.coordinator.timeline
    slot = timeline.tail().answer(request_id)
    record = None if slot is None else next(timeline.records(slot - 1), None)
    if not isinstance(record, Restored):
        return
    report_restored(step, record)
    batches = [each.idempotency_key for each in step.coordinator.left_behind(record)]
    if any(batches):
        step.context.log.info(f"restore: run again, oldest first: {', '.join(filter(None, batches))}")


# ---- before it ----


def _refuse_backfill(context: dg.OpExecutionContext) -> None:
    backfill = context.run.tags.get(_BACKFILL)
    if backfill is not None:
        raise InvalidInputError(
            f"this run belongs to backfill {backfill}, and a restore is no backfill: each run would undo "
            "what the others kept. Nothing was changed; launch one run, for the checkpoint to resume from"
        )


def _chosen_checkpoint(step: Step) -> int:
    if not step.context.has_partition_key:
        raise InvalidInputError(
            "no checkpoint chosen: launch this job for its partition, for example chk-00000042"
        )
    return step.assets.checkpoint_of(step.context.partition_key)


def _require_confirmed(assets: JobAssets, plan: RestorePlan, confirmed: str) -> int:
    """The last checkpoint that the person knows of. Raises: Failure, with what the restore would undo."""
    wanted = _confirmation(plan.last, plan.checkpoint_id)
    match = _CONFIRMED.fullmatch(confirmed)
    if match is not None and (int(match[1]), int(match[2])) == (plan.last, plan.checkpoint_id):
        return plan.last
    said = f"the config confirms {confirmed!r}" if confirmed else "nobody has confirmed this restore"
    raise dg.Failure(
        description=f"{said}, so nothing was changed. {_in_words(assets, plan)}. To do it, launch the run "
        f'again with `confirm: "{wanted}"` in its config, which then is '
        f'`ops: {{{_RESTORE_OP}: {{config: {{confirm: "{wanted}"}}}}}}`',
        metadata=_plan_metadata(plan),
        allow_retries=False,
    )


def _confirmation(last: int, checkpoint_id: int) -> str:
    return f"{last} -> {checkpoint_id}"


def _in_words(assets: JobAssets, plan: RestorePlan) -> str:
    gone = len(plan.left_behind)
    said = f"A restore of {assets.job} to checkpoint {plan.checkpoint_id} "
    if not gone:
        said += "leaves no checkpoint behind"
    else:
        said += (
            f"leaves {counted(gone, 'checkpoint')} behind, up to {plan.last} "
            f"({readable_bytes(plan.state_bytes)} of changelog), "
            f"and retracts {counted(len(plan.files), 'file')} ({readable_bytes(plan.file_bytes)})"
        )
    if plan.batches:
        said += f"; to run again: {', '.join(plan.batches)}"
    if plan.open_attempt is not None:
        said += f"; it ends the open attempt of {plan.open_attempt.owner!r}"
    return f"{said}. It reads {counted(plan.read_objects, 'object')} ({readable_bytes(plan.read_bytes)})"


def _plan_metadata(plan: RestorePlan) -> dict[str, Any]:
    rows = []
    for completed in plan.left_behind:
        manifest = plan.manifests.get(completed.checkpoint_id)
        rows.append(
            dg.TableRecord(
                {
                    "checkpoint": JobAssets.partition_key(completed.checkpoint_id),
                    "batch": completed.idempotency_key or "",
                    "completed": f"{completed.recorded_at:%Y-%m-%d %H:%M:%S} UTC",
                    "changelog": "" if manifest is None else readable_bytes(manifest.state_bytes),
                    "files": len(completed.files),
                    "file size": "" if manifest is None else readable_bytes(manifest.file_bytes),
                }
            )
        )
    files = [f"* `{file.name}`" for file in plan.files[:_FILES_SHOWN]]
    if len(plan.files) > _FILES_SHOWN:
        files.append(f"* and {len(plan.files) - _FILES_SHOWN} more")
    return {
        "confirm": _confirmation(plan.last, plan.checkpoint_id),
        "resumes at": dg.MetadataValue.json(dict(plan.positions)),
        "goes": dg.MetadataValue.table(rows or [dg.TableRecord({"checkpoint": "nothing"})]),
        "files that go": dg.MetadataValue.md("\n".join(files) or "none"),
        "reads": f"{counted(plan.read_objects, 'object')}, {readable_bytes(plan.read_bytes)}",
    }
