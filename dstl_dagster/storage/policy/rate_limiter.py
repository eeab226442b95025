"""One rate limit for all threads of a process that talk to one bucket: the wait for it, and its answers.

Owns the shared state and the wait. Does not own the rule (`policy.rate`), the tries of a request
(`policy.retry`), or what counts as a refusal (`gcs.errors` raises `ThrottledError`).
"""

from __future__ import annotations

import threading

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.concurrency import after_fork
from dstl_dagster.errors import UnavailableError
from dstl_dagster.storage.policy.rate import RateLimit

__all__ = ["RateLimiter", "ThrottledError"]


class ThrottledError(UnavailableError):
    """The service asks for fewer requests: 429, or 503. Nothing has happened.

    Args:
        message: as in `DstlError`.
        retry_after_seconds: from now, if the answer had a `Retry-After`.
        one_object: the limit is of one object's changes, and says nothing about other requests.
    """

    def __init__(
        self, message: str, retry_after_seconds: float | None = None, *, one_object: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.one_object = one_object

    def __reduce__(self) -> tuple[type[UnavailableError], tuple[str]]:
        # Another process has a limit of its own.
        return UnavailableError, (self.message,)


class RateLimiter:
    """Any thread. `clock` measures and waits; all who share a limiter share its clock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._limit = RateLimit()
        after_fork(self._free_lock)

    @property
    def limit(self) -> RateLimit:
        """As it is now."""
        return self._limit

    def wait_for_turn(self, not_after: float | None = None) -> float:
        """Wait until a request may begin. Returns when it began, by the clock's monotonic time.

        Raises: UnavailableError, at once, where that would be later than `not_after`.
        """
        while True:
            with self._lock:
                now = self._clock.monotonic_seconds()
                start = self._limit.start_at(now)
                if not_after is not None and start > max(now, not_after):
                    raise UnavailableError(
                        f"the service asks for fewer requests, the next one in {start - now:.0f} s, which is "
                        "later than this one may wait; try again then, or raise gs.retry.total-timeout"
                    )
                self._limit = self._limit.begun(now, start)
            if start <= now:
                return start
            self._clock.sleep_seconds(start - now)
            with self._lock:
                if self._limit.holds(now, start):
                    return start

    def answered(self) -> None:
        """A request was answered."""
        if self._limit.rate is None:
            return  # nothing to raise, and most processes never have anything else
        with self._lock:
            self._limit = self._limit.answered(self._clock.monotonic_seconds())

    def refused(self, began: float, error: ThrottledError) -> None:
        """The request that began then was refused."""
        if error.one_object:
            return
        with self._lock:
            now = self._clock.monotonic_seconds()
            self._limit = self._limit.refused(now, began, error.retry_after_seconds)

    def _free_lock(self) -> None:
        self._lock = threading.Lock()
