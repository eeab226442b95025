"""The rate limit of a refused process neither hammers nor starves. Simulated, without a thread."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.storage.policy.rate import MAX_RETRY_AFTER_SECONDS, MIN_RATE, RateLimit
from tests.profiles import examples


class NeverSlower(RateLimit):
    """A broken variant: it hammers."""

    def refused(self, now: float, began: float, retry_after_seconds: float | None) -> RateLimit:
        return self


class NeverFaster(RateLimit):
    """A broken variant: it starves."""

    def answered(self, now: float) -> RateLimit:
        return self


class HalvedByEach(RateLimit):
    """A broken variant: every refusal of a burst halves the rate again, and it starves."""

    def refused(self, now: float, began: float, retry_after_seconds: float | None) -> RateLimit:
        return super().refused(now, float("inf"), retry_after_seconds)


class DeafToWaits(RateLimit):
    """A broken variant: it does not obey `Retry-After`."""

    def refused(self, now: float, began: float, retry_after_seconds: float | None) -> RateLimit:
        return super().refused(now, began, None)


@dataclass
class Service:
    """Takes `capacity` requests a second from a bucket of tokens, and refuses the others."""

    capacity: float
    retry_after_seconds: float | None = None
    tokens: float = 1.0
    at: float = 0.0

    def takes(self, now: float) -> bool:
        most = max(1.0, self.capacity * 0.1)
        self.tokens, self.at = min(most, self.tokens + (now - self.at) * self.capacity), now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


@dataclass
class Outcome:
    """What came of a simulation."""

    starts: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def refused_share(self, after: float = 0.0) -> float:
        refused, done = (sum(at >= after for at in each) for each in (self.refused, self.done))
        return refused / max(1, refused + done)

    def done_between(self, first: float, end: float) -> int:
        return sum(first <= at < end for at in self.done)


def simulate(
    limit: RateLimit,
    service: Service,
    *,
    threads: int,
    latency_seconds: float,
    seconds: float = 60.0,
    capacities: tuple[tuple[float, float], ...] = (),
) -> Outcome:
    """Threads that send one request after another, and a refused one again after a pause that doubles.

    `capacities`: (from when, how many requests a second).
    """
    jitter = random.Random(1)
    outcome, failures, number = Outcome(), [0] * threads, 0
    events: list[tuple[float, int, str, int, float]] = []

    def push(at: float, what: str, thread: int, since: float = 0.0) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (at, number, what, thread, since))

    for thread in range(threads):
        push(jitter.random() * 0.01, "ask", thread)
    for at, capacity in capacities:
        push(at, "capacity", 0, capacity)
    while events and events[0][0] <= seconds:
        now, _, what, thread, since = heapq.heappop(events)
        if what == "capacity":
            service.capacity = since
        elif what == "ask" or (what == "begin" and since < now and not limit.holds(since, now)):
            start = limit.start_at(now)
            limit = limit.begun(now, start)
            push(start, "begin", thread, now)
        elif what == "begin":
            outcome.starts.append(now)
            answer = "done" if service.takes(now) else "refused"
            push(now + latency_seconds * (0.5 + jitter.random()), answer, thread, now)
        elif what == "done":
            outcome.done.append(now)
            failures[thread] = 0
            limit = limit.answered(now)
            push(now, "ask", thread)
        else:
            outcome.refused.append(now)
            limit = limit.refused(now, since, service.retry_after_seconds)
            pause = min(30.0, 0.2 * 2 ** failures[thread]) * (0.5 + 0.5 * jitter.random())
            failures[thread] += 1
            push(now + max(pause, service.retry_after_seconds or 0.0), "ask", thread)
    return outcome


def neither_hammers_nor_starves(
    limit: RateLimit, capacity: float, threads: int, latency_seconds: float
) -> bool:
    """From the tenth second on: at most an eighth refused, and at least half of what is to be had done."""
    outcome = simulate(
        limit, Service(capacity), threads=threads, latency_seconds=latency_seconds, seconds=60.0
    )
    to_be_had = min(capacity, threads / latency_seconds)
    return (
        outcome.refused_share(after=10.0) <= 0.125
        and outcome.done_between(10.0, 60.0) >= 0.5 * to_be_had * 50
    )


@given(
    capacity=st.floats(4 * MIN_RATE, 500),
    threads=st.integers(1, 64),
    latency_seconds=st.floats(0.005, 0.3),
)
@examples(30)
def test_it_neither_hammers_nor_starves(capacity: float, threads: int, latency_seconds: float) -> None:
    """Whatever the service takes, however many threads want it, however long a request takes."""
    assert neither_hammers_nor_starves(RateLimit(), capacity, threads, latency_seconds)


@pytest.mark.parametrize("broken", [NeverSlower(), NeverFaster(), HalvedByEach()])
def test_broken_rules_are_found_out(broken: RateLimit) -> None:
    """The property can fail."""
    assert not neither_hammers_nor_starves(broken, 100.0, 64, 0.1)


@pytest.mark.parametrize("threads", [1, 64])
def test_a_service_that_takes_nothing_is_asked_seldom(threads: int) -> None:
    """A failure of the whole service: after the first answers the process begins few requests a second."""
    outcome = simulate(RateLimit(), Service(0.0, tokens=0.0), threads=threads, latency_seconds=0.05)
    assert sum(at > 5.0 for at in outcome.starts) <= 55 * 1.1 * MIN_RATE


def test_all_of_the_service_is_used_again_once_it_has_recovered() -> None:
    """A minute at a twentieth of the need, then everything: within half a minute nothing is held back."""
    service = Service(40.0)
    outcome = simulate(
        RateLimit(), service, threads=40, latency_seconds=0.05, seconds=150.0, capacities=((60.0, 10_000.0),)
    )
    assert outcome.done_between(20.0, 60.0) >= 0.5 * 40 * 40
    assert outcome.done_between(90.0, 150.0) >= 0.95 * 60 * 40 / 0.05


@given(wait=st.floats(0.5, 20), threads=st.integers(1, 32))
@examples(20)
def test_retry_after_holds_for_all_threads(wait: float, threads: int) -> None:
    """From an answer with `Retry-After` until then, no thread begins a request."""
    assert obeys(RateLimit(), wait, threads)


def test_a_rule_that_is_deaf_is_found_out() -> None:
    """The property can fail."""
    assert not obeys(DeafToWaits(), 5.0, 8)


def obeys(limit: RateLimit, wait: float, threads: int) -> bool:
    outcome = simulate(
        limit, Service(20.0, retry_after_seconds=wait), threads=threads, latency_seconds=0.05, seconds=60.0
    )
    return all(not at < start < at + wait for at in outcome.refused for start in outcome.starts)


def test_a_wait_without_end_is_not_obeyed() -> None:
    """No answer stops a process for good: an hour at most."""
    assert RateLimit().refused(10.0, 9.0, 1e12).not_before == 10.0 + MAX_RETRY_AFTER_SECONDS


def test_a_process_that_is_never_refused_is_never_held_back() -> None:
    """Without a refusal a request begins when it is asked for, however many there are."""
    limit = RateLimit()
    for number in range(1_000):
        now = number / 10_000
        assert limit.start_at(now) == now
        limit = limit.begun(now, now).answered(now)


def test_a_limit_that_limits_nobody_is_dropped() -> None:
    """Two requests a second under a limit of five: after half a minute there is none."""
    limit = replace(RateLimit(), rate=MIN_RATE, decreased_at=0.0)
    now = 1.0
    while limit.rate is not None:
        limit = limit.begun(now, limit.start_at(now)).answered(now)
        now += 0.5
    assert 30 <= now <= 35
