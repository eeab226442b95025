"""Where an IO manager writes an output, and how: from its name, its metadata and its partitions.

Owns what the metadata means, and what of it goes together. Does not own writing or loading (`io_manager`), or
the columns of a table's partitions (`partition_columns`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import unbroken, validated_job
from dstl_dagster.orchestration.code_location import step_of
from dstl_dagster.orchestration.define.merge_rule import MergeRule
from dstl_dagster.orchestration.define.partition_columns import PartitionColumns
from dstl_dagster.orchestration.define.rerun import Rerun
from dstl_dagster.orchestration.keys import OF_ASSET, job_of_output
from dstl_dagster.settings import StateTtlConfig, parse_names

_PREFIX: Final = "dstl/"
_KNOWN: Final = ("keys", "update", "schema", "delete", "job", "operator", "ttl", "ttl_column", "rerun")
_PARTITION_EXPR: Final = "partition_expr"
_MODES: Final = ("merge", "overwrite")


class _Name(NamedTuple):
    """What an output is called: in errors, as a job, and as an operator."""

    where: str
    job: str
    operator: str

    @classmethod
    def of_asset(cls, key: dg.AssetKey) -> _Name:
        return cls(f"asset {key.to_user_string()}", job_of_output(key, {}), key.path[-1])

    @classmethod
    def of_op(cls, context: dg.OutputContext, step: Any) -> _Name:
        """`job.op.output`; a step's key has the graphs around its op, and the mapping key behind it. An asset
        is in each job that selects it, and in Dagster's own: of its ops the first part is `asset`.
        """
        of_asset = step is not None and step.job_def.asset_layer.executable_asset_keys
        parts = [
            OF_ASSET if of_asset else context.job_name,
            context.step_key,
            context.name,
            *filter(None, [context.mapping_key]),
        ]
        names = re.findall(r"\w+", ".".join(parts))
        return cls(f"output {'/'.join(parts)}", ".".join(names).lstrip("_"), context.step_key)


@dataclass(frozen=True)
class Target:
    """How one output is written, or what of it an input wants.

    Attributes:
        where: the asset or output, for errors.
        rule: what becomes of rows, unless they replace others.
        replaces: rows take the place of all rows of their partitions; without partitions, of all.
        rerun: what a new run of a partition does.
        definition: of the asset's partitions; `None`: it has none.
        table: the columns of these partitions; `None`: the state is cumulative.
        partitions: that are written or wanted; `None`: there are none.
        columns: that are wanted; `None`: all.
        names_job, names_operator: the metadata name the job, and the operator.
    """

    where: str
    job: str
    rule: MergeRule
    replaces: bool = False
    rerun: Rerun = Rerun.REPLACE
    definition: dg.PartitionsDefinition[Any] | None = None
    table: PartitionColumns | None = None
    partitions: Sequence[str] | None = None
    columns: tuple[str, ...] | None = None
    names_job: bool = False
    names_operator: bool = False

    @staticmethod
    def named(metadata: Mapping[str, Any]) -> list[str]:
        """What of this metadata is for an IO manager, whether it has a meaning or not."""
        return [name for name in metadata if name.startswith(_PREFIX) or name == _PARTITION_EXPR]

    @classmethod
    def of_asset(
        cls, key: dg.AssetKey, metadata: Mapping[str, Any], definition: dg.PartitionsDefinition[Any] | None
    ) -> Target:
        """Of an asset as it is defined. Raises: InvalidInputError for metadata that cannot be followed."""
        return cls._of(_Name.of_asset(key), metadata, definition)

    @classmethod
    def of_output(cls, context: dg.OutputContext) -> Target:
        """Of an output that is written. Raises: InvalidInputError, also for a run of several partitions."""
        # A run may choose the mode, by `context.add_output_metadata`.
        chosen = {name: value for name, value in context.output_metadata.items() if name == "mode"}
        metadata = {**context.definition_metadata, **chosen}
        if not context.has_asset_key:
            return cls._of(_Name.of_op(context, step_of(context)), metadata, None)
        step = step_of(context)
        if step is None:  # a test has built the context, which knows no definition
            target = cls._of(_Name.of_asset(context.asset_key), metadata, None)
            return replace(target, partitions=[context.partition_key] if context.has_partition_key else None)
        definition = step.job_def.asset_layer.get(context.asset_key).partitions_def
        target = cls._of(_Name.of_asset(context.asset_key), metadata, definition)
        partitions = list(context.asset_partition_keys) if context.has_asset_partitions else None
        if definition is not None and partitions is None:
            raise InvalidInputError(
                f"{target.where} has partitions, and this run is for none: launch it for one"
            )
        if partitions is not None and target.table is None and len(partitions) != 1:
            raise InvalidInputError(
                f"{target.where}: the run covers {len(partitions)} partitions, and a checkpoint of "
                "a cumulative state holds one: give the asset BackfillPolicy.multi_run(1); or partition_expr "
                "if a partition is to have rows of its own"
            )
        return replace(target, partitions=partitions)

    @classmethod
    def of_input(cls, context: dg.InputContext) -> Target:
        """Of an output that is loaded. Raises: as `of_output`."""
        upstream = context.upstream_output
        metadata = {} if upstream is None else upstream.definition_metadata
        columns = (context.definition_metadata or {}).get("columns")
        wanted = None if columns is None else parse_names("columns", columns)
        if not context.has_asset_key:
            if upstream is None:
                raise InvalidInputError(f"input {context.name!r} is of no output that was written")
            name = _Name.of_op(upstream, step_of(context))
            return replace(cls._of(name, metadata, None), columns=wanted)
        partitions, definition = None, None
        if context.has_asset_partitions:
            partitions, definition = list(context.asset_partition_keys), context.asset_partitions_def
        target = cls._of(_Name.of_asset(context.asset_key), metadata, definition, is_written=False)
        return replace(target, partitions=partitions, columns=wanted)

    @classmethod
    def _of(
        cls,
        name: _Name,
        metadata: Mapping[str, Any],
        definition: dg.PartitionsDefinition[Any] | None,
        *,
        is_written: bool = True,
    ) -> Target:
        where = name.where
        raw = {key: getattr(value, "value", value) for key, value in metadata.items()}
        given = {key.removeprefix(_PREFIX): value for key, value in raw.items() if key.startswith(_PREFIX)}
        for key in given:
            if key not in _KNOWN:
                known = ", ".join(_PREFIX + each for each in _KNOWN)
                raise InvalidInputError(f"{where}: metadata {_PREFIX}{key} means nothing; known are {known}")
        keys = parse_names(f"{where}: {_PREFIX}keys", given.get("keys", ()))
        if is_written and not keys:
            raise InvalidInputError(
                f'{where}: name the key columns of its state, as metadata={{"dstl/keys": ["customer"]}}'
            )
        table = None
        if _PARTITION_EXPR in raw and (is_written or definition is not None):
            table = PartitionColumns.of(
                raw["partition_expr"], definition, keys if is_written else None, where
            )
        mode = raw.get("mode", "merge" if table is None else "overwrite")
        if mode not in _MODES:
            raise InvalidInputError(f"{where}: mode {mode!r} is none of {', '.join(_MODES)}")
        replaces = mode == "overwrite"
        if table is not None and not replaces:
            raise InvalidInputError(
                f"{where}: with partition_expr a run replaces its partitions: leave mode out"
            )
        if replaces and table is None and definition is not None:
            raise InvalidInputError(
                f"{where}: mode overwrite would delete the rows of all other partitions: name by "
                "partition_expr the column that says whose a row is, and a run replaces its own"
            )
        for key in ("update", "delete") if replaces else ():
            if key in given:
                raise InvalidInputError(
                    f"{where}: {_PREFIX}{key} merges into rows that "
                    f"{'partition_expr' if table else 'mode overwrite'} replaces: leave one of them out"
                )
        rule = MergeRule(
            operator=unbroken(given.get("operator") or name.operator),
            keys=keys,
            update=given.get("update"),
            schema=given.get("schema"),
            delete=given.get("delete"),
            ttl=StateTtlConfig.from_texts(given.get("ttl"), given.get("ttl_column")),
        )
        if is_written:
            rule.require_fitting(where)
        return cls(
            where,
            validated_job(given.get("job") or name.job),
            rule,
            replaces,
            _rerun(given.get("rerun"), where, repeats=definition is not None and table is None),
            definition,
            table,
            names_job="job" in given,
            names_operator="operator" in given,
        )


def _rerun(word: object, where: str, *, repeats: bool) -> Rerun:
    if word is None:
        return Rerun.REPLACE
    if not repeats:
        raise InvalidInputError(
            f"{where}: {_PREFIX}rerun is for partitions of a cumulative state; here each run has its effect"
        )
    try:
        return Rerun(word)  # type: ignore[arg-type] # checked by this
    except ValueError as error:
        hint = ": Dagster writes a materialization for all that an IO manager takes" if word == "skip" else ""
        raise InvalidInputError(
            f"{where}: {_PREFIX}rerun is {' or '.join(Rerun)}, not {word!r}{hint}"
        ) from error
