"""A job as assets: the state as a graph of retryable ops; beside it operators, files and checkpoints.

Owns the specs and their dependencies. Does not own what the ops do (`steps`) or what events say (`lineage`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.keys import TAG_JOB, JobAssets
from dstl_dagster.orchestration.ops import build_steps
from dstl_dagster.orchestration.resources import ChangelogStorageResource
from dstl_dagster.orchestration.store_check import with_store_check
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
    sources: Sequence[dg.AssetKey | dg.AssetDep] | None = None,
    file_columns: dg.TableSchema | None = None,
    group_name: str | None = None,
    tags: Mapping[str, str] | None = None,
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
        group_name, tags: of all of them; the group is by default the job's. For changes of single ones, map
            over the specs: `[spec.replace_attributes(...) for spec in specs]`, anything but the key.
    """
    assets = JobAssets.of(job)
    assets.require_own_names()
    if isinstance(sources, str | dg.AssetKey | dg.AssetDep):
        raise InvalidInputError(f"sources: expected asset keys in a list, such as [{sources!r}]")
    common = {
        "group_name": group_name or assets.group_name,
        "owners": list(parse_names("owners", owners)),
        "tags": {**(tags or {}), TAG_JOB: assets.job},
    }
    spec = partial(_spec, assets, common, parse_names("kinds", kinds))
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
    common: Mapping[str, Any],
    kinds: Sequence[str],
    key: dg.AssetKey,
    kind: str,
    description: str,
    **more: Any,
) -> dg.AssetSpec:
    return dg.AssetSpec(
        key=key,
        deps=more.pop("deps", [assets.state_key]),
        kinds={kind, *kinds},
        description=description,
        **common,
        **more,
    )


def build_state_asset(
    job: str | JobAssets,
    update: dg.OpDefinition,
    *,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    sources: Sequence[dg.AssetKey | dg.AssetDep] = (),
    kinds: Collection[str] | None = None,
    owners: Sequence[str] = (),
    description: str | None = None,
    group_name: str | None = None,
    tags: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    code_version: str | None = None,
    automation_condition: dg.AutomationCondition[Any] | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
    separate_steps: bool = False,
    changelog: ChangelogStorageResource | None = None,
) -> dg.AssetsDefinition:
    """The state of a job as an asset backed by two ops: update (steps 1 to 3) and complete (steps 4 to 7).

    Args:
        job: the job's name, or its asset keys.
        update: the user's op, which returns `batch.reference`. It takes no data: an input `after` of type
            `Nothing`, by which it waits for its sources, is added if the op does not have it.
        partitions_def: each partition is one run and one checkpoint. With time partitions the asset depends
            on its own previous one, so that a backfill runs them in order. All others, such as static,
            dynamic and multi-dimensional ones, have no order: each is applied once, whichever comes first.
        sources: the assets that `update` reads; an `AssetDep` brings a partition mapping.
        kinds, owners, description, group_name, tags, metadata, code_version, automation_condition: as of
            `dagster.asset`. The group is by default the job's.
        retry_policy: of what stands behind `update`, which brings its own.
        separate_steps: `persist`, `confirm`, `compose_commit` and `cleanup` as ops of their own instead of
            `complete`: each shows and is retried alone, and costs a process where steps have their own.
        changelog: for what stands behind `update`: where the job lives; without it, the resource named
            `changelog`.

    Raises: InvalidInputError for an `update` that takes data, a text where names are wanted, or a `changelog`
    that cannot be used.
    """
    assets = JobAssets.of(job)
    assets.require_own_names()
    update, owners = _waiting(update), parse_names("owners", owners)
    if isinstance(sources, str | dg.AssetKey | dg.AssetDep):
        raise InvalidInputError(f"sources: expected asset keys in a list, such as [{sources!r}]")
    if changelog is not None and not isinstance(changelog, ChangelogStorageResource):
        raise InvalidInputError(f"changelog is a ChangelogStorageResource(uri=...), not {changelog!r}")
    if changelog is not None:
        changelog.require_valid()
    prefix = op_prefix(assets)
    complete = build_steps(
        lambda _job: assets,
        separate_steps=separate_steps,
        prefix=prefix,
        retry_policy=retry_policy,
        pool=assets.pool,
        ends=True,
        changelog=changelog,
    )
    first = with_store_check(update).alias(update.name.removeprefix(prefix))
    ins = {f"source_{place}": _waits_for(source) for place, source in enumerate(sources)}
    if isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        ins["previous"] = dg.AssetIn(
            key=assets.state_key,
            dagster_type=dg.Nothing,
            partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1),
        )
    return dg.graph_asset(
        name=assets.state,
        key_prefix=[assets.group_name],
        ins=ins,
        partitions_def=partitions_def,
        group_name=group_name or assets.group_name,
        kinds=set(parse_names("kinds", kinds or ("pyspark",))),
        owners=list(owners) or None,
        tags={**(tags or {}), TAG_JOB: assets.job},
        metadata=metadata,
        code_version=code_version,
        automation_condition=automation_condition,
        backfill_policy=dg.BackfillPolicy.multi_run(1) if partitions_def is not None else None,
        description=description or f"The state of {assets.job}: one run, one checkpoint.",
    )(_graph_of(first, complete, ins))


def _graph_of(
    first: Callable[..., Any], complete: Callable[[Any], Any], inputs: Iterable[str]
) -> Callable[..., Any]:
    """The function by which Dagster composes the graph."""

    def steps(**upstream: Any) -> Any:
        return complete(first(after=list(upstream.values())) if upstream else first())

    # Dagster reads the graph's inputs from the signature, and their number is the caller's choice.
    steps.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # functions do take one
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in inputs]
    )
    return steps


def _waits_for(source: dg.AssetKey | dg.AssetDep) -> dg.AssetIn:
    dep = source if isinstance(source, dg.AssetDep) else dg.AssetDep(source)
    return dg.AssetIn(key=dep.asset_key, partition_mapping=dep.partition_mapping, dagster_type=dg.Nothing)


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
