"""An asset from one function: the frame that it returns becomes the changes of a checkpoint.

Owns which arguments of an asset it takes, what a function's result becomes, and what an event of it says.
Does not own what the function may ask for (`asset_function`), the batch (`resources`), or how rows are
merged.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import breakable
from dstl_dagster.orchestration.code_location import asset_source, assets_in, is_called_directly
from dstl_dagster.orchestration.define.asset_arguments import (
    deps_in,
    for_dagster,
    require_changelog,
    require_known,
    state_key,
)
from dstl_dagster.orchestration.define.asset_function import CHANGELOG, AssetFunction
from dstl_dagster.orchestration.define.io_manager import KeyedStateIOManager
from dstl_dagster.orchestration.define.merge_rule import MergeRule
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.inject.opening import op_context_of
from dstl_dagster.orchestration.inject.repeated_run import observe_if_unchanged, repeated_checks
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource, FilesInside
from dstl_dagster.orchestration.keys import OPERATOR, TAG_JOB, TAG_STEP, JobAssets
from dstl_dagster.orchestration.partition_order import previous_partition
from dstl_dagster.orchestration.report.events import output_of_state
from dstl_dagster.settings import parse_names
from dstl_dagster.state import columns_of_new

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from dstl_dagster.settings import StateTtlConfig

REFUSED_ARGUMENTS: Final[Mapping[str, str]] = {
    "dagster_type": "the columns of the state have types: say them in `schema`, or by the first rows",
    "output_required": "a run whose batch a checkpoint holds materializes nothing by itself",
    "is_virtual": "a virtual asset has no function",
    "compute_kind": "Dagster's word for it is `kinds`",
    "non_argument_deps": "Dagster's word for it is `deps`",
    "auto_materialize_policy": "Dagster's word for it is `automation_condition`",
    "legacy_freshness_policy": "Dagster's word for it is `freshness_policy`",
    "sources": "Dagster's word for it is `deps`",
    "separate_steps": "its function and steps 4 to 7 are one op; build_state_asset has separate ones",
}
"""The arguments of an asset that mean nothing here, and why."""
_ARGUMENTS: Final = frozenset(inspect.signature(dg.asset).parameters) - {
    "compute_fn",
    "kwargs",
    *REFUSED_ARGUMENTS,
}
_OWN_ARGUMENTS: Final = (
    "`keys`, `update`, `schema`, `delete`, `operator`, `max_parallelism`, `ttl`, `source`, `changelog`"
)


def checkpointed_asset(
    job: str | JobAssets,
    *,
    keys: Sequence[str] = (),
    schema: StructType | str | None = None,
    update: Mapping[str, str | Column] | None = None,
    delete: str | Column | None = None,
    operator: str | None = None,
    max_parallelism: int | None = None,
    ttl: StateTtlConfig | None = None,
    source: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    **asset_arguments: Any,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Decorate a function of a partition's data: an asset of its name, whose rows become one checkpoint a
    run.

    The function is called as `@dagster.asset` calls it: with the context, upstream assets by their names,
    resources by their types, a `config`; and, if it asks for it, with `batch`, the open `CheckpointBatch`,
    with which it reads state and writes files and further operators. It returns the rows: a DataFrame of
    Spark, pandas or Polars, a PyArrow table or reader, a relation of DuckDB; with `batch` it may return
    None. Metadata and results of checks go along as `MaterializeResult(value=rows, metadata=...,
    check_results=[...])`. It is not called for a batch that a completed checkpoint holds. Called in a test,
    the asset runs the function and returns what it returned; only with `batch` that is a checkpoint too.

    An asset that takes this one as an input gets the state in the form of its type hint, at the checkpoint of
    the partition that the mapping gives.

    Args:
        job: the job's name, or its asset keys.
        keys: the key columns of the state.
        update: how a returned row changes the state's row of its key, as in `batch.merge_state`. Without it
            the returned rows replace those of their keys, as in `batch.write_state`.
        schema: the state's columns; required with `update`.
        delete: which keys to delete: with `update` an expression over `old` and `new`, otherwise the name of
            a boolean column.
        operator: where the rows are stored; the function's name by default.
        ttl: how long rows live, as in `batch.merge_state`.
        source: the name under which the checkpoints hold how far the asset is; by default its key. Two
            assets do not share one.
        changelog: where the job lives; without it, the resource named `changelog`.
        asset_arguments: those of `dagster.asset`, with Dagster's meaning; the key is `<job>/<function>`, and
            the group the job's by default. Time partitions depend on the one before them and are applied in
            order, each once; all others in any order. `io_manager_key` names what loads the state into other
            assets, in place of a reader of its own. `backfill_policy`: one partition a run.

    Raises: InvalidInputError, where the decorator stands, for a rule, an argument or a function that cannot
    work.
    """
    if callable(job):
        raise InvalidInputError(
            "@checkpointed_asset needs the name of its job: write @checkpointed_asset('orders', keys=[...])"
        )
    assets = JobAssets.of(job)
    names = parse_names("keys", keys)
    require_known("@checkpointed_asset", asset_arguments, _ARGUMENTS, REFUSED_ARGUMENTS, _OWN_ARGUMENTS)
    require_changelog(changelog)

    def decorate(decorated: Callable[..., Any]) -> dg.AssetsDefinition:
        function = AssetFunction.of(decorated)
        name = function.name
        given = MergeRule(operator or name, names, update, schema, delete, max_parallelism, ttl)
        _require_rule(name, given, function.takes_batch)
        rule = given if names else None
        key = state_key(assets, name, asset_arguments)
        assets.require_own_source(source or asset_source(key), asset_source(key))
        # With `batch` it writes as it goes.
        operators = None if rule is None or function.takes_batch else (rule.operator,)
        work = {"source": source, "by_definition": True, "operators": operators, "keys": names}
        runs = _Runs(assets, function, rule, changelog, work)
        arguments = _arguments(assets, key, runs, asset_arguments)
        # Dagster takes resources by parameters or by keys, and not by both.
        by_key = bool(arguments.get("required_resource_keys"))
        if by_key and changelog is None:
            arguments["required_resource_keys"] = {*arguments["required_resource_keys"], CHANGELOG}
        with warnings.catch_warnings():
            # Of arguments that the caller did not choose.
            warnings.simplefilter("ignore", dg.BetaWarning)
            made = dg.asset(**arguments)(
                function.as_asked(runs.run, context=True, changelog=changelog is None and not by_key)
            )
            arguments.pop("io_manager_def", None)  # a call stores and loads nothing
            asks = False if changelog is not None or by_key else (True if function.takes_batch else None)
            called = dg.asset(**arguments)(
                function.as_asked(runs.call, context=function.takes_batch, changelog=asks)
            )
            return _CheckpointedAsset(called=called, **made.get_attributes_dict())

    return decorate


class _CheckpointedAsset(dg.AssetsDefinition):
    """The asset, which runs its function when it is called, and checks the resources of its op on load."""

    def __init__(self, *, called: dg.AssetsDefinition | None = None, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._called = called  # `None` in the copies that Dagster makes

    def get_resource_requirements(self) -> Iterator[Any]:
        yield from super().get_resource_requirements()
        yield FilesInside(self.op)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) if self._called is None else self._called(*args, **kwargs)


@dataclass(frozen=True)
class _Runs:
    """The work of a run of the asset. Without a rule the function writes the rows; `work`: as of
    `request_batch`.
    """

    assets: JobAssets
    function: AssetFunction
    rule: MergeRule | None
    changelog: ChangelogStorageResource | None
    work: Mapping[str, Any]

    def run(self, context: Any, given: dict[str, Any]) -> Any:
        """In a run: steps 1 to 7, and the events of the asset."""
        if is_called_directly(context):  # a copy that Dagster made of the asset
            return self.call(context, given)
        return self._events(context, given)

    def call(self, context: Any, given: dict[str, Any]) -> Any:
        """In a test: the function, and with `batch` an attempt of its own around it."""
        if not self.function.takes_batch:
            return self.function.call(context, given, None)
        with (
            self.opened(context, given) as resource,
            resource.opened_batch(op_context_of(context), self.assets.job, **self.work) as batch,
        ):
            if batch.already_in is not None:
                return None
            result = self.function.call(context, {**given, CHANGELOG: resource}, batch)
            self._add(batch, _Result.of(result, self.function.name))
        return result

    def _events(self, context: Any, given: dict[str, Any]) -> Iterator[Any]:
        op_context = op_context_of(context)
        key = op_context.asset_key
        assets = assets_in(op_context, self.assets.of_state(key))
        result = _Result()
        with self.opened(context, given) as resource:
            with resource.opened_batch(op_context, assets.job, completes=assets, **self.work) as batch:
                if batch.already_in is None:
                    returned = self.function.call(context, {**given, CHANGELOG: resource}, batch)
                    result = _Result.of(returned, self.function.name)
                    self._add(batch, result)
            attempt = batch.attempt
            unchanged = batch.already_in is not None
            if unchanged:
                checks = repeated_checks(op_context, attempt)
                if observe_if_unchanged(op_context, assets, attempt):
                    yield from checks
                    return
                result = replace(result, checks=checks)
            made = output_of_state(op_context, assets, resource.coordinator(assets.job), attempt)
            yield made._replace(
                asset_key=key,
                metadata={
                    **(made.metadata or {}),
                    **_column_lineage(op_context, given, self.rule),
                    **result.metadata,
                },
                tags={**(made.tags or {}), **result.tags},
                check_results=list(result.checks),
            )

    @contextmanager
    def opened(self, context: Any, given: Mapping[str, Any]) -> Iterator[ChangelogStorageResource]:
        """The resource that is bound to the asset, or the one that Dagster passed."""
        if self.changelog is None:
            yield given.get(CHANGELOG) or context.resources.changelog
        else:
            with self.changelog.process_config_and_initialize_cm() as resource:
                yield resource

    def _add(self, batch: Any, result: _Result) -> None:
        name = self.function.name
        if self.rule is None:
            if result.rows is not None:
                raise InvalidInputError(
                    f"{name}() returned {type(result.rows).__name__}: name `keys`, or write it by `batch`"
                )
        elif result.rows is not None:
            self.rule.write(result.rows, batch.write_state, batch.merge_state)
        elif not self.function.takes_batch:
            raise InvalidInputError(
                f"{name}() returned None: return its rows, for a partition without any an empty frame"
            )


@dataclass(frozen=True)
class _Result:
    """What a function returned, taken apart."""

    rows: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    checks: Sequence[dg.AssetCheckResult] = ()

    @classmethod
    def of(cls, returned: Any, name: str) -> _Result:
        """Raises: InvalidInputError for results that come without their rows."""
        # Dagster's own results are tuples too.
        parts = returned if type(returned) is tuple else (returned,)
        checks = [each for each in parts if isinstance(each, dg.AssetCheckResult)]
        others = [each for each in parts if not isinstance(each, dg.AssetCheckResult)]
        if len(others) > 1:
            raise InvalidInputError(
                f"{name}() returned {len(others)} values: return one frame, and results of checks beside it"
            )
        rows = others[0] if others else None
        if isinstance(rows, dg.MaterializeResult | dg.Output) and rows.data_version is not None:
            raise InvalidInputError(
                f"{name}(): the data version is the checkpoint's: leave `data_version` out"
            )
        if isinstance(rows, dg.MaterializeResult):
            value = None if rows.value is _NO_VALUE else rows.value
            return cls(value, rows.metadata or {}, rows.tags or {}, (*(rows.check_results or ()), *checks))
        if isinstance(rows, dg.Output):
            return cls(rows.value, rows.metadata or {}, rows.tags or {}, checks)
        return cls(rows, checks=checks)


def _column_lineage(
    context: dg.OpExecutionContext, given: Mapping[str, Any], rule: MergeRule | None
) -> dict[str, dg.TableColumnLineage]:
    """Of which columns of the assets that are parameters an update rule makes each column, by their names. A
    name that none of them has, or several, says nothing.
    """
    if rule is None or rule.update is None:
        return {}
    above: dict[str, set[dg.AssetKey]] = {}
    for name in set(given) & set(context.op_def.ins):
        for column in _columns_of(given[name]):
            above.setdefault(column, set()).add(context.asset_key_for_input(name))
    made_of = {column: columns_of_new(text) for column, text in rule.update.items() if isinstance(text, str)}
    made_of |= {key: {key} for key in rule.keys}
    deps = {
        column: [
            dg.TableColumnDep(asset_key=key, column_name=name)
            for name in sorted(names)
            for key in above.get(name, ())
            if len(above[name]) == 1 and key != context.asset_key
        ]
        for column, names in made_of.items()
    }
    known = {column: found for column, found in deps.items() if found}
    return {"dagster/column_lineage": dg.TableColumnLineage(known)} if known else {}


def _columns_of(frame: Any) -> set[str]:
    if hasattr(frame, "collect_schema"):  # Polars, also where it is lazy
        return set(frame.collect_schema().names())
    names = getattr(frame, "column_names", None)  # Arrow's `columns` are those themselves
    return {str(name) for name in (getattr(frame, "columns", ()) if names is None else names)}


_NO_VALUE: Final[Any] = dg.MaterializeResult().value


def _arguments(
    assets: JobAssets, key: dg.AssetKey, runs: _Runs, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of `dagster.asset`: the caller's, and ours beside or in place of what was left out."""
    made = for_dagster(
        assets,
        key,
        arguments,
        pool=assets.pool,
        retry_policy=DEFAULT_RETRY_POLICY,
        description=inspect.getdoc(runs.function.function),
    )
    ordered = isinstance(made.get("partitions_def"), dg.TimeWindowPartitionsDefinition)
    deps = deps_in(made.get("deps"), key if ordered else None)
    if ordered and key not in {_key_of_input(name, each) for name, each in made.get("ins", {}).items()}:
        deps.append(dg.AssetDep(key, partition_mapping=previous_partition()))
    operator = {} if runs.rule is None else {OPERATOR: breakable(runs.rule.operator)}
    reader = {} if {"io_manager_key", "io_manager_def"} & set(made) else {"io_manager_def": _reader(runs)}
    return {
        **made,
        **reader,
        "deps": deps,
        "metadata": {TAG_JOB: assets.job, **operator, **made.get("metadata", {})},
        "op_tags": {TAG_STEP: "1-7", **made.get("op_tags", {})},
        "output_required": False,
    }


def _key_of_input(name: str, given: dg.AssetIn) -> dg.AssetKey:
    prefix = given.key_prefix or []
    return given.key or dg.AssetKey([*([prefix] if isinstance(prefix, str) else prefix), name])


def _reader(runs: _Runs) -> dg.IOManagerDefinition:
    """Loads the state into other assets. The asset itself has nothing to store for Dagster."""
    spark = runs.function.spark
    required = {each for each in (spark, CHANGELOG if runs.changelog is None else None) if each}

    @dg.io_manager(  # type: ignore[arg-type] # it does take a generator
        required_resource_keys=required, description="Loads the state of a job."
    )
    def reader(context: dg.InitResourceContext) -> Iterator[KeyedStateIOManager]:
        with runs.opened(context, {}) as resource:
            session = None if spark is None else getattr(context.resources, spark)
            yield KeyedStateIOManager(changelog=resource, spark=session)

    return reader


def _require_rule(name: str, rule: MergeRule, takes_batch: bool) -> None:
    if rule.keys:
        rule.require_fitting(name)
    elif not (rule.update is None and rule.schema is None and rule.delete is None):
        raise InvalidInputError(f"{name}: `update`, `schema` and `delete` need `keys`")
    elif not takes_batch:
        raise InvalidInputError(f"{name}: give `keys`, or take `batch` and write by it")
