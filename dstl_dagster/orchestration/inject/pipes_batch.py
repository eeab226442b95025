"""A batch whose driver is another process: Dagster does step 1, waits, and takes up the report.

Owns that wait: the input of the other process, what it must have left, and how its attempt ends if it fails.
Does not own starting it (any Pipes client of Dagster's), or what it does (`dstl_dagster.pipes`).

Why this is safe. The report in the store is the hand-over, and nothing else is. If the other process dies,
there is none, and the attempt is aborted here. If this process dies, the attempt stays open, and the next try
of the run fences it: what the other process still writes belongs to a dead attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator
from dstl_dagster.errors import ConflictError, DstlError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.keyed import AttemptReport, load_report
from dstl_dagster.orchestration.inject.batch_log import log_opened, log_persisted
from dstl_dagster.orchestration.inject.opening import BatchRequest, refusing
from dstl_dagster.orchestration.inject.repeated_run import log_repeated
from dstl_dagster.pipes import HandedBatch


@dataclass
class PipesBatch:
    """An open batch that another process writes.

    Attributes:
        attempt: the open one, or the one that completed the batch earlier.
        parent: the checkpoint that it builds on; `None` for a job's first batch, or one that is applied.
        report: what the other process handed over; `None` until it has.
    """

    attempt: Attempt
    parent: Checkpoint | None = None
    _handed: HandedBatch | None = None
    report: AttemptReport | None = None

    @property
    def already_in(self) -> int | None:
        """The completed checkpoint that already holds the batch; `None`: launch a process for it."""
        return self.attempt.checkpoint_id if self._handed is None else None

    @property
    def reference(self) -> dg.Output[dict[str, Any]]:
        """What the op returns: the attempt as plain JSON, the input of the next step.

        As an `Output`, which Dagster demands of an asset's op that has used Pipes, once all is done.
        """
        return dg.Output(self.attempt.to_json())

    @property
    def extras(self) -> dict[str, Any]:
        """For the Pipes client: what `open_batch` takes up in the other process. Plain JSON, no secret.

        Raises: ConflictError (kind `already_applied`) for a batch that a checkpoint holds.
        """
        if self._handed is None:
            raise ConflictError(
                f"this batch is already in checkpoint {self.already_in}: launch nothing for it",
                kind=ErrorKind.ALREADY_APPLIED,
            )
        return self._handed.to_extras()


@contextmanager
def open_pipes_batch(context: dg.OpExecutionContext, request: BatchRequest) -> Iterator[PipesBatch]:
    """Step 1 on entry; on exit the report of steps 2 and 3, which must be there.

    Raises: as step 1; FencedError if the other process gave up permanently, or another run took over;
    NotFoundError (kind `not_written`) if it ended well without a hand-over. Any other error in the
    block ends the attempt, and is raised again.
    """
    coordinator, store_uri = request.coordinator, request.coordinator.store.uri
    if store_uri.startswith("memory:"):
        raise InvalidInputError(
            f"the process that writes the batch cannot see {store_uri}: use gs://bucket, or a folder "
            "file:///... that its machine sees too"
        )
    cost = coordinator.running_cost()
    with refusing(context, coordinator.job):
        applied = coordinator.applied_batch(request.key, request.claim)
        if applied is not None:
            log_repeated(context, coordinator.job, applied, request.key)
        else:
            attempt, parent = request.taken(coordinator.open)
    if applied is not None:
        yield PipesBatch(applied)
        return
    handed = HandedBatch(attempt, request.claim, coordinator.job_options, cost.so_far())
    batch = PipesBatch(attempt, parent, handed)
    log_opened(context, batch)
    try:
        yield batch
        batch.report = _report_of(coordinator, attempt)
    except BaseException as error:
        ended = _aborted(context, coordinator, attempt, error)
        if ended is not None and isinstance(error, Exception):
            raise ended from error
        raise
    log_persisted(context, batch)


def _report_of(coordinator: CheckpointCoordinator, attempt: Attempt) -> AttemptReport:
    try:
        return load_report(coordinator.store, attempt)
    except NotFoundError as error:
        raise NotFoundError(
            f"checkpoint {attempt.checkpoint_id} of job {attempt.job!r} was handed to no process, or to one "
            "that ended without handing it back: the launched program must do its work in "
            "`with open_batch(pipes) as batch:`, and the client must wait for its end",
            kind=ErrorKind.NOT_WRITTEN,
        ) from error


def _aborted(
    context: dg.OpExecutionContext, coordinator: CheckpointCoordinator, attempt: Attempt, error: BaseException
) -> ConflictError | None:
    """Abort the attempt. Returns why it had ended already: the other process gave up, or another owner took
    over.
    """
    why = None
    with suppress(DstlError):  # what failed in the block says more
        try:
            coordinator.require_open(attempt)
        except ConflictError as ended:
            why = ended
    try:
        coordinator.abort(attempt, f"{type(error).__name__}: {error}")
    except DstlError as failed:
        # The run's next try fences it.
        context.log.warning(f"attempt {attempt.attempt} was not aborted: {failed}")
    return why
