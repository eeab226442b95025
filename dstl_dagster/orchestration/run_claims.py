"""A run's claim about its batch: which asset or op writes, and what its partitions are, in a job's words.

Does not own whether that fits the job (`checkpoint.claims`), or which partition is next (`partition_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterInvalidPropertyError  # no public name; since Dagster 0.9

from dstl_dagster.checkpoint import Claim
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import Measure
from dstl_dagster.orchestration.code_location import asset_source, code_location, step_of, unselected
from dstl_dagster.orchestration.keys import TAG_IGNORE_UNCLAIMED
from dstl_dagster.orchestration.partitions import window_key

_KINDS = (
    (dg.StaticPartitionsDefinition, "static partitions"),
    (dg.DynamicPartitionsDefinition, "dynamic partitions"),
)
TABLE = "partitions of a table"
"""The measure of an asset whose runs replace their partitions."""
_RUNS, _KEYS, _IN_ORDER, _ANY_ORDER = "runs", "keys", "time partitions", "time partitions in any order"


def claim_of_op(
    context: dg.OpExecutionContext,
    definition: dg.PartitionsDefinition[Any] | None,
    *,
    source: str | None,
    own_key: bool,
    ordered: bool,
    operators: tuple[str, ...] | None = None,
) -> Claim:
    """Of an op, or of the asset that it belongs to. `own_key`: the batch is not named by the run's partition.

    Raises: InvalidInputError in a run of a part of what the op makes.
    """
    by = (
        asset_source(_whole_asset(context.assets_def))
        if context.has_assets_def
        else f"op:{_op_name(context)}"
    )
    # All that the op makes is one writer, whichever of its assets names it.
    own = {asset_source(key) for key in context.assets_def.keys} if context.has_assets_def else {by}
    is_defined = _is_defined(context)
    measure = Measure(_KEYS) if own_key else _measure(definition, ordered=ordered)
    return Claim(
        source or by,
        by,
        measure,
        operators,
        is_defined=lambda name: name not in own and is_defined(name),
        ignore_unclaimed=context.run_tags.get(TAG_IGNORE_UNCLAIMED) == "true",
    )


def _whole_asset(definition: dg.AssetsDefinition) -> dg.AssetKey:
    """The asset that stands for all that the op makes. A batch is all of it: of a part, the rest of the rows
    would count as applied.
    """
    made = {*definition.node_keys_by_output_name.values(), *definition.keys}
    left = sorted(each.to_user_string() for each in made.difference(definition.keys))
    if left:
        raise InvalidInputError(
            f"this run leaves out {left[0]}, which the same op makes, and a batch is all that an op makes: "
            "select all of its assets, or make an asset of its own of what writes the state"
        )
    return min(made)


def _op_name(context: dg.OpExecutionContext) -> str:
    try:
        return str(context.op_handle)
    except DagsterInvalidPropertyError:
        return context.op_def.name


def claim_of_output(
    context: dg.OutputContext, operator: str, columns: Mapping[str, str] | None, *, is_alone: bool
) -> Claim:
    """Of an asset, or an op's output, whose rows an IO manager writes. `columns`: of a table's partitions.
    `is_alone`: as of `Claim`.
    """
    step = step_of(context)
    definition = None
    if context.has_asset_key:
        source = by = asset_source(context.asset_key)
        if step is not None and context.has_asset_partitions:
            definition = context.asset_partitions_def
    else:
        by = f"op:{context.name if step is None else step.node_handle}"
        source = f"{by}/{'/'.join(filter(None, [context.name, context.mapping_key]))}"
    # A run replaces its partitions, so no batch counts as applied: the columns may be others.
    table = None if columns is None else Measure(TABLE, {}, {"columns": ", ".join(columns.values())})
    return Claim(
        source,
        by,
        table or _measure(definition, ordered=True),
        (operator,),
        is_defined=(lambda _by: True) if step is None else _is_defined(step),
        ignore_unclaimed=step is not None and step.dagster_run.tags.get(TAG_IGNORE_UNCLAIMED) == "true",
        is_alone=is_alone and step is not None,
    )


def _measure(definition: dg.PartitionsDefinition[Any] | None, *, ordered: bool) -> Measure:
    if definition is None:
        return Measure(_RUNS)
    if isinstance(definition, dg.TimeWindowPartitionsDefinition):
        schedule = {
            "schedule": definition.cron_schedule,
            "time zone": definition.timezone,
            "format": definition.fmt,
        }
        bounds = {
            "start": window_key(definition.start),
            "end": None if definition.end is None else window_key(definition.end),
            "exclusions": [str(each) for each in definition.exclusions or ()],
        }
        # In order, an instant says which one is next, under any schedule. Else a name alone does.
        return Measure(_IN_ORDER, {}, schedule | bounds) if ordered else Measure(_ANY_ORDER, schedule, bounds)
    if isinstance(definition, dg.MultiPartitionsDefinition):
        parts = {
            each.name: _measure(each.partitions_def, ordered=False) for each in definition.partitions_defs
        }
        fixed = {name: {"kind": part.kind, **part.fixed} for name, part in sorted(parts.items())}
        return Measure("multi-dimensional partitions", fixed)
    kind = next((said for cls, said in _KINDS if isinstance(definition, cls)), type(definition).__name__)
    return Measure(kind)


def _is_defined(context: Any) -> Callable[[str], bool]:
    """Whether the asset or op of this name is in the run's code location, or in its job if there is none."""

    def is_defined(by: str) -> bool:
        try:
            jobs = [unselected(context.job_def)]
        except DagsterInvalidPropertyError:
            return True  # a test calls one of them: it says nothing of the others
        definitions = code_location(context)
        jobs += definitions.get_all_jobs() if definitions is not None else ()
        return any(is_in_job(by, job) for job in jobs)

    return is_defined


def is_in_job(by: str, job: dg.JobDefinition) -> bool:
    """Whether a job executes the asset or op of this name."""
    kind, _, name = by.partition(":")
    if kind == "asset":
        return dg.AssetKey.from_user_string(name) in job.asset_layer.executable_asset_keys
    return kind == "op" and name in map(str, job.graph.iterate_node_handles())
