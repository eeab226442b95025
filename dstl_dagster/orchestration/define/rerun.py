"""A run of a partition that a checkpoint holds: whether it repeats the run that wrote it, and what it may do.

Owns both questions for a batch that an IO manager completes. A retry, or a resume from failure, is the same
execution, and finds its batch done; anything else that Dagster runs again is meant to have an effect.
"""

from __future__ import annotations

from enum import StrEnum

import dagster as dg

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.orchestration.keys import TAG_FAIL_IF_APPLIED
from dstl_dagster.timeline import Attempt

_RESUMED = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")
_RETRY = "dagster/retry_number"
"""Of a run that Dagster launches after a failure: a person's re-execution of it does not have this tag."""


class Rerun(StrEnum):
    """The effect of a new run of a partition that a checkpoint holds."""

    REPLACE = "replace"  # its rows take the place of those of the former run
    REFUSE = "refuse"  # it fails


def execution_of(run: dg.DagsterRun, step_key: str, instance: dg.DagsterInstance) -> str:
    """The id of the run, or of the one that it resumes at this step: what has one id is one execution."""
    while run.parent_run_id is not None and _resumes(run, step_key, instance):
        parent = instance.get_run_by_id(run.parent_run_id)
        if parent is None:
            return run.parent_run_id
        run = parent
    return run.run_id


def _resumes(run: dg.DagsterRun, step_key: str, instance: dg.DagsterInstance) -> bool:
    if _RETRY in run.tags or any(run.tags.get(tag) == "true" for tag in _RESUMED):
        return True
    # Python's `ReexecutionOptions.from_failure` sets no tag. Chosen steps that had succeeded run anew.
    if run.step_keys_to_execute is None or run.parent_run_id is None:
        return False
    stats = instance.get_run_step_stats(run.parent_run_id, [step_key])
    return not any(each.status is not None and each.status.value == "SUCCESS" for each in stats)


def require_replaceable(
    coordinator: CheckpointCoordinator, applied: Attempt, rerun: Rerun, run: dg.DagsterRun
) -> None:
    """Pass if the batch of this attempt, which another execution wrote, may be applied anew.

    Raises: ConflictError (kind `already_applied`).
    """
    job, held, key = coordinator.job, applied.checkpoint_id, str(applied.batch)
    said = f"partition {key} is already in checkpoint {held} of job {job!r}"
    if run.tags.get(TAG_FAIL_IF_APPLIED) == "true":
        why = f"and this run has the tag {TAG_FAIL_IF_APPLIED}"
    elif rerun is Rerun.REFUSE:
        why = "and dstl/rerun is refuse"
    else:
        last = coordinator.latest()
        if last is None or last.checkpoint_id != held:
            why = "and later ones build on it"
        elif last.entry.completed.batch == applied.batch:
            return
        else:
            why = "with all others of the job whose state this one took over"
    raise ConflictError(
        f"{said}, {why}: nothing was changed. To make it again, with all after it: "
        f"dstl checkpoints correct {key}",
        kind=ErrorKind.ALREADY_APPLIED,
    )
