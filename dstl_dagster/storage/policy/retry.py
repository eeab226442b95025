"""Retries of one request. Owns the loop of tries, its pauses and its limits.

Does not own what an error means: only `UnavailableError` is tried again, and everything else is an answer.
What to believe of an answer that follows a lost one is `readback`'s. How fast all requests together may begin
is `policy.rate`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import DstlError, UnavailableError
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage.policy.rate_limiter import Pacer, ThrottledError

__all__ = ["BackoffPolicy", "Retries", "Try"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class BackoffPolicy:
    """How often a request is tried, for how long, and with which pauses. Frozen.

    Attributes:
        max_attempts: tries, the first included; None: as many as the total time allows.
        total_seconds: no try begins later than this; None: no limit.
        first_pause_seconds: before the second try; every later pause is twice the one before.
        max_pause_seconds: the longest pause.
        first_timeout_seconds: of the first try; None: the transport's default.
        timeout_multiplier: every later try's time-out is this times the one before.
        max_timeout_seconds: the longest time-out of a try.

    """

    max_attempts: int | None = None
    total_seconds: float | None = 120.0
    first_pause_seconds: float = 0.2
    max_pause_seconds: float = 30.0
    first_timeout_seconds: float | None = None
    timeout_multiplier: float = 1.0
    max_timeout_seconds: float | None = None

    @classmethod
    def from_options(cls, options: GSFileSystemOptions) -> BackoffPolicy:
        """The defaults, overridden by the options that are set."""
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

    def timeout_seconds(self, number: int) -> float | None:
        """The time-out of try `number`, counted from 1."""
        if self.first_timeout_seconds is None:
            return self.max_timeout_seconds
        timeout = self.first_timeout_seconds * self.timeout_multiplier ** (number - 1)
        return timeout if self.max_timeout_seconds is None else min(timeout, self.max_timeout_seconds)

    def pause_seconds(self, number: int) -> float:
        """The longest pause after try `number`, counted from 1."""
        return min(self.max_pause_seconds, self.first_pause_seconds * 2.0 ** min(number - 1, 60))


@dataclass(frozen=True)
class Try:
    """One try of a request: its number, from 1, and its time-out in seconds."""

    number: int
    timeout_seconds: float | None

    @property
    def in_doubt(self) -> bool:
        """True if an earlier try of the same request may have had its effect."""
        return self.number > 1


class Retries:
    """The loop of tries. Any thread.

    Args:
        policy: how often and how long.
        clock: measures and waits.
        random_unit: a number from 0 to 1, the jitter of each pause.
        pacer: shared by all requests that are to slow down together, on the same clock; by default this
            object's own.
    """

    def __init__(
        self,
        policy: BackoffPolicy | None = None,
        *,
        clock: Clock | None = None,
        random_unit: Callable[[], float] = random.random,
        pacer: Pacer | None = None,
    ) -> None:
        self.policy = policy or BackoffPolicy()
        self.clock = clock or SystemClock()
        self.pacer = pacer or Pacer(self.clock)
        self._random_unit = random_unit

    def run(self, request: Callable[[Try], _T]) -> _T:
        """Call `request` until it does not raise UnavailableError, or no try is left.

        A `Retry-After` is obeyed: where it is longer than the time that is left, no further try is made.
        """
        began_seconds = self.clock.monotonic_seconds()
        total = self.policy.total_seconds
        last_start = None if total is None else began_seconds + total
        number = 1
        while True:
            turn = self.pacer.wait_for_turn(last_start)
            try:
                answer = request(Try(number, self.policy.timeout_seconds(number)))
            except UnavailableError as error:
                asked_seconds = 0.0
                if isinstance(error, ThrottledError):
                    self.pacer.refused(turn, error)
                    asked_seconds = error.retry_after_seconds or 0.0
                if number == self.policy.max_attempts:
                    raise
                longest = self.policy.pause_seconds(number)
                pause = max(asked_seconds, longest * (0.5 + 0.5 * self._random_unit()))
                if last_start is not None and self.clock.monotonic_seconds() + pause > last_start:
                    raise
            except DstlError:
                self.pacer.answered()
                raise
            else:
                self.pacer.answered()
                return answer
            self.clock.sleep_seconds(pause)
            number += 1
