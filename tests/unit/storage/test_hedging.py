"""Hedged reads: when a read is asked for twice, what the answer is then, and how much load that adds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from dstl_dagster.errors import FormatError, NotFoundError, UnavailableError
from dstl_dagster.storage.hedge_plan import EXTRA_SHARE, HedgePlan, read_kind
from dstl_dagster.storage.hedging import Hedge, hedge_of
from dstl_dagster.storage.pacing import Pacer, ThrottledError
from dstl_dagster.testing.virtual_clock import VirtualClock


class ScriptedClock(VirtualClock):
    """A request takes as long as the script says; a wait for a slow one times out, any other does not."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = threading.Event()

    def sleep_seconds(self, seconds: float, wake: threading.Event | None = None) -> bool:
        if wake is None:
            return super().sleep_seconds(seconds)
        while not wake.wait(0.001):
            if self.slow.is_set():
                self.slow.clear()
                self.advance(seconds)
                return False
        return True


class Reads:
    """Reads through a `Hedge`, whose requests do what the test says, one after the other."""

    def __init__(self) -> None:
        self.clock = ScriptedClock()
        self.pacer = Pacer(self.clock)
        self.hedge = Hedge(self.clock)
        self.let_go = threading.Event()
        self.made = 0
        self._lock = threading.Lock()

    def learn(self, seconds: float = 0.01, times: int = 20) -> None:
        for _ in range(times):
            assert self.read(lambda: self.quick(seconds)) == b"quick"

    def quick(self, seconds: float = 0.01) -> bytes:
        self.clock.advance(seconds)
        return b"quick"

    def stalled(self) -> bytes:
        self.clock.slow.set()
        assert self.let_go.wait(30)
        return b"late"

    def read(self, *requests: Callable[[], bytes]) -> bytes:
        waiting = list(requests)

        def request() -> bytes:
            with self._lock:
                self.made += 1
                do = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            return do()

        return self.hedge.first_answer("stat", request, self.pacer)

    def end(self) -> None:
        """Let the slow ones be answered; none is left over."""
        self.let_go.set()
        while self.hedge.in_flight:
            threading.Event().wait(0.001)


def fail(error: Exception) -> Callable[[], bytes]:
    def request() -> bytes:
        raise error

    return request


def test_the_delay_is_the_95th_percentile_of_its_kind() -> None:
    """Of the last 200 requests of that kind; none before 20 are known."""
    plan = HedgePlan()
    for number in range(1, 20):
        plan.observe("stat", number / 100)
    assert plan.delay_seconds("stat") is None
    plan.observe("stat", 0.2)
    assert plan.delay_seconds("stat") == 0.19
    assert plan.delay_seconds("whole") is None
    for _ in range(200):
        plan.observe("stat", 1.0)
    assert plan.delay_seconds("stat") == 1.0


def test_kinds_are_sizes_to_a_factor_of_four() -> None:
    """A range of 8 MiB is not measured by one of 100 bytes; whole objects are of unknown size."""
    assert read_kind(100) == read_kind(64)
    assert len({read_kind(size) for size in (0, 100, 4096, 1 << 20, 1 << 23, None)}) == 6


def test_a_read_as_quick_as_others_is_made_once() -> None:
    """No extra request where nothing is slow."""
    reads = Reads()
    reads.learn(times=100)
    assert reads.made == 100


def test_a_slow_read_is_asked_for_once_more() -> None:
    """The second answer is taken, after the delay; the first one is dropped when it comes at last."""
    reads = Reads()
    reads.learn()
    before = reads.clock.monotonic_seconds()
    assert reads.read(reads.stalled, reads.quick) == b"quick"
    assert reads.made == 22
    assert reads.clock.monotonic_seconds() - before == pytest.approx(0.02)
    assert reads.hedge.in_flight == 1
    reads.end()


def test_the_first_answer_wins_if_it_comes_first() -> None:
    """The second request may be the slower one."""
    reads = Reads()
    reads.learn()

    def second() -> bytes:
        reads.let_go.set()
        threading.Event().wait(0.01)  # the first one is answered meanwhile, or this one wins: both are right
        return b"late"

    assert reads.read(reads.stalled, second) == b"late"
    reads.end()


def test_never_a_third_request() -> None:
    """Two slow ones: the read waits for either."""
    reads = Reads()
    reads.learn()

    def second() -> bytes:
        threading.Timer(0.02, reads.let_go.set).start()
        return reads.stalled()

    assert reads.read(reads.stalled, second, fail(AssertionError("a third"))) == b"late"
    assert reads.made == 22
    reads.end()


@pytest.mark.parametrize("error", [NotFoundError("gone"), FormatError("damaged")])
def test_an_answer_may_be_an_error(error: Exception) -> None:
    """Not there, or damaged, is an answer like another."""
    reads = Reads()
    reads.learn()
    with pytest.raises(type(error)):
        reads.read(fail(error))
    with pytest.raises(type(error)):
        reads.read(reads.stalled, fail(error))
    reads.end()


def test_no_answer_is_not_one() -> None:
    """A request that fails loses to one that is answered later; the read fails with both."""
    reads = Reads()
    reads.learn()

    def failing() -> bytes:
        reads.let_go.set()
        raise UnavailableError("no answer")

    assert reads.read(reads.stalled, failing) == b"late"
    with pytest.raises(UnavailableError):
        reads.read(fail(UnavailableError("no answer")))
    reads.let_go.clear()

    def both() -> bytes:
        reads.stalled()
        raise UnavailableError("the first")

    with pytest.raises(UnavailableError):
        reads.read(both, failing)
    reads.end()


def test_at_most_a_tenth_of_the_reads_is_made_twice() -> None:
    """However slow the store is: the load that is added is bounded, by count."""
    reads = Reads()
    reads.learn(times=50)
    for _ in range(150):
        reads.let_go.clear()

        def freed() -> bytes:
            threading.Timer(0.002, reads.let_go.set).start()
            return reads.stalled()

        reads.read(freed, reads.quick)
    assert 200 < reads.made <= 200 + EXTRA_SHARE * 200
    reads.end()


def test_a_quiet_hour_saves_ten_requests_at_most() -> None:
    """A store that stalls all at once is asked twice for ten reads, and then for one in ten."""
    plan = HedgePlan()
    for _ in range(10_000):
        plan.delay_seconds("stat")
    assert sum(plan.spend() for _ in range(1_000)) == 10


def test_no_extra_request_while_the_service_refuses() -> None:
    """A service that asks for fewer requests gets fewer."""
    reads = Reads()
    reads.learn()
    reads.pacer.refused(reads.clock.monotonic_seconds(), ThrottledError("slow down"))

    def freed() -> bytes:
        threading.Timer(0.01, reads.let_go.set).start()
        return reads.stalled()

    assert reads.read(freed, reads.quick) == b"late"
    assert reads.made == 21
    reads.end()


def test_a_refusal_of_the_request_that_loses_is_heard() -> None:
    """Nobody waits for it, but the process slows down."""
    reads = Reads()
    reads.learn()
    assert reads.pacer.pace.rate is None

    def refused() -> bytes:
        reads.let_go.set()
        raise ThrottledError("slow down")

    assert reads.read(reads.stalled, refused) == b"late"
    reads.end()
    assert reads.pacer.pace.rate is not None


def test_threads_are_used_again_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads in turn use one thread; where all are busy, the caller's own thread makes the request."""
    monkeypatch.setattr("dstl_dagster.storage.hedging._MOST_THREADS", 2)
    reads = Reads()
    reads.learn(times=60)
    assert reads.hedge._threads._threads == 1
    assert reads.read(reads.stalled, reads.quick) == b"quick"
    assert reads.hedge.in_flight == 1
    reads.let_go.set()
    reads.end()
    reads.let_go.clear()
    # Both threads stall: the hedge of the second read finds none, and the third read takes none.
    free = threading.Thread(target=lambda: reads.read(reads.stalled))
    free.start()
    while reads.hedge.in_flight < 2:
        threading.Event().wait(0.001)
    assert reads.read(lambda: threading.current_thread().name.encode()) == b"MainThread"
    reads.let_go.set()
    free.join()
    reads.end()
    assert reads.hedge._threads._threads == 2


def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind by a burst of reads."""
    monkeypatch.setattr("dstl_dagster.storage.hedging._IDLE_SECONDS", 0.01)
    reads = Reads()
    reads.learn(times=30)
    while reads.hedge._threads._threads:
        threading.Event().wait(0.005)
    reads.learn()
    assert reads.made == 50


def test_a_fork_has_threads_of_its_own() -> None:
    """The parent's threads are not in the child, which reads all the same, and learns again."""
    reads = Reads()
    reads.learn()
    child = os.fork()
    if child == 0:
        reads.learn()
        os._exit(0 if reads.made == 40 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_one_hedge_for_all_who_share_a_pacer() -> None:
    """What one store of a bucket has learned, another uses."""
    clock = VirtualClock()
    one, two = Pacer(clock), Pacer(clock)
    assert hedge_of(one, clock) is hedge_of(one, clock)
    assert hedge_of(two, clock) is not hedge_of(one, clock)
