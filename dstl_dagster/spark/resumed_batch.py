"""Steps 2 and 3 of a batch that another process opened, and whose steps 4 to 7 run outside this one.

Owns what a driver does that shares its attempt with a platform's retries of itself. Does not own how it hears
of the attempt (`dstl_dagster.pipes`), or the batch's methods (`batch`).

Why this is safe. The process that opened the attempt waits for this one, and ends the attempt if it fails. A
platform may start a driver again, beside a zombie of the first: both write under one attempt, under names of
their own, and only one report of an attempt can be stored, which is one driver's whole work. So a driver that
fails leaves the attempt as it is, for the next one; it aborts it only where the next one would fail alike.
"""

from __future__ import annotations

import logging
from typing import Final

from dstl_dagster.checkpoint import Attempt, Batch, CheckpointCoordinator, Claim, Opening
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import (
    ClosedError,
    ConflictError,
    ErrorKind,
    FormatError,
    InternalError,
    InvalidInputError,
    NotFoundError,
)
from dstl_dagster.keyed import load_report
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.storage import Cost, RunningCost

log = logging.getLogger(__name__)

_FINAL: Final = (InvalidInputError, NotFoundError, FormatError, ClosedError, InternalError)
"""Another try of the same program meets them again. Not a ConflictError: that is the other driver's."""


class ResumedBatch(CheckpointBatch):
    """The batch of an attempt that is open already. Leaving normally stores its report, where step 4 looks.

    `already_in` is set, and there is nothing to write, if the attempt has its report or has completed its
    checkpoint: a driver before this one did the work.

    Args:
        coordinator: of the attempt's job, on a store that is the attempt's.
        claim: about the batch, of the program that opened the attempt.
        trigger: the cost of step 1 where it was done.
        clock, progress: as for `CheckpointBatch`.
        is_again: the program has opened the batch before. If it has handed it over, ConflictError (kind
            `already_applied`) on entering.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        attempt: Attempt,
        *,
        claim: Claim | None = None,
        trigger: Cost | None = None,
        clock: Clock | None = None,
        progress: Progress | None = None,
        is_again: bool = False,
    ) -> None:
        super().__init__(coordinator, Opening(attempt.batch, claim=claim), clock=clock, progress=progress)
        self._given = attempt
        self._trigger = trigger
        self._is_again = is_again

    def _find_applied(self) -> Attempt | None:
        try:
            self._coordinator.require_open(self._given)
        except ConflictError as error:
            if error.kind != ErrorKind.ALREADY_COMPLETED:
                raise
            return self._given
        try:
            load_report(self._coordinator.store, self._given)
        except NotFoundError:
            return None
        if self._is_again:
            raise ConflictError(
                "this program has handed its batch over in an earlier block, and this one would write "
                "nothing: write both in one block",
                kind=ErrorKind.ALREADY_APPLIED,
            )
        return self._given

    def _begin(self, cost: RunningCost) -> Batch:
        return Batch.resume(
            self._coordinator,
            self._given,
            claim=self._opening.claim,
            trigger=self._trigger,
            cost=cost,
            clock=self._clock or SystemClock(),
            aborted_by=_FINAL,
        )

    def _end(self, batch: Batch) -> None:
        try:
            super()._end(batch)
        except ConflictError as error:
            if error.kind != ErrorKind.OTHER_REPORT:
                raise
            log.warning("another driver has handed over attempt %s: its work counts", self._given.attempt)
