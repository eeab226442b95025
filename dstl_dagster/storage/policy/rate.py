"""How fast requests to one bucket may begin, after the service has refused some.

Owns the rule (`RateLimit`, a value without clock, lock or thread), and the limiter that all threads of a
process which talk to the bucket wait for. Does not own which answer is a refusal (`gcs.errors` raises
`ThrottledError`), nor when a refused request is tried again (`policy.retry`).

Nothing is limited until a refusal. Then requests begin at an even rate: *half* of what it was, once for all
refusals of requests that began before; and every answer *adds* a little. So a rate that the service takes is
found from below again and again, and what is refused meanwhile is a few in a hundred. A limit that makes
no request wait stays what it is, and is dropped after half a minute.

The rate is of all threads together, not of requests in flight: it means the same for slow and fast requests.

A service may also limit how often one object changes: about once a second on GCS, which answers 429 beyond.
`let_settle` waits before objects that were only just made are changed or deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.concurrency import after_fork
from dstl_dagster.errors import UnavailableError
from dstl_dagster.storage.base import ObjectStore

MIN_RATE: Final = 5.0
"""Requests a second that a process may always begin: that hammers no service."""

MAX_RETRY_AFTER_SECONDS: Final = 3600.0
"""A longer `Retry-After` counts as this: no answer may stop a process permanently."""

_DECREASE: Final = 0.5
_INCREASE_PER_ANSWER: Final = 0.25  # twice as fast after about three seconds, at any rate
_IN_USE_SECONDS: Final = 1.0
_DROPPED_AFTER_SECONDS: Final = 30.0


@dataclass(frozen=True)
class RateLimit:
    """Frozen. All times are seconds of one monotonic clock.

    Attributes:
        rate: requests a second that may begin; None: no limit.
        not_before: no request begins earlier, because the service said so.
        next_start: the next request begins no earlier, so that starts are even.
        decreased_at: when the rate was last halved.
        limited_at: when a request last had to wait for it.
        second, starts, starts_before: the starts in this second of the clock, and in the one before.
    """

    rate: float | None = None
    not_before: float = 0.0
    next_start: float = 0.0
    decreased_at: float = float("-inf")
    limited_at: float = float("-inf")
    second: int = 0
    starts: int = 0
    starts_before: int = 0

    def start_at(self, now: float) -> float:
        """When a request that is asked for now may begin: `now` or later."""
        return max(now, self.not_before, self.next_start)

    def holds(self, asked_at: float, start: float) -> bool:
        """Whether a `start` that was returned at `asked_at` still stands: nothing was refused since."""
        return self.decreased_at < asked_at and self.not_before <= start

    def begun(self, now: float, start: float) -> RateLimit:
        """A request that is asked for now begins at `start`, and the next one a little later."""
        counted = self._counted(start, 1)
        if self.rate is None:
            return counted
        limited_at = now if self.next_start > now else self.limited_at
        return replace(counted, next_start=start + 1.0 / self.rate, limited_at=limited_at)

    def refused(self, now: float, began: float, retry_after_seconds: float | None) -> RateLimit:
        """A request that began at `began` was refused, with this `Retry-After` if there was one."""
        not_before = self.not_before
        if retry_after_seconds is not None:
            not_before = max(not_before, now + min(retry_after_seconds, MAX_RETRY_AFTER_SECONDS))
        if began < self.decreased_at:
            return replace(self, not_before=not_before)  # its refusal adds nothing new
        rate = max(MIN_RATE, (self.observed_rate(now) if self.rate is None else self.rate) * _DECREASE)
        return replace(
            self,
            rate=rate,
            not_before=not_before,
            next_start=now + 1.0 / rate,  # a waiting caller asks again: see `holds`
            decreased_at=now,
        )

    def answered(self, now: float) -> RateLimit:
        if self.rate is None:
            return self
        unused_seconds = now - max(self.limited_at, self.decreased_at)
        if unused_seconds > _DROPPED_AFTER_SECONDS:
            return replace(self, rate=None, next_start=min(self.next_start, now))
        if unused_seconds > _IN_USE_SECONDS:
            return self
        return replace(self, rate=self.rate + _INCREASE_PER_ANSWER)

    def observed_rate(self, now: float) -> float:
        """Starts a second: those of this second, and of the one before as far as it is less than one ago."""
        current = self._counted(now, 0)
        return current.starts_before * (1.0 - now % 1.0) + current.starts

    def _counted(self, now: float, starts: int) -> RateLimit:
        second = int(now)
        if second <= self.second:
            return replace(self, starts=self.starts + starts)
        before = self.starts if second == self.second + 1 else 0
        return replace(self, second=second, starts=starts, starts_before=before)


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


def let_settle(store: ObjectStore, updated: Iterable[datetime], clock: Clock) -> None:
    """Wait until objects of these `updated` may change again. At once where the store has no such limit.

    They are stamps of the store's own clock, so it covers objects that other processes made. That clock is
    reported to the second, rounded down: the wait is up to a second too long, never too short.
    """
    interval = store.capabilities.seconds_between_updates
    now, newest = store.server_time(), max(updated, default=None)
    if interval and now is not None and newest is not None:
        wait = interval - (now - newest).total_seconds()
        # No stamp is ahead of the clock that made it by more than the rounding, so this ends.
        clock.sleep_seconds(min(max(0.0, wait), interval + 1.0))
