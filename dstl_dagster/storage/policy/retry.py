"""Retries: the policy of all of them, and the loop of attempts of one request.

Does not own what an error means: of a request only `UnavailableError` is attempted again, and everything else
is an answer. What to believe of an answer that follows a lost one is `readback`'s. How fast all requests
together may begin is `policy.rate`'s. Attempts of an upload race: their loop is `upload.racing`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import DstlError, InvalidInputError, UnavailableError
from dstl_dagster.settings.changelog import FsStateChangelogOptions
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage.policy.rate import RateLimiter, ThrottledError

_T = TypeVar("_T")


@dataclass(frozen=True)
class RetryPolicy:
    """How often something is attempted, for how long, and with which pauses. Frozen.

    Attributes:
        max_attempts: the first included, 1 or more; None: as many as the total time allows.
        total_seconds: no attempt begins later than this; None: no limit.
        first_pause_seconds: after the first failure, 0 or more; every later pause is twice the one before.
        max_pause_seconds: the longest pause.
        jitter: up to this share of a pause is left out at random; 0 to 1.
        first_timeout_seconds: of the first attempt; None: `max_timeout_seconds`.
        timeout_multiplier: every later attempt's time-out is this times the one before.
        max_timeout_seconds: the longest time-out of an attempt; None: no limit but the transport's.

    Raises InvalidInputError.
    """

    max_attempts: int | None = None
    total_seconds: float | None = 120.0
    first_pause_seconds: float = 0.2
    max_pause_seconds: float = 30.0
    jitter: float = 0.5
    first_timeout_seconds: float | None = None
    timeout_multiplier: float = 1.0
    max_timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise InvalidInputError(f"max_attempts is {self.max_attempts}: 1 or more, the first included")
        if self.first_pause_seconds < 0:
            raise InvalidInputError(f"the pause after a failure is {self.first_pause_seconds} s: 0 or more")

    @classmethod
    def none(cls) -> RetryPolicy:
        """One attempt, however long it takes."""
        return cls.fixed(1, 0.0, 0.0)

    @classmethod
    def fixed(cls, max_attempts: int, timeout: float, delay_after_failure: float) -> RetryPolicy:
        """Up to `max_attempts`, the same pause after each; seconds. A timeout of 0 or less means none."""
        return cls(
            max_attempts,
            total_seconds=None,
            first_pause_seconds=delay_after_failure,
            max_pause_seconds=delay_after_failure,
            jitter=0.0,
            first_timeout_seconds=timeout if timeout > 0 else None,
        )

    @classmethod
    def of_uploads(cls, options: FsStateChangelogOptions) -> RetryPolicy:
        """Of a changelog file's upload: the policy that the options name."""
        if options.retry_policy == "none":
            return cls.none()
        return cls.fixed(
            options.max_upload_attempts,
            options.upload_timeout.total_seconds(),
            options.next_attempt_delay.total_seconds(),
        )

    @classmethod
    def of_requests(cls, options: GSFileSystemOptions) -> RetryPolicy:
        """Of one request to a bucket: the defaults, overridden by the options that are set."""
        seconds = {
            field: duration.total_seconds()
            for field, duration in (
                ("total_seconds", options.retry_total_timeout),
                ("first_timeout_seconds", options.retry_init_rpc_timeout),
                ("max_timeout_seconds", options.retry_max_rpc_timeout),
            )
            if duration is not None
        }
        multiplier = options.retry_rpc_timeout_multiplier
        return cls(
            # Zero attempts means, as with Google's clients, that the total time alone decides.
            max_attempts=options.retry_max_attempt or None,
            timeout_multiplier=1.0 if multiplier is None else multiplier,
            **seconds,
        )

    def timeout_seconds(self, attempt: int) -> float | None:
        """The time-out of an attempt, counted from 1."""
        if self.first_timeout_seconds is None:
            return self.max_timeout_seconds
        timeout = self.first_timeout_seconds * self.timeout_multiplier ** (attempt - 1)
        return timeout if self.max_timeout_seconds is None else min(timeout, self.max_timeout_seconds)

    def pause_seconds(self, attempt: int, random_unit: float = 1.0) -> float:
        """The pause after an attempt, counted from 1, failed. `random_unit`: 0 to 1; 1 is the longest."""
        longest = min(self.max_pause_seconds, self.first_pause_seconds * 2.0 ** min(attempt - 1, 60))
        return longest * (1.0 - self.jitter * (1.0 - random_unit))


@dataclass(frozen=True)
class RetryAttempt:
    """One attempt of a request: its number, from 1, and its time-out in seconds."""

    number: int
    timeout_seconds: float | None

    @property
    def in_doubt(self) -> bool:
        """True if an earlier attempt of the same request may have had its effect."""
        return self.number > 1


class Retries:
    """The loop of attempts. Any thread.

    Args:
        policy: how often and how long.
        clock: measures and waits.
        random_unit: a number from 0 to 1, the jitter of each pause.
        limiter: shared by all requests that are to slow down together, on the same clock; by default this
            object's own.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        *,
        clock: Clock | None = None,
        random_unit: Callable[[], float] = random.random,
        limiter: RateLimiter | None = None,
    ) -> None:
        self.policy = policy or RetryPolicy()
        self.clock = clock or SystemClock()
        self.limiter = limiter or RateLimiter(self.clock)
        self._random_unit = random_unit

    def run(self, request: Callable[[RetryAttempt], _T]) -> _T:
        """Call `request` until it does not raise UnavailableError, or no attempt is left.

        A `Retry-After` is obeyed: where it is longer than the time that is left, no further attempt is made.
        """
        began_seconds = self.clock.monotonic_seconds()
        total = self.policy.total_seconds
        last_start = None if total is None else began_seconds + total
        number = 1
        while True:
            turn = self.limiter.wait_for_turn(last_start)
            try:
                answer = request(RetryAttempt(number, self.policy.timeout_seconds(number)))
            except UnavailableError as error:
                asked_seconds = 0.0
                if isinstance(error, ThrottledError):
                    self.limiter.refused(turn, error)
                    asked_seconds = error.retry_after_seconds or 0.0
                if number == self.policy.max_attempts:
                    raise
                pause = max(asked_seconds, self.policy.pause_seconds(number, self._random_unit()))
                if last_start is not None and self.clock.monotonic_seconds() + pause > last_start:
                    raise
            except DstlError:
                self.limiter.answered()
                raise
            else:
                self.limiter.answered()
                return answer
            self.clock.sleep_seconds(pause)
            number += 1
