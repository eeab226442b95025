"""Steps 4 to 7 in the op that did steps 1 to 3, where no later step of the run does them.

Owns telling whether one does. Does not own the steps (`steps`), or the ops that do them elsewhere (`ops`).
"""

from __future__ import annotations

import dagster as dg

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.keyed import load_report
from dstl_dagster.orchestration.inject.opening import is_called_directly
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.report.steps import (
    Step,
    clean_up,
    compose_commit,
    confirm,
    is_complete,
    persist,
)
from dstl_dagster.orchestration.tags import TAG_STEP

_FIRST_LATER = ("4", "4-7")


def complete(
    context: dg.OpExecutionContext, coordinator: CheckpointCoordinator, attempt: Attempt, assets: JobAssets
) -> None:
    """Steps 4 to 7, in this process.

    Raises: as the steps. A retry of the op finds the batch applied, or opens another attempt.
    """
    if is_called_directly(context):  # by a test: no run reports anything
        if not is_complete(coordinator, attempt):
            coordinator.record_report(attempt, load_report(coordinator.store, attempt))
            coordinator.confirm(attempt)
        coordinator.compose_commit(attempt.checkpoint_id, attempt=attempt)
        return
    step = Step(context, assets, coordinator)
    persist(step, attempt)
    confirm(step, attempt)
    compose_commit(step, attempt.checkpoint_id, attempt=attempt)
    clean_up(step)


def is_completed_later(context: dg.OpExecutionContext) -> bool:
    """Whether a step of the run that depends on this one, directly or not, is step 4 of the same batch.

    Else the batch would be in no checkpoint, ever.
    """
    if is_called_directly(context):
        return False
    step = context.get_step_execution_context()
    plan = step.execution_plan
    upstream = plan.get_all_step_deps()
    behind, found = {step.step.key}, {step.step.key}
    while found:
        found = {key for key, deps in upstream.items() if not behind.isdisjoint(deps)} - behind
        behind |= found
    own = step.step.node_handle.path[:-1]
    later = (each for each in plan.step_dict.values() if each.key in behind)
    # Another asset's step 4, of a graph that this op is not in, is that of another batch.
    return any(
        (each.tags or {}).get(TAG_STEP) in _FIRST_LATER and own[: len(path)] == path
        for each in later
        for path in [each.node_handle.path[:-1]]
    )
