"""Where a run looks for the assets and jobs of its code location."""

from __future__ import annotations

import contextlib
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterInvalidPropertyError  # no public name; since Dagster 0.9
from dagster._core.execution.context.invocation import BaseDirectExecutionContext  # likewise
from dagster_shared.check import CheckError

from dstl_dagster.checkpoint import Checkpoint
from dstl_dagster.orchestration.keys import TAG_JOB, TAG_STEP, JobAssets

_NOTHING = "Nothing"
"""The key of Dagster's type of that name: an input of it waits for a step, and is handed nothing."""


def code_location(context: Any) -> dg.RepositoryDefinition | None:
    """The definitions around a run; `None` for an execution in process, which has none."""
    with contextlib.suppress(CheckError):
        found: dg.RepositoryDefinition = context.repository_def
        return found
    return None


def maintenance_job(definitions: dg.RepositoryDefinition | None, job: str, work: str) -> str | None:
    """The name of the Dagster job that does this work for a job, by its usual name; `None` if there is none.

    Not by all jobs: Dagster refuses to load those of definitions in which two ops have one name.
    """
    name = f"{JobAssets(job).group_name}_{work}"
    if definitions is None or not definitions.has_job(name):
        return None
    found = definitions.get_job(name)
    steps = {node.definition.tags.get(TAG_STEP) for node in found.graph.nodes}
    return name if found.tags.get(TAG_JOB) == job and work in steps else None


def asset_source(key: dg.AssetKey) -> str:
    """The source that an asset is, unless it names another one; and the writer, where it does."""
    return f"asset:{key.to_user_string()}"


def unselected(job: dg.JobDefinition) -> dg.JobDefinition:
    """The job that a run selects its assets or ops from."""
    while (selected := job.asset_selection_data or job.op_selection_data) is not None:
        job = selected.parent_job_def
    return job


def assets_in(context: dg.OpExecutionContext, assets: JobAssets) -> JobAssets:
    """The same with the keys that the run's code location, or its job, has for them."""
    found = assets.found_in(unselected(context.job_def).asset_layer.asset_graph.asset_nodes)
    definitions = code_location(context)
    if definitions is not None:
        found = found.found_in(definitions.asset_graph.asset_nodes)
    own = context.assets_def.keys if context.has_assets_def else ()
    states = [key for key in own if key in found.state_keys]
    return found.of_state(states[0]) if states else found


def state_of(
    assets: JobAssets, checkpoint: Checkpoint, definitions: dg.RepositoryDefinition | None
) -> JobAssets | None:
    """The same with the asset that made the checkpoint; `None` where another one did."""
    source = checkpoint.source
    by = "" if source is None else source.by
    made_by = [key for key in assets.state_keys if asset_source(key) == by]
    if made_by:
        return assets.of_state(made_by[0])
    if len(assets.state_keys) > 1:
        return None
    # What no asset made is shown by the only one, unless that has operators of its own and this is of others;
    # an external one shows whatever is made.
    graph = None if definitions is None else definitions.asset_graph
    shown = assets.state_key
    is_external = graph is not None and graph.has(shown) and not graph.get(shown).is_executable
    written = () if source is None else source.operators
    own = [each for each in checkpoint.manifest.sources.values() if each.by == asset_source(shown)]
    is_anothers = by.startswith("asset:") or (own and written and not set(own[0].operators) & set(written))
    return assets if is_external or not is_anothers else None


def definition_of(context: dg.OpExecutionContext) -> dg.PartitionsDefinition[Any] | None:
    """Of the asset that the op belongs to, or of its job; `None` where a test calls it, which has neither."""
    if context.has_assets_def:
        return context.assets_def.partitions_def
    try:
        return context.job_def.partitions_def
    except DagsterInvalidPropertyError:
        return None


def is_called_directly(context: object) -> bool:
    """Whether a test has built the context of an op: there is no run then."""
    return isinstance(context, BaseDirectExecutionContext)


def steps_behind(context: dg.OpExecutionContext, *, by_value: bool = False) -> list[Any]:
    """The steps that this run executes and that wait for this one, directly or not. `by_value`: those that
    may have been handed what it returned, and wait not for its end alone.
    """
    step = context.get_step_execution_context()
    own, plan = step.step.key, step.execution_plan
    behind, before = {own}, set[str]()
    while behind != before:
        before = {*behind}
        behind |= {
            each.key
            for each in plan.step_dict.values()
            for given in each.step_inputs
            if not (by_value and given.dagster_type_key == _NOTHING) and behind & _given_by(given)
        }
    # Not by the plan: in a process of its own it executes one step.
    chosen = behind if context.run.step_keys_to_execute is None else context.run.step_keys_to_execute
    executed = behind.intersection(chosen) - {own}
    return [each for each in plan.step_dict.values() if each.key in executed]


def _given_by(given: Any) -> set[str]:
    """The keys of the steps that an input is of; of a mapped step, or of all mapped ones, another method."""
    mapped = getattr(given, "get_step_output_handle_deps_with_placeholders", None)
    return {handle.step_key for handle in (mapped or given.get_step_output_handle_dependencies)()}


def step_of(context: dg.OpExecutionContext | dg.OutputContext | dg.InputContext) -> Any:
    """The run's step; `None` for a context that a test has built, and for `load_asset_value`."""
    if isinstance(context, dg.OpExecutionContext):
        return None if is_called_directly(context) else context.get_step_execution_context()
    try:
        return context.step_context
    except dg.DagsterInvariantViolationError:
        return None
