"""What step 1 of a run's batch asks for: by whom, under which key, on what condition.

Owns the translation of Dagster's run into a request. Does not own who then opens the attempt: this process,
which goes on writing (`resources`), or one that hands it to another process (`elsewhere`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.keys import TAG_TAKE_OVER
from dstl_dagster.orchestration.owners import OwnerRuns, root_run_id
from dstl_dagster.orchestration.partitions import partition_of, require_next_partition

__all__ = ["BatchRequest", "Check", "may_take_over", "request_batch"]

Check = Callable[[Checkpoint | None], None]
"""Gets the last completed checkpoint, or `None`, before the attempt is opened; raises to refuse the batch."""


@dataclass(frozen=True)
class BatchRequest:
    """A batch that is to be opened.

    Attributes:
        coordinator: the job's, as the owner that the run is.
        idempotency_key: names the batch.
        take_over: fence another owner's open attempt: any, or only the one of this id.
        check: all that must hold of the parent.
        positions: of sources, once the batch is complete.
    """

    coordinator: CheckpointCoordinator
    idempotency_key: str
    take_over: bool | uuid.UUID
    check: Check
    positions: Mapping[str, Any]


def request_batch(
    context: dg.OpExecutionContext,
    coordinator: CheckpointCoordinator,
    *,
    source: str | None,
    idempotency_key: str | None,
    check: Check | None,
) -> BatchRequest:
    """The request of a run. Arguments as for `ChangelogStorageResource.checkpoint`.

    Raises: InvalidInputError for a `source` in a run without partitions, or in one that covers several.
    """
    run, job = context.run, coordinator.job
    partition = partition_of(context)
    if source is not None and partition is None:
        raise InvalidInputError(
            f"job {job!r}: source {source!r} advances by partition, but this run has none: launch it for "
            "a partition, or leave `source` out and call `batch.move_position`"
        )
    if idempotency_key is None:
        # By the op too: two updates of one job in one run are two batches.
        by_run = f"run:{root_run_id(run)}/{context.op_handle}"
        idempotency_key = by_run if partition is None else partition

    def check_all(parent: Checkpoint | None) -> None:
        if source is not None and partition is not None:
            position = None if parent is None else parent.positions.get(source)
            target = context.assets_def if context.has_assets_def else context.job_def
            require_next_partition(target.partitions_def, partition, position, job=job)
        if check is not None:
            check(parent)

    positions = {} if source is None or partition is None else {source: partition}
    take_over = may_take_over(run, context.instance, coordinator)
    return BatchRequest(coordinator, idempotency_key, take_over, check_all, positions)


def may_take_over(
    run: dg.DagsterRun, instance: dg.DagsterInstance, coordinator: CheckpointCoordinator
) -> bool | uuid.UUID:
    """Whether the run may fence another owner's attempt: any, if its tag says so, or one of a run that ended.

    A run has ended when all its re-executions have. Only the attempt that was looked at may be fenced then:
    another one that opens meanwhile has an owner of its own.
    """
    if run.tags.get(TAG_TAKE_OVER) == "true":
        return True
    opened = coordinator.timeline.tail().open_attempt
    if opened is None or not OwnerRuns(instance).have_ended(opened.owner):
        return False
    return opened.attempt
