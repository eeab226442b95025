"""A run of a partition that a checkpoint holds: whether it repeats the run that wrote it, and what it may do.

Owns both questions for a batch that an IO manager completes. A retry, or a resume from failure, is the same
execution, and finds its batch done; anything else that Dagster runs again is meant to have an effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import dagster as dg

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.orchestration.keys import TAG_FAIL_IF_APPLIED
from dstl_dagster.timeline import Attempt

_RESUMED = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")
_RETRY = "dagster/retry_number"
"""Of a run that Dagster launches after a failure. As one of `_RESUMED` it is copied to what a person
re-executes: one that the run before has as well says nothing.
"""


class Rerun(StrEnum):
    """The effect of a new run of a partition that a checkpoint holds."""

    REPLACE = "replace"  # its rows take the place of those of the former run
    REFUSE = "refuse"  # it fails


def execution_of(run: dg.DagsterRun, step_key: str, instance: dg.DagsterInstance) -> str:
    """The id of the run, or of the one that it resumes at this step: what has one id is one execution."""
    while run.parent_run_id is not None:
        parent = instance.get_run_by_id(run.parent_run_id)
        if not _resumes(run, {} if parent is None else parent.tags, step_key, instance):
            break
        if parent is None:
            return run.parent_run_id
        run = parent
    return run.run_id


def _resumes(
    run: dg.DagsterRun, before: Mapping[str, str], step_key: str, instance: dg.DagsterInstance
) -> bool:
    """`before`: the tags of its parent."""
    said = [tag for tag in (_RETRY, *_RESUMED) if tag in run.tags]
    if any(run.tags[tag] != before.get(tag) for tag in said):
        return True
    # Python's `ReexecutionOptions.from_failure` sets no tag. Steps that had succeeded run anew.
    may_resume = bool(said) or run.step_keys_to_execute is not None
    return may_resume and not _had_succeeded(run, step_key, instance)


def _had_succeeded(run: dg.DagsterRun, step_key: str, instance: dg.DagsterInstance) -> bool:
    """In the last run before this one that tried the step."""
    before: dg.DagsterRun | None = run
    while before is not None and before.parent_run_id is not None:
        for each in instance.get_run_step_stats(before.parent_run_id, [step_key]):
            if each.status is not None:
                return each.status.value == "SUCCESS"
        before = instance.get_run_by_id(before.parent_run_id)
    return False


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
