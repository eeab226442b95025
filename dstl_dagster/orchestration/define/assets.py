"""A job as assets: the state as a graph of retryable ops; beside it operators, files and checkpoints.

Owns the specs and their dependencies. Does not own what the ops do (`steps`) or what events say (`events`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import breakable
from dstl_dagster.orchestration.define.asset_arguments import (
    deps_in,
    for_dagster,
    require_changelog,
    require_known,
    state_key,
)
from dstl_dagster.orchestration.define.ops import build_steps
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import OPERATOR, SAMPLE, TAG_ASSET, TAG_JOB, AssetRole, JobAssets
from dstl_dagster.orchestration.partition_order import previous_partition
from dstl_dagster.settings import parse_names

_AFTER = "after"
_REFUSED: Final = {
    "sources": "Dagster's word for it is `deps`",
    "ins": "its op takes no data: read them inside it, or let @checkpointed_asset take them as parameters",
    "backfill_policy": "a checkpoint holds one partition, so a run is for one",
    "check_specs": "its ops give no results of checks: @checkpointed_asset's function does",
    "op_tags": "give them to the op",
    "pool": "give it to the op",
    "config_schema": "give it to the op",
    "io_manager_key": "its ops store nothing; @checkpointed_asset has it, for what loads the state",
}
_NOT_OF_OURS: Final = {"compose_fn", "partitions_def", "config", "resource_defs", "kwargs", *_REFUSED}
_TAKEN: Final = {*inspect.signature(dg.graph_asset).parameters, "freshness_policy"} - _NOT_OF_OURS


def checkpoint_asset_specs(
    job: str | JobAssets,
    *,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    owners: Sequence[str] = (),
    kinds: Sequence[str] = (),
    freshness: timedelta | None = None,
    deps: Iterable[Any] | None = None,
    file_columns: dg.TableSchema | None = None,
    group_name: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> list[dg.AssetSpec]:
    """The external assets of a job: state by operator, output files, checkpoints.

    Their materializations are reported by the steps (files by step 6, the others by step 5) or, for a job
    that runs outside Dagster, by `build_checkpoint_sensor`.

    Args:
        job: the job's name, its asset keys, or the asset of its state, upstream of these;
            `JobAssets.operators` are the operators shown.
        partitions_def: of the job's state and files. Checkpoints have one dynamic partition for each that
            can be restored now.
        kinds: added to our own on each asset, for example `gcs`; Dagster shows three at most.
        freshness: the freshness policy of checkpoints fails once the last one is older than this, and warns
            at three quarters of it.
        deps: the assets that a job outside Dagster reads: adds `<job>/state` downstream of them. Not for a
            job whose state is an asset that Dagster runs.
        file_columns: the columns of the output files.
        group_name, tags: of all of them; the group is by default the job's. For changes of single ones, map
            over the specs: `[spec.replace_attributes(...) for spec in specs]`, anything but the key.
    """
    assets = JobAssets.of(job)
    assets.require_own_names()
    more_kinds, owned = parse_names("kinds", kinds), list(parse_names("owners", owners))

    def spec(key: dg.AssetKey, role: AssetRole, kind: str, description: str, **more: Any) -> dg.AssetSpec:
        return dg.AssetSpec(
            key=key,
            deps=more.pop("deps", [assets.state_key]),
            kinds={kind, *more_kinds},
            description=description,
            group_name=group_name or assets.group_name,
            owners=owned,
            tags={**(tags or {}), TAG_JOB: assets.job, TAG_ASSET: role.value},
            **more,
        )

    specs = [
        spec(
            assets.operator_key(operator),
            AssetRole.OPERATOR,
            "table",
            f"The state of operator {operator}: its rows by key.",
            metadata={OPERATOR: breakable(operator), **({SAMPLE: assets.sample} if assets.sample else {})},
        )
        for operator in assets.operators
    ]
    if deps is not None:
        described = f"The state of {assets.job}, which runs outside Dagster."
        specs.append(spec(assets.state_key, AssetRole.STATE, "pyspark", described, deps=deps_in(deps)))
    specs.append(
        spec(
            assets.files_key,
            AssetRole.FILES,
            "file",
            "Output files, published exactly once by step 6 (compose-commit).",
            partitions_def=partitions_def,
            metadata=None if file_columns is None else {"dagster/column_schema": file_columns},
        )
    )
    specs.append(
        spec(
            assets.checkpoints_key,
            AssetRole.CHECKPOINTS,
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


def build_state_asset(
    job: str | JobAssets,
    update: dg.OpDefinition,
    *,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    deps: Iterable[Any] = (),
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
    separate_steps: bool = False,
    changelog: ChangelogStorageResource | None = None,
    **asset_arguments: Any,
) -> dg.AssetsDefinition:
    """The state of a job as an asset backed by two ops: update (steps 1 to 3) and complete (steps 4 to 7).

    Args:
        job: the job's name, or its asset keys.
        update: the user's op, which returns `batch.reference`. It takes no data: an input `after` of type
            `Nothing`, by which it waits for `deps`, is added if the op does not have it.
        partitions_def: each partition is one run and one checkpoint. With time partitions the asset depends
            on its own previous one, so that a backfill runs them in order. All others, such as static,
            dynamic and multi-dimensional ones, have no order: each is applied once, whichever comes first.
        deps: the assets that `update` reads, as of `dagster.asset`; an `AssetDep` brings a partition mapping.
        retry_policy: of what stands behind `update`, which brings its own.
        separate_steps: `persist`, `confirm`, `compose_commit` and `cleanup` as ops of their own instead of
            `complete`: each shows and is retried alone, and costs a process where steps have their own.
        changelog: for what stands behind `update`: where the job lives; without it, the resource named
            `changelog`.
        asset_arguments: `name`, `key_prefix`, `key`, `group_name`, `kinds`, `owners`, `description`, `tags`,
            `metadata`, `code_version`, `automation_condition`, `freshness_policy`, `hooks`: as of
            `dagster.asset`. The key is `<job>/state` and the group the job's by default.

    Raises: InvalidInputError for an `update` that takes data, an argument that means nothing here, a text
    where names are wanted, or a `changelog` that cannot be used.
    """
    assets = JobAssets.of(job)
    require_known(
        "build_state_asset", asset_arguments, _TAKEN, _REFUSED, "`deps`, `separate_steps`, `changelog`"
    )
    key = state_key(assets, "state", asset_arguments)
    assets.require_own_names()
    require_changelog(changelog)
    prefix = f"{key.to_python_identifier()}_"
    complete = build_steps(
        update,
        lambda _job: assets.of_state(key),
        separate_steps=separate_steps,
        prefix=prefix,
        retry_policy=retry_policy,
        pool=assets.pool,
        ends=True,
        changelog=changelog,
    )
    first = _waiting(update).alias(update.name.removeprefix(prefix))
    ordered = isinstance(partitions_def, dg.TimeWindowPartitionsDefinition)
    listed = deps_in(deps, key if ordered else None)
    ins = {f"dep_{place}": _waits_for(dep) for place, dep in enumerate(listed)}
    if ordered:
        ins["previous"] = dg.AssetIn(key=key, dagster_type=dg.Nothing, partition_mapping=previous_partition())
    described = f"The state of {assets.job}: one run, one checkpoint."
    arguments = for_dagster(assets, key, asset_arguments, description=described)
    freshness_policy = arguments.pop("freshness_policy", None)
    arguments["kinds"] = set(parse_names("kinds", arguments.get("kinds") or ("pyspark",)))
    arguments["owners"] = list(parse_names("owners", arguments.get("owners") or ())) or None
    made: dg.AssetsDefinition = dg.graph_asset(ins=ins, partitions_def=partitions_def, **arguments)(
        _graph_of(first, complete, ins)
    )
    if freshness_policy is None:
        return made
    return made.map_asset_specs(lambda spec: spec.replace_attributes(freshness_policy=freshness_policy))


def _graph_of(
    first: Callable[..., Any], complete: Callable[[Any], Any], inputs: Iterable[str]
) -> Callable[..., Any]:
    def steps(**upstream: Any) -> Any:
        return complete(first(after=list(upstream.values())) if upstream else first())

    # Dagster reads the graph's inputs from the signature, and their number is the caller's choice.
    steps.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # functions do take one
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in inputs]
    )
    return steps


def _waits_for(given: Any) -> dg.AssetIn:
    dep = given if isinstance(given, dg.AssetDep) else dg.AssetDep(given)
    return dg.AssetIn(key=dep.asset_key, partition_mapping=dep.partition_mapping, dagster_type=dg.Nothing)


def _waiting(update: dg.OpDefinition) -> dg.OpDefinition:
    """The op, with the input by which it waits for its `deps`."""
    data = [name for name in update.ins if name != _AFTER]
    if data:
        raise InvalidInputError(
            f"op {update.name!r} takes {data[0]!r}, which nothing gives it here: read the data inside the "
            "op, for example by the partition of the run"
        )
    if _AFTER in update.ins:
        return update
    return update.with_replaced_properties(name=update.name, ins={_AFTER: dg.In(dg.Nothing)})
