"""Attempts of an action that race until one wins: which failures are worth another one, and the losers.

Does not own the policy (`storage.RetryPolicy`), what an attempt does, or the threads (executor and timer are
injected).

A timed-out attempt is not interrupted: it runs on beside its successor, and whichever succeeds first wins.
Every other result is discarded.

Source: Flink's `RetryPolicy` and `RetryingExecutor`. There, a Java `Error` leaves the action pending for
ever; here every action ends exactly once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from dstl_dagster.errors import (
    ClosedError,
    DstlError,
    ErrorKind,
    UnavailableError,
    UploadTimeoutError,
)
from dstl_dagster.storage import RetryPolicy
from dstl_dagster.upload.timers import Timer

_logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class RetriableAction(Protocol[ResultT]):
    """Something that may be attempted several times, also concurrently."""

    def attempt(self) -> ResultT:
        """Do it once. Any thread; several may run at once."""
        ...

    def complete(self, result: ResultT) -> None:
        """This result won. Called at most once, and never with `fail`."""
        ...

    def discard(self, result: ResultT) -> None:
        """This result lost: undo it."""
        ...

    def fail(self, error: BaseException) -> None:
        """No attempt succeeded and no more will be made. Called at most once."""
        ...


def retry_delay_seconds(policy: RetryPolicy, attempt: int, error: BaseException) -> float | None:
    """The time between an attempt's failure and the next one; None: there is none. `attempt`: from 1."""
    if attempt == policy.max_attempts:
        return None
    if isinstance(error, TimeoutError):
        return 0.0
    # Only what may be transient: a wrong call or a bug fails again. An attempt writes its file anew, so
    # an upload that was lost or damaged, and created no object, may be repeated.
    if isinstance(error, DstlError):
        may_pass = isinstance(error, UnavailableError) or error.kind == ErrorKind.UPLOAD_LOST
    else:
        may_pass = isinstance(error, OSError)
    return policy.pause_seconds(attempt) if may_pass else None


@dataclass(frozen=True)
class AttemptCounts:
    """How a successful action went: which attempt won, and how many were started or due by then."""

    winner: int
    total: int


class RetryingExecutor:
    """Runs actions by a policy on an executor, with a timer for time-outs and delays."""

    def __init__(
        self,
        executor: Executor,
        timer: Timer,
        on_success: Callable[[AttemptCounts, object], None] | None = None,
    ) -> None:
        self._executor = executor
        self._timer = timer
        self._on_success = on_success
        self._lock = threading.Lock()
        self._live: set[_Execution[object]] = set()
        self._closed = False

    def execute(self, policy: RetryPolicy, action: RetriableAction[ResultT]) -> None:
        """Begin. ClosedError when closed; an error of the executor is raised, and the action is not begun."""
        execution = _Execution(self, policy, action)
        with self._lock:
            if self._closed:
                raise ClosedError("the upload executor is closed: open another storage")
            self._live.add(execution)  # type: ignore[arg-type]  # a set of executions of any result
        try:
            self._executor.submit(execution.run, 1)
        except BaseException as refusal:
            self._ended(execution)
            if self._closed:
                # Closed between that look and the submit: the executor's own words would mislead.
                raise ClosedError(
                    "the upload executor was closed meanwhile: open another storage"
                ) from refusal
            raise

    def _ended(self, execution: _Execution[ResultT]) -> None:
        with self._lock:
            self._live.discard(execution)

    def close(self) -> None:
        """Fail what has not ended with ClosedError, and wait for the attempts that run. May be called again.

        A running attempt may notice; a result it still brings is discarded.
        """
        with self._lock:
            self._closed = True
            live = list(self._live)
        for execution in live:
            execution.abandon(ClosedError("the upload was under way when its storage was closed"))
        self._timer.close()
        self._executor.shutdown(wait=True, cancel_futures=True)


class _Execution(Generic[ResultT]):
    """One action and the attempts that race for it."""

    def __init__(
        self, owner: RetryingExecutor, policy: RetryPolicy, action: RetriableAction[ResultT]
    ) -> None:
        self._owner = owner
        self._policy = policy
        self._action = action
        self._lock = threading.Lock()
        self._ended = False
        self._active_attempts = 1
        self._total_attempts = 1

    def run(self, attempt: int) -> None:
        """Make an attempt, unless the action has ended. Never raises."""
        if self._ended:
            return
        timeout_seconds = self._policy.timeout_seconds(attempt)
        gave_up = threading.Lock()

        def fail(error: BaseException) -> None:
            # Once: by its error or by its time-out.
            if gave_up.acquire(blocking=False):
                self._attempt_failed(attempt, error)

        cancel_timeout: Callable[[], None] = lambda: None  # noqa: E731 - replaced where there is a time-out
        try:
            if timeout_seconds is not None:
                late = UploadTimeoutError(f"attempt {attempt} timed out after {timeout_seconds} s")
                cancel_timeout = self._owner._timer.schedule(timeout_seconds, lambda: fail(late))
            result = self._action.attempt()
        except BaseException as error:  # noqa: BLE001 - however an attempt ends, the action must hear of it
            cancel_timeout()
            fail(error)
            return
        cancel_timeout()
        self._attempt_succeeded(attempt, result)

    def _attempt_succeeded(self, attempt: int, result: ResultT) -> None:
        with self._lock:
            won, self._ended = not self._ended, True
            counts = AttemptCounts(attempt, self._total_attempts)
        try:
            if won:
                self._owner._ended(self)
                self._action.complete(result)
                if self._owner._on_success is not None:
                    self._owner._on_success(counts, result)
            else:
                self._action.discard(result)
        except Exception:
            _logger.exception("an upload ended, but its callback raised")

    def _attempt_failed(self, attempt: int, error: BaseException) -> None:
        with self._lock:
            if self._ended:
                return
            delay_seconds = retry_delay_seconds(self._policy, attempt, error)
            if delay_seconds is not None:
                self._active_attempts += 1
                self._total_attempts += 1
        if delay_seconds is not None:
            _logger.info(
                "upload attempt %d failed and is repeated in %s s: %s", attempt, delay_seconds, error
            )
            try:
                self._start_after(delay_seconds, attempt + 1)
            except BaseException as refusal:  # noqa: BLE001 - the executor or timer is closed: nothing follows
                error = refusal
                with self._lock:
                    self._active_attempts -= 1
        with self._lock:
            self._active_attempts -= 1
            is_last = self._active_attempts == 0
        if is_last:
            self.abandon(error)

    def _start_after(self, delay_seconds: float, attempt: int) -> None:
        if delay_seconds == 0:
            self._owner._executor.submit(self.run, attempt)
        else:
            self._owner._timer.schedule(delay_seconds, lambda: self._submit_late(attempt))

    def _submit_late(self, attempt: int) -> None:
        try:
            self._owner._executor.submit(self.run, attempt)
        except RuntimeError:
            # Shut down meanwhile: `close` has failed the action, or will.
            _logger.debug("an upload attempt was due after close")

    def abandon(self, error: BaseException) -> None:
        with self._lock:
            first, self._ended = not self._ended, True
        if not first:
            return
        self._owner._ended(self)
        try:
            self._action.fail(error)
        except Exception:
            _logger.exception("an upload failed, and its callback raised too")
