"""When a step of a run may open an attempt: at once, in place of a dead one, or after one of its own run.

Two steps of a run may write one job; a run does not wait for another run's, which may take days.

Owns the decision, by what Dagster says of the owner's run and step. Does not own step 1 (`checkpoint`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.orchestration.keys import TAG_TAKE_OVER
from dstl_dagster.orchestration.owners import OwnerRuns, root_run_id, run_of_owner, step_of_owner
from dstl_dagster.timeline import Opened

T = TypeVar("T")
TakeOver = bool | uuid.UUID
_LOOK_AGAIN_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Turn:
    """A step's turn to write a job. `context`: of the step in its run."""

    context: Any
    coordinator: CheckpointCoordinator
    clock: Clock = field(default_factory=SystemClock)

    def taken(self, opening: Callable[[TakeOver], T]) -> T:
        """Open an attempt once no other step of the run has one open; `opening` gets what it may fence.

        Raises: ConflictError (kind `attempt_open`) while another run's is open, or one of this run's that a
        later step completes; and as `opening` does.
        """
        while True:
            take_over = self._may_fence()
            try:
                return opening(take_over)
            except ConflictError as error:
                opened = self.coordinator.timeline.seen().open_attempt
                if error.kind != ErrorKind.ATTEMPT_OPEN or opened is None or not self._is_beside(opened):
                    raise

    def _may_fence(self) -> TakeOver:
        """Any attempt, if the run's tag says so. Else the open one, and no other that opens meanwhile, where
        its run has ended with all re-executions, or its step of this run.
        """
        if self.context.dagster_run.tags.get(TAG_TAKE_OVER) == "true":
            return True
        owners = OwnerRuns(self.context.instance)
        waits_for = done = None
        while True:
            opened = self.coordinator.timeline.tail().open_attempt
            if opened is None:
                return False
            if not self._is_beside(opened):
                return opened.attempt if owners.have_ended(opened.owner) else False
            where = f"checkpoint {opened.checkpoint_id} of job {self.coordinator.job!r}"
            other = f"step {step_of_owner(opened.owner)} of this run"
            if owners.are_trying(opened.owner):
                if waits_for != opened.attempt:
                    self.context.log.info(f"{other} makes {where}: waiting for it")
                waits_for = opened.attempt
                self.clock.sleep_seconds(_LOOK_AGAIN_SECONDS)
            elif not owners.have_done(opened.owner):
                return opened.attempt
            elif done != opened.attempt:
                done = opened.attempt  # its end may have come since it was seen open
            else:
                raise ConflictError(
                    f"{other} has begun {where}, and a later step completes it: let this one depend on that",
                    kind=ErrorKind.ATTEMPT_OPEN,
                )

    def _is_beside(self, opened: Opened) -> bool:
        """Whether another step of this run has opened it."""
        step = step_of_owner(opened.owner)
        own = self.context.step.key
        root = root_run_id(self.context.dagster_run)
        return step not in (None, own) and run_of_owner(opened.owner) == root
