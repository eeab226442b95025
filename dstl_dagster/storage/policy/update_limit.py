"""A service's limit on how often one object may change: about once a second on GCS, which answers 429 beyond.

Owns the wait before an object that was only just made is changed or deleted. Does not own the limit, which a
store declares (`StoreCapabilities.seconds_between_updates`), nor what to do about a refusal (`policy.retry`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from dstl_dagster.clock import Clock
from dstl_dagster.storage.base import ObjectStore, server_time


def unsettled_seconds(newest: datetime, told: datetime, interval_seconds: float) -> float:
    """How long an object stamped `newest` must be left alone when the same clock was last heard at `told`."""
    return max(0.0, interval_seconds - (told - newest).total_seconds())


def let_settle(store: ObjectStore, updated: Iterable[datetime], clock: Clock) -> None:
    """Wait until objects of these `updated` may change again. At once where the store has no such limit.

    They are stamps of the store's own clock, so it covers objects that other processes made. That clock is
    told to the second, rounded down: the wait is up to a second too long, never too short.
    """
    interval = store.capabilities.seconds_between_updates
    told = server_time(store)
    newest = max(updated, default=None)
    if not interval or told is None or newest is None:
        return
    wait = unsettled_seconds(newest, told, interval)
    if wait:
        # No stamp is ahead of the clock that made it by more than the rounding, so this ends.
        clock.sleep_seconds(min(wait, interval + 1.0))
