"""A job as assets: the state as a graph of retryable ops; beside it operators, files and checkpoints.

Owns the specs and their dependencies. Does not own what the ops do (`steps`) or what events say (`lineage`).
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.keys import TAG_JOB, JobAssets
from dstl_dagster.orchestration.ops import build_checkpoint_ops
from dstl_dagster.settings import parse_names

__all__ = ["build_state_asset", "checkpoint_asset_specs"]

_AFTER = "after"


def checkpoint_asset_specs(
    job: str | JobAssets,
    *,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    owners: Sequence[str] = (),
    kinds: Sequence[str] = (),
    freshness: timedelta | None = None,
    sources: Sequence[dg.AssetKey] | None = None,
    file_columns: dg.TableSchema | None = None,
) -> list[dg.AssetSpec]:
    """The external assets of a job: state by operator, output files, checkpoints.

    Their materializations are reported by the steps (files by step 6, the others by step 5) or, for a job
    that runs outside Dagster, by `build_checkpoint_sensor`.

    Args:
        job: the job's name, or its asset keys; `JobAssets.operators` are the operators shown.
        partitions_def: of the job's state and files. Checkpoints have one dynamic partition for each that
            can be restored now.
        kinds: added to our own on each asset, for example `gcs`; Dagster shows three at most.
        freshness: the freshness policy of checkpoints fails once the last one is older than this, and warns
            at three quarters of it.
        sources: the assets that a job outside Dagster reads: adds `<job>/state` downstream of them. Not
            together with `build_state_asset`, which defines that asset.
        file_columns: the columns of the output files.
    """
    assets = JobAssets.of(job)
    assets.require_own_names()
    if isinstance(sources, str | dg.AssetKey):
        raise InvalidInputError(f"sources: expected asset keys in a list, such as [{sources!r}]")
    spec = partial(_spec, assets, list(parse_names("owners", owners)), parse_names("kinds", kinds))
    specs = [
        spec(assets.operator_key(operator), "table", f"The state of operator {operator}: its rows by key.")
        for operator in assets.operators
    ]
    if sources is not None:
        described = f"The state of {assets.job}, which runs outside Dagster."
        specs.append(spec(assets.state_key, "pyspark", described, deps=list(sources)))
    specs.append(
        spec(
            assets.files_key,
            "file",
            "Output files, published exactly once by step 6 (compose-commit).",
            partitions_def=partitions_def,
            metadata=None if file_columns is None else {"dagster/column_schema": file_columns},
        )
    )
    specs.append(
        spec(
            assets.checkpoints_key,
            "checkpoint",
            "Completed checkpoints of the job: state, source positions and files, committed atomically. "
            "The partitions are the checkpoints that can be restored now.",
            partitions_def=assets.partitions,
            freshness_policy=None
            if freshness is None
            else dg.FreshnessPolicy.time_window(fail_window=freshness, warn_window=freshness * 3 / 4),
        )
    )
    return specs


def _spec(
    assets: JobAssets,
    owners: list[str],
    kinds: Sequence[str],
    key: dg.AssetKey,
    kind: str,
    description: str,
    **more: Any,
) -> dg.AssetSpec:
    return dg.AssetSpec(
        key=key,
        deps=more.pop("deps", [assets.state_key]),
        group_name=assets.group_name,
        kinds={kind, *kinds},
        owners=owners,
        tags={TAG_JOB: assets.job},
        description=description,
        **more,
    )


def build_state_asset(
    job: str | JobAssets,
    update: dg.OpDefinition,
    *,
    partitions_def: dg.TimeWindowPartitionsDefinition | None = None,
    sources: Sequence[dg.AssetKey] = (),
    kinds: Collection[str] | None = None,
    owners: Sequence[str] = (),
    description: str | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.AssetsDefinition:
    """The state of a job as an asset backed by five ops: update, persist, confirm, compose_commit, cleanup.

    Args:
        job: the job's name, or its asset keys.
        update: the user's op, which returns `batch.reference`. It takes no data: an input `after` of type
            `Nothing`, by which it waits for its sources, is added if the op does not have it.
        partitions_def: time partitions. The asset then depends on its own previous partition, so that a
            backfill runs them in order, one run each.
        sources: the assets that `update` reads.
        retry_policy: of the four ops behind `update`, which brings its own.

    Raises: InvalidInputError for an `update` that takes data, or a text where names are wanted.
    """
    assets = JobAssets.of(job)
    assets.require_own_names()
    update, owners = _waiting(update), parse_names("owners", owners)
    if isinstance(sources, str | dg.AssetKey):
        raise InvalidInputError(f"sources: expected asset keys in a list, such as [{sources!r}]")
    prefix = op_prefix(assets)
    ops = build_checkpoint_ops(
        lambda _job: assets, prefix=prefix, retry_policy=retry_policy, pool=assets.pool, ends=True
    )
    first = update.alias(update.name.removeprefix(prefix))
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
        return ops.invoke_after(first(after=list(upstream.values())) if upstream else first())

    # Dagster reads the graph's inputs from the signature, and their number is the caller's choice.
    steps.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # functions do take one
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ins]
    )
    return dg.graph_asset(
        name=assets.state,
        key_prefix=[assets.group_name],
        ins=ins,
        partitions_def=partitions_def,
        group_name=assets.group_name,
        kinds=set(parse_names("kinds", kinds or ("pyspark",))),
        owners=list(owners) or None,
        tags={TAG_JOB: assets.job},
        backfill_policy=dg.BackfillPolicy.multi_run(1) if partitions_def is not None else None,
        description=description or f"The state of {assets.job}: one run, one checkpoint.",
    )(steps)


def op_prefix(assets: JobAssets) -> str:
    """Of the names of a state asset's ops, which Dagster wants unique; the graph shows them without it."""
    return f"{assets.group_name}_{assets.state}_"


def _waiting(update: dg.OpDefinition) -> dg.OpDefinition:
    """The op, with the input by which it waits for its sources."""
    if not isinstance(update, dg.OpDefinition):
        raise InvalidInputError(f"update is the op that does steps 1 to 3: decorate {update!r} with @dg.op")
    data = [name for name in update.ins if name != _AFTER]
    if data:
        raise InvalidInputError(
            f"op {update.name!r} takes {data[0]!r}, which nothing gives it here: read the data inside the "
            "op, for example by the partition of the run"
        )
    if _AFTER in update.ins:
        return update
    return update.with_replaced_properties(name=update.name, ins={_AFTER: dg.In(dg.Nothing)})
