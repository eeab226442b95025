"""A run whose batch a checkpoint holds already: it changes nothing, and says so where people look.

Owns what such a run shows. Does not own whether a batch is applied (`timeline`).

A retry has to succeed, so such a run does. But a green run with a new materialization looks like a day that
was made again. The asset therefore gets an observation, if it has the materialization of that checkpoint
already; without it, as after a run that died behind step 5, the materialization is due. In a backfill it
always is: Dagster starts the next partition only once this one is materialized. So it is where steps of the
run wait for the asset: without an output of it Dagster skips them, and the run is green.
"""

from __future__ import annotations

import dagster as dg

from dstl_dagster.checkpoint import Attempt
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.orchestration.code_location import (
    code_location,
    is_called_directly,
    maintenance_job,
    steps_behind,
)
from dstl_dagster.orchestration.keys import (
    TAG_ALREADY_IN,
    TAG_BACKFILL,
    TAG_CHECKPOINT,
    TAG_FAIL_IF_APPLIED,
    JobAssets,
)
from dstl_dagster.orchestration.owners import OwnerRuns, run_of_owner, step_of_owner
from dstl_dagster.orchestration.partitions import partition_of
from dstl_dagster.orchestration.report.events import state_version
from dstl_dagster.orchestration.report.failed_partitions import planned_before
from dstl_dagster.orchestration.report.links import checkpoint_link, launchpad_link
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.timeline import BatchKey


def log_repeated(context: dg.OpExecutionContext, job: str, applied: Attempt, key: BatchKey) -> None:
    """Log and tag that the batch of this run changes nothing.

    Raises: ConflictError (kind `already_applied`) if the run asks for that by its tag; or if another step of
    this run has applied it: this one has rows of its own.
    """
    partition, checkpoint_id = partition_of(context), applied.checkpoint_id
    what = "this batch" if partition is None else f"partition {partition}"
    by = "" if applied.batch is None else applied.batch.run
    if by != key.run and run_of_owner(by) == run_of_owner(key.run) is not None:
        raise ConflictError(
            f"{what} of source {key.source!r} is in checkpoint {checkpoint_id} of job {job!r}, which step "
            f"{step_of_owner(by)} of this run made, and this step would add nothing to it: write both in one "
            "batch, or give each step an idempotency_key of its own",
            kind=ErrorKind.ALREADY_APPLIED,
        )
    said = f"{what} is already in checkpoint {checkpoint_id} of job {job!r}: nothing was changed."
    if is_called_directly(context):
        context.log.warning(said)
        return
    said += "" if partition is None else f" {_way_out(context, job, partition)[0]}"
    context.instance.add_run_tags(context.run_id, {TAG_ALREADY_IN: str(checkpoint_id)})
    if context.run.tags.get(TAG_FAIL_IF_APPLIED) == "true":
        raise ConflictError(said, kind=ErrorKind.ALREADY_APPLIED)
    context.log.warning(said)


def repeated_checks(context: dg.OpExecutionContext, applied: Attempt) -> list[dg.AssetCheckResult]:
    """What the asset's own checks said of this batch when it was written: its function evaluates none of them
    again. By the events of the run that wrote it: the newest evaluation of all may be of another partition.
    """
    why = f"the batch is already in checkpoint {applied.checkpoint_id}"
    said: dict[dg.AssetCheckKey, dg.AssetCheckEvaluation] = {}
    for run in OwnerRuns(context.instance).runs_of("" if applied.batch is None else applied.batch.run):
        for entry in context.instance.all_logs(
            run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ):
            found = entry.get_dagster_event().asset_check_evaluation_data
            said[found.asset_check_key] = found
    results = []
    for key in sorted(context.selected_asset_check_keys):
        before = said.get(key)
        results.append(
            dg.AssetCheckResult(
                passed=before is not None and before.passed,
                asset_key=key.asset_key,
                check_name=key.name,
                severity=dg.AssetCheckSeverity.WARN if before is None else before.severity,
                description=f"not evaluated: {why}" if before is None else f"as evaluated before: {why}",
                metadata={} if before is None else before.metadata,
            )
        )
    return results


def observe_if_unchanged(context: dg.OpExecutionContext, assets: JobAssets, applied: Attempt) -> bool:
    """Write the observation that stands in place of the state's materialization; False where that is due."""
    checkpoint_id = applied.checkpoint_id
    run = context.instance.get_run_by_id(context.run_id)  # with the tags that an earlier step has added
    tags = {} if run is None else run.tags
    if not context.has_assets_def or TAG_BACKFILL in tags or TAG_ALREADY_IN not in tags:
        return False
    partition = partition_of(context)
    # The tag may be of another job that the run writes too: what is new has no materialization yet.
    if not Page(assets, context.instance).has(assets.state_key, state_version(applied.attempt)):
        return False
    if steps_behind(context):
        return False
    # Only a materialization takes away what an earlier run of it left, such as the red of a failure.
    if partition and planned_before(context.instance, assets.state_key, partition, context.run_id):
        return False
    said = {"checkpoint": dg.MetadataValue.md(checkpoint_link(assets, checkpoint_id))}
    if partition is not None:
        said["if its source has changed"] = dg.MetadataValue.md(_way_out(context, assets.job, partition)[1])
    context.log_event(
        dg.AssetObservation(
            asset_key=assets.state_key,
            partition=partition,
            description=f"nothing changed: already in checkpoint {checkpoint_id}",
            tags={TAG_CHECKPOINT: str(checkpoint_id)},
            metadata=said,
        )
    )
    return True


def _way_out(context: dg.OpExecutionContext, job: str, partition: str) -> tuple[str, str]:
    """How a partition is made again from a source that has changed: as text, and as Markdown with a link."""
    command = f"dstl checkpoints correct {partition}"
    name = maintenance_job(code_location(context), job, "correct")
    if name is None:
        return f"To make it again: {command}", f"`{command}` makes it again"
    return (
        f"To make it again: launch {name} for it, or {command}",
        f"launch {launchpad_link(name, name, partition)} for {partition}, or `{command}`",
    )
