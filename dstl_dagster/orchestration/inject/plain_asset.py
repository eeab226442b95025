"""An asset whose body writes a batch: Dagster makes its event, of what the body returns or yields.

Owns what that event says of the batch, and what becomes of one that came before the batch had ended. By the
metadata a restore finds what it undid, and the check of the partitions what is in no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.orchestration.code_location import is_called_directly
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.partitions import partition_of
from dstl_dagster.orchestration.report.failed_partitions import Mark, mark_partitions
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.orchestration.timeline_check import shown_metadata


def show_in_outputs(
    context: dg.OpExecutionContext, coordinator: CheckpointCoordinator, checkpoint: Checkpoint
) -> None:
    """Let the event of each output name the checkpoint; one that was yielded has another event for it."""
    step, completed = context.get_step_execution_context(), checkpoint.entry.completed
    for output, key in _assets_of(context):
        before = step.get_output_metadata(output) or {}
        said = shown_metadata(coordinator, completed, before)
        if step.has_seen_output(output):
            context.log_event(dg.AssetMaterialization(key, partition=partition_of(context), metadata=said))
        else:
            context.add_output_metadata(said, output_name=output)


@contextmanager
def failing_outputs(context: dg.OpExecutionContext, job: str) -> Iterator[None]:
    """Around a batch: where it fails, or its run is canceled, after an output was yielded, the partition is
    shown as failed.
    """
    try:
        yield
    except BaseException:
        if not is_called_directly(context) and context.has_assets_def:
            step = context.get_step_execution_context()
            partition = partition_of(context)
            yielded = [key for output, key in _assets_of(context) if step.has_seen_output(output)]
            if yielded and partition is not None:
                mark = Mark(
                    cause=f"yielded/{context.run_id}/{step.step.key}/{context.retry_number}",
                    about="yielded before their batch failed",
                    why=f"run {context.run_id} yielded its output before the batch ended, which failed",
                    partitions=dict.fromkeys(yielded, (partition,)),
                )
                mark_partitions(Page(JobAssets.defined(job), context.instance), mark)
        raise


def _assets_of(context: dg.OpExecutionContext) -> Iterator[tuple[str, dg.AssetKey]]:
    """The outputs of the op that are assets."""
    step = context.get_step_execution_context()
    layer = step.job_def.asset_layer
    for output in context.op_def.output_dict:
        key = layer.get_asset_key_for_node_output(step.node_handle, output)
        if key is not None:
            yield output, key
