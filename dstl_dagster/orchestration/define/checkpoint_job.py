"""A job without assets: a user's own op, and steps 4 to 7 behind it."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dstl_dagster.orchestration.define.ops import build_steps
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.keys import dagster_name


def build_checkpoint_job(
    name: str,
    update: dg.OpDefinition,
    *,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
    separate_steps: bool = False,
    **job_arguments: Any,
) -> dg.JobDefinition:
    """update -> complete, or update -> persist -> confirm -> compose_commit -> cleanup, as a plain job.

    Args:
        name: the name of the Dagster job.
        update: the user's op; it takes nothing and returns `batch.reference`.
        partitions_def: makes the partition of a run the idempotency key of its batch.
        retry_policy: of what stands behind `update`.
        separate_steps: as of `build_state_asset`.
        job_arguments: passed on to `GraphDefinition.to_job` (resource_defs, executor_def, tags, ...).

    Raises: InvalidInputError for a name that Dagster does not take, or an `update` that is no op.
    """
    prefix = f"{dagster_name(name, 'name')}_"
    complete = build_steps(update, separate_steps=separate_steps, prefix=prefix, retry_policy=retry_policy)

    @dg.graph(name=name)
    def steps() -> None:
        complete(update())

    return steps.to_job(name=name, partitions_def=partitions_def, **job_arguments)
