"""An asset from one function: the DataFrame that it returns becomes the changes of a checkpoint.

Owns what such a function may ask for, and what its result becomes. Does not own the asset's steps (`assets`),
or how rows are merged (`spark`).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.assets import build_state_asset, op_prefix
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.merge_rule import MergeRule, is_spark_rows
from dstl_dagster.orchestration.program import asset_source
from dstl_dagster.orchestration.resources import ChangelogStorageResource
from dstl_dagster.settings import parse_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from dstl_dagster.settings import StateTtlConfig
    from dstl_dagster.spark import CheckpointBatch

__all__ = ["checkpointed_asset"]

_CONTEXT: Final = "context"
_BATCH: Final = "batch"
_CHANGELOG: Final = "changelog"

_Keyword = inspect.Parameter.KEYWORD_ONLY


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
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    source: str | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
    changelog: ChangelogStorageResource | None = None,
    **asset_arguments: Any,
) -> Callable[[Callable[..., DataFrame | None]], dg.AssetsDefinition]:
    """Decorate a function of a partition's data: its result becomes the asset `<job>/state`, one checkpoint.

    The function may take Dagster's `context`, resources by their types, a `config`, and `batch`, the open
    `CheckpointBatch`, with which it reads state and writes files and further operators. The DataFrame that it
    returns is written to `operator`; with `batch` it may return None and write everything itself. It is not
    called for a batch that a completed checkpoint holds.

    Args:
        job: the job's name, or its asset keys.
        keys: the key columns of the state.
        update: how a returned row changes the state's row of its key, as in `batch.merge_state`. Without it
            the returned rows replace those of their keys, as in `batch.write_state`.
        schema: the state's columns; required with `update`.
        delete: which keys to delete: with `update` an expression over `old` and `new`, otherwise the name of
            a boolean column.
        operator: where the rows are kept; the function's name by default.
        ttl: how long rows live, as in `batch.merge_state`.
        partitions_def: each is applied once: time partitions in order, others in any.
        source: the name under which the checkpoints hold how far the asset is; by default its key. Two
            assets do not share one.
        retry_policy: of all ops.
        changelog: where the job lives; without it, the resource named `changelog`.
        asset_arguments: passed on to `build_state_asset`: `sources`, `kinds`, `owners`, `tags`,
            `code_version`, `automation_condition`, `separate_steps`, ...

    Raises: InvalidInputError, where the decorator stands, for a rule or a function that cannot work.
    """
    assets = JobAssets.of(job)
    names = parse_names("keys", keys)

    def decorate(function: Callable[..., DataFrame | None]) -> dg.AssetsDefinition:
        name = function.__name__
        rule = None
        if names:
            rule = MergeRule(operator or name, names, update, schema, delete, max_parallelism, ttl)
        parameters = _parameters(function)
        _require_rule(
            name, rule, takes_batch=_BATCH in parameters, update=update, schema=schema, delete=delete
        )

        work: dict[str, Any] = {
            "source": source,
            "ordered": isinstance(partitions_def, dg.TimeWindowPartitionsDefinition),
            # With `batch` it writes as it goes.
            "operators": None if rule is None or _BATCH in parameters else (rule.operator,),
        }
        assets.require_own_source(source or asset_source(assets.state_key), asset_source(assets.state_key))

        def compute(context: dg.OpExecutionContext, **given: Any) -> dict[str, Any]:
            with _opened(changelog, given) as resource:
                asked = {**given, _CHANGELOG: resource}
                with resource.opened_batch(context, assets.job, **work) as batch:
                    if batch.already_in is None:
                        _add(batch, rule, name, _call(function, parameters, context, batch, asked))
                return batch.reference

        signature = _signature(parameters, injected=changelog is None)
        compute.__signature__ = signature  # type: ignore[attr-defined]  # functions do take one
        # By these, Dagster before 1.13.24 tells resources from inputs.
        compute.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        op = dg.op(
            name=op_prefix(assets) + name,
            description=inspect.getdoc(function),
            out=dg.Out(dict),
            retry_policy=retry_policy,
            pool=assets.pool,
        )(compute)
        described = {"description": inspect.getdoc(function), **asset_arguments}
        return build_state_asset(
            assets,
            op,
            partitions_def=partitions_def,
            retry_policy=retry_policy,
            changelog=changelog,
            **described,
        )

    return decorate


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The function's, with types instead of their names."""
    hints = typing.get_type_hints(function)
    return {
        name: parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in inspect.signature(function).parameters.items()
    }


@contextmanager
def _opened(
    changelog: ChangelogStorageResource | None, given: Mapping[str, Any]
) -> Iterator[ChangelogStorageResource]:
    """The resource that is bound to the asset, or the one that Dagster has given."""
    if changelog is None:
        yield given[_CHANGELOG]
    else:
        with changelog.process_config_and_initialize_cm() as resource:
            yield resource


def _signature(parameters: Mapping[str, inspect.Parameter], *, injected: bool) -> inspect.Signature:
    """What Dagster sees: the context, the function's resources and config, and the changelog."""
    asked = [
        inspect.Parameter(name, _Keyword, annotation=parameter.annotation)
        for name, parameter in parameters.items()
        if name not in {_CONTEXT, _BATCH, _CHANGELOG}
    ]
    context = inspect.Parameter(
        _CONTEXT, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=dg.OpExecutionContext
    )
    changelog = inspect.Parameter(_CHANGELOG, _Keyword, annotation=ChangelogStorageResource)
    return inspect.Signature([context, *asked, *([changelog] if injected else [])], return_annotation=dict)


def _call(
    function: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    context: dg.OpExecutionContext,
    batch: CheckpointBatch,
    given: Mapping[str, Any],
) -> Any:
    known = {**given, _CONTEXT: context, _BATCH: batch}
    return function(**{name: known[name] for name in parameters})


def _add(batch: CheckpointBatch, rule: MergeRule | None, name: str, result: Any) -> None:
    if result is None and rule is None:
        return
    if not is_spark_rows(result):
        wanted = "None, because it has no keys" if rule is None else "the DataFrame of its rows"
        raise InvalidInputError(f"{name}() returned {type(result).__name__}: expected {wanted}")
    if rule is None:
        raise InvalidInputError(f"{name}() returned a DataFrame: name its keys, or write it by `batch`")
    rule.write(result, batch.write_state, batch.merge_state)


def _require_rule(
    name: str,
    rule: MergeRule | None,
    takes_batch: bool,
    update: Mapping[str, Any] | None,
    schema: StructType | str | None,
    delete: str | Column | None,
) -> None:
    if rule is None:
        if update is not None or schema is not None or delete is not None:
            raise InvalidInputError(f"{name}: `update`, `schema` and `delete` need `keys`")
        if not takes_batch:
            raise InvalidInputError(f"{name}: give `keys`, or take `batch` and write by it")
    elif update is not None and schema is None:
        raise InvalidInputError(f"{name}: `update` needs `schema`, the columns of the state")
    elif update is None and schema is not None:
        raise InvalidInputError(f"{name}: `schema` is for `update`; rows that replace others have their own")
    elif update is None and delete is not None and not isinstance(delete, str):
        raise InvalidInputError(f"{name}: without `update`, `delete` names a boolean column")
