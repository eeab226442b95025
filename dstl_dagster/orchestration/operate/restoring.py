"""Rolling a job back: a run shows what it would undo, and does that once a person has confirmed it.

Owns the run's config, and what it says. Does not own the restore (`checkpoint`), or what Dagster's
assets show of it (`report.reconcile`).
"""

# No postponed annotations here: Dagster reads the types of the config's fields as objects.

import re
import uuid
from typing import Any

import dagster as dg
from pydantic import Field

from dstl_dagster.checkpoint import RestorePlan
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import counted, names_in_words, readable_bytes, readable_time
from dstl_dagster.orchestration.keys import TAG_BACKFILL, JobAssets
from dstl_dagster.orchestration.owners import owner_of
from dstl_dagster.orchestration.report.checkpoint_page import positions_in_words
from dstl_dagster.orchestration.report.links import shown_lines
from dstl_dagster.orchestration.steps import Step, match_partitions, report_checks, report_restored
from dstl_dagster.timeline import Restored

_RESTORE_OP = "restore"
_CONFIRMED = re.compile(r"\s*(\d+)\s*->\s*(\d+)\s*")


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
    anew: bool = Field(
        default=False,
        description="Begin anew, whichever checkpoint the run is of: all go, `5 -> 0`, and all partitions "
        "run again. Until the first of them completes, readers see the state as it was.",
    )


def restore_run_config(last: int, checkpoint_id: int) -> dict[str, Any]:
    """The run config that confirms a restore from the job's last checkpoint to `checkpoint_id`."""
    config = {"confirm": _confirmation(last, checkpoint_id), **({} if checkpoint_id else {"anew": True})}
    return {"ops": {_RESTORE_OP: {"config": config}}}


def restore(step: Step) -> None:
    """Roll the job back to the checkpoint of the partition; later checkpoints are abandoned."""
    config = RestoreConfig(**step.context.op_config)
    context, assets, coordinator = step.context, step.assets, step.coordinator
    checkpoint_id = _chosen_checkpoint(step, anew=config.anew)
    # The same for every try of this run and its re-executions: a late one must not undo newer checkpoints.
    request_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{owner_of(context.run)}/{checkpoint_id}")
    expected_last = None
    if coordinator.timeline.tail().answer(request_id) is None:
        plan = coordinator.plan_restore(checkpoint_id)
        if config.preview:
            context.add_output_metadata(_plan_metadata(plan))
            context.log.info(f"preview, nothing was changed: {plan.in_words()}")
            return
        expected_last = _require_confirmed(plan, config.confirm)
        context.log.info(f"restore: {plan.in_words()}")
    coordinator.restore(checkpoint_id, request_id=request_id, expected_last=expected_last)
    match_partitions(step)
    report_restore(step, request_id)
    report_checks(step)
    last = coordinator.timeline.tail().last_completed_id or 0
    if last != checkpoint_id:
        context.log.warning(
            f"restore: this run already rolled {assets.job} back to checkpoint {checkpoint_id}, and the job "
            f"has since advanced to checkpoint {last}: nothing to do. Launch a new run to roll back again"
        )
        return
    now = coordinator.latest()
    resumes = "begins anew" if now is None else f"resumes from checkpoint {checkpoint_id}"
    at = "" if now is None else positions_in_words(now.positions)
    context.log.info(f"restore: {assets.job} {resumes}{at and f', where sources stand at {at}'}")


def report_restore(step: Step, request_id: uuid.UUID) -> None:
    """Report the restore that answered this request, and log what is to run again."""
    timeline = step.coordinator.timeline
    slot = timeline.tail().answer(request_id)
    record = None if slot is None else next(timeline.records(slot - 1), None)
    if not isinstance(record, Restored):
        return
    report_restored(step, record)
    batches = [key.key for each in step.coordinator.left_behind(record) for key in each.batches]
    if batches:
        step.context.log.info(f"restore: run again, oldest first: {names_in_words(*batches)}")


# ---- before it ----


def _chosen_checkpoint(step: Step, *, anew: bool) -> int:
    """The one to go back to; 0 to begin anew."""
    context = step.context
    backfill = context.run.tags.get(TAG_BACKFILL)
    if backfill is not None:
        raise InvalidInputError(
            f"this run belongs to backfill {backfill}, and a restore is no backfill: each run would undo "
            "the one before. Nothing was changed; launch one run, for the checkpoint to resume from"
        )
    if anew:
        return 0
    if not context.has_partition_key:
        raise InvalidInputError(
            "no checkpoint chosen: launch this job for its partition, for example chk-00000042"
        )
    return step.assets.checkpoint_of(context.partition_key)


def _require_confirmed(plan: RestorePlan, confirmed: str) -> int:
    """The last checkpoint that the person knows of. Raises: Failure, with what the restore would undo."""
    wanted = _confirmation(plan.last, plan.checkpoint_id)
    match = _CONFIRMED.fullmatch(confirmed)
    if match is not None and (int(match[1]), int(match[2])) == (plan.last, plan.checkpoint_id):
        return plan.last
    said = f"the config confirms {confirmed!r}" if confirmed else "this restore is not confirmed"
    anew = "" if plan.checkpoint_id else ", anew: true"
    raise dg.Failure(
        description=f"{said}, so nothing was changed. {plan.in_words()}. To do it, launch the run "
        f'again with `confirm: "{wanted}"` in its config, which then is '
        f'`ops: {{{_RESTORE_OP}: {{config: {{confirm: "{wanted}"{anew}}}}}}}`',
        metadata=_plan_metadata(plan),
        allow_retries=False,
    )


def _confirmation(last: int, checkpoint_id: int) -> str:
    return f"{last} -> {checkpoint_id}"


def _plan_metadata(plan: RestorePlan) -> dict[str, Any]:
    rows = []
    for completed in plan.left_behind:
        manifest = plan.manifests.get(completed.checkpoint_id)
        rows.append(
            dg.TableRecord(
                {
                    "checkpoint": JobAssets.partition_key(completed.checkpoint_id),
                    "batch": names_in_words(*map(str, filter(None, (*completed.applied, completed.batch)))),
                    "completed": readable_time(completed.recorded_at),
                    "changelog": "" if manifest is None else readable_bytes(manifest.state_bytes),
                    "files": len(completed.files),
                    "file size": "" if manifest is None else readable_bytes(manifest.file_bytes),
                }
            )
        )
    files = shown_lines([f"`{file.name}`" for file in plan.files])
    return {
        "confirm": _confirmation(plan.last, plan.checkpoint_id),
        "resumes at": positions_in_words(plan.positions) or "no source has a position",
        "goes": dg.MetadataValue.table(rows or [dg.TableRecord({"checkpoint": "nothing"})]),
        "files that go": dg.MetadataValue.md(files or "none"),
        "reads": f"{counted(plan.read_objects, 'object')}, {readable_bytes(plan.read_bytes)}",
    }
