"""A run of a partition that a checkpoint holds: whether it repeats the run that wrote it, and what it may do.

Owns both questions for a batch that an IO manager completes. A retry, or whatever tries a step again that
had not succeeded, is the same execution, whose batch is applied once, with the rows of its last try. Anything
else that Dagster runs again is meant to have an effect of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.orchestration.keys import TAG_FAIL_IF_APPLIED
from dstl_dagster.orchestration.owners import root_run_id, run_of_batch, run_of_owner
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
    """`before`: the tags of its parent. A step that had not succeeded is tried again, by whichever button."""
    said = [tag for tag in (_RETRY, *_RESUMED) if tag in run.tags]
    if any(run.tags[tag] != before.get(tag) for tag in said):
        return True
    return not _had_succeeded(run, step_key, instance)


def _had_succeeded(run: dg.DagsterRun, step_key: str, instance: dg.DagsterInstance) -> bool:
    """In the last run before this one that tried the step."""
    before: dg.DagsterRun | None = run
    while before is not None and before.parent_run_id is not None:
        for each in instance.get_run_step_stats(before.parent_run_id, [step_key]):
            if each.status is not None:
                return each.status.value == "SUCCESS"
        before = instance.get_run_by_id(before.parent_run_id)
    return False


def is_repeat(
    coordinator: CheckpointCoordinator, applied: Attempt, run: dg.DagsterRun, is_shown: Callable[[], bool]
) -> bool:
    """Whether a further try of the execution that applied this batch finds it done: where others build on
    it. Else its rows take the place of those of the try before, which Dagster has not taken for a success: a
    check of them may have failed, and their source been repaired.

    `is_shown`: whether the try before came as far as its event.

    Raises: ConflictError (kind `already_applied`) where it did, and other runs build on it.
    """
    last = coordinator.latest()
    if _is_last(last, applied):
        return False
    others = last is None or run_of_owner(last.entry.completed.owner) != root_run_id(run)
    if others and is_shown():
        raise _refused(coordinator, applied, "and later ones build on it")
    return True


def require_replaceable(
    coordinator: CheckpointCoordinator, applied: Attempt, rerun: Rerun, run: dg.DagsterRun
) -> None:
    """Pass if the batch of this attempt, which another execution wrote, may be applied anew.

    Raises: ConflictError (kind `already_applied`).
    """
    last = coordinator.latest()
    if run.tags.get(TAG_FAIL_IF_APPLIED) == "true":
        why = f"and this run has the tag {TAG_FAIL_IF_APPLIED}"
    elif rerun is Rerun.REFUSE:
        why = "and dstl/rerun is refuse"
    elif _is_last(last, applied):
        return
    elif last is not None and last.checkpoint_id == applied.checkpoint_id:
        why = "with all others of the job whose state this one took over"
    else:
        why = "and later ones build on it"
    raise _refused(coordinator, applied, why)


def _is_last(last: Checkpoint | None, applied: Attempt) -> bool:
    """Whether the last checkpoint holds the batch of this attempt, and that alone."""
    return (
        last is not None
        and last.checkpoint_id == applied.checkpoint_id
        and last.entry.completed.batch == applied.batch
    )


def _refused(coordinator: CheckpointCoordinator, applied: Attempt, why: str) -> ConflictError:
    key, held = str(applied.batch), applied.checkpoint_id
    what = f"partition {key}" if run_of_batch(key) is None else "the batch of this run"
    return ConflictError(
        f"{what} is already in checkpoint {held} of job {coordinator.job!r}, {why}: nothing was changed. "
        f"To make it again, with all after it: dstl checkpoints correct {key}",
        kind=ErrorKind.ALREADY_APPLIED,
    )
