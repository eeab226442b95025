"""Steps 4 to 7 in the op that did steps 1 to 3, where no later step of the run does them.

Owns telling whether one does. Does not own the steps (`steps`), or the ops that do them elsewhere (`ops`).
"""

from __future__ import annotations

import dagster as dg

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.orchestration.keys import TAG_STEP, JobAssets
from dstl_dagster.orchestration.steps import Step, clean_up, compose_commit, confirm, persist

__all__ = ["complete_unless_later"]

_FIRST_LATER = ("4", "4-7")


def complete_unless_later(
    context: dg.OpExecutionContext, coordinator: CheckpointCoordinator, attempt: Attempt
) -> None:
    """Complete the checkpoint, if no step behind this one does: else the batch would be in none, ever.

    Raises: as the steps. A retry of the op finds the batch applied, or opens another attempt.
    """
    if _is_completed_later(context):
        return
    step = Step(context, JobAssets.defined(coordinator.job), coordinator)
    persist(step, attempt)
    confirm(step, attempt)
    compose_commit(step, attempt.checkpoint_id, attempt=attempt)
    clean_up(step)


def _is_completed_later(context: dg.OpExecutionContext) -> bool:
    """Whether a step of the run that depends on this one, directly or not, is step 4."""
    step = context.get_step_execution_context()
    plan = step.execution_plan
    upstream = plan.get_all_step_deps()
    behind, found = {step.step.key}, {step.step.key}
    while found:
        found = {key for key, deps in upstream.items() if not behind.isdisjoint(deps)} - behind
        behind |= found
    later = (each for each in plan.step_dict.values() if each.key in behind)
    return any((each.tags or {}).get(TAG_STEP) in _FIRST_LATER for each in later)
