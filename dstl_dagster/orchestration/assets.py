"""A job as assets: the state as a graph of retryable steps, its files and its checkpoints beside it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import dagster as dg

from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.ops import DEFAULT_RETRY_POLICY, build_checkpoint_ops

__all__ = ["build_state_asset", "checkpoint_asset_specs"]


def checkpoint_asset_specs(
    job: str | JobAssets,
    *,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    owners: Sequence[str] = (),
) -> list[dg.AssetSpec]:
    """The assets of a job that no op of its own makes: its output files, and its checkpoints.

    Both are reported by the steps: the files by step 6, a checkpoint by step 5. `partitions_def` is that
    of the job's state. The checkpoints have one dynamic partition for each that is restorable now.
    """
    assets = job if isinstance(job, JobAssets) else JobAssets(job)
    return [
        dg.AssetSpec(
            key=assets.files_key,
            deps=[assets.state_key],
            partitions_def=partitions_def,
            group_name=assets.group_name,
            kinds={"file"},
            owners=list(owners),
            description="Files that appear exactly once, composed by step 6 (compose-commit).",
        ),
        dg.AssetSpec(
            key=assets.checkpoints_key,
            deps=[assets.state_key],
            partitions_def=assets.partitions,
            group_name=assets.group_name,
            kinds={"checkpoint"},
            owners=list(owners),
            description=(
                "Completed checkpoints of the job: state, source positions and files in one atomic step. "
                "The partitions are the checkpoints that can be restored to now."
            ),
        ),
    ]


def build_state_asset(
    job: str | JobAssets,
    update: dg.OpDefinition,
    *,
    partitions_def: dg.TimeWindowPartitionsDefinition | None = None,
    sources: Sequence[dg.AssetKey] = (),
    kinds: set[str] | None = None,
    owners: Sequence[str] = (),
    description: str | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.AssetsDefinition:
    """The state of a job as one asset of five steps: update, persist, confirm, compose_commit, cleanup.

    Args:
        job: the job's name, or its asset keys.
        update: the user's op. It has one `Nothing` input named `after`, and returns `batch.reference`.
        partitions_def: time partitions. The asset then depends on its own previous partition, so a
            backfill runs them in order, one run each.
        sources: the assets that `update` reads.
        retry_policy: of the four steps behind `update`, which brings its own.
    """
    assets = job if isinstance(job, JobAssets) else JobAssets(job)
    ops = build_checkpoint_ops(lambda _job: assets, retry_policy=retry_policy)
    ins = {
        f"source_{place}": dg.AssetIn(key=key, dagster_type=dg.Nothing) for place, key in enumerate(sources)
    }
    if partitions_def is not None:
        ins["previous"] = dg.AssetIn(
            key=assets.state_key,
            dagster_type=dg.Nothing,
            partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1),
        )

    def steps(**upstream: Any) -> Any:
        reference = update(after=list(upstream.values())) if upstream else update()
        for step in ops:
            reference = step(reference)
        return reference

    # Dagster learns the graph's inputs from the signature, and how many there are is the caller's choice.
    steps.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # functions do take one
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ins]
    )
    return dg.graph_asset(
        name=assets.state,
        key_prefix=[assets.group_name],
        ins=ins,
        partitions_def=partitions_def,
        group_name=assets.group_name,
        kinds=kinds or {"pyspark"},
        owners=list(owners) or None,
        backfill_policy=dg.BackfillPolicy.multi_run(1) if partitions_def is not None else None,
        description=description or f"The state of {assets.job}: one run, one checkpoint.",
    )(steps)
