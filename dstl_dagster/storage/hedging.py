"""Hedged reads: a read that takes longer than most is asked for once more, and the first answer is taken.

Owns the race of the two requests, and its threads. Does not own when a second one is worth it (`hedge_plan`),
the tries of a request (`retrying`), or which reads may be hedged (`gcs_reading`: those of a pinned
generation, whose bytes never change, so that two answers cannot disagree).

The request that loses is not waited for: it ends by its answer or its time-out, in a thread that is used
again, and its connection goes back to the others.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from dstl_dagster.clock import Clock
from dstl_dagster.errors import UnavailableError
from dstl_dagster.storage.hedge_plan import HedgePlan
from dstl_dagster.storage.pacing import Pacer, ThrottledError

__all__ = ["Hedge", "hedge_of"]

_T = TypeVar("_T")
_MOST_THREADS: Final = 128  # twice the connections that a process keeps
_IDLE_SECONDS: Final = 10.0


class Hedge:
    """The hedged reads of one bucket in this process. Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renew()
        _hedges.add(self)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._plan = HedgePlan()
        self._threads = _Threads(_MOST_THREADS)

    @property
    def in_flight(self) -> int:
        """Requests that were sent and not answered yet, those that have lost included."""
        return self._threads.busy

    def first_answer(self, kind: str, request: Callable[[], _T], pacer: Pacer) -> _T:
        """The answer to `request`, which is made again, once, if it takes longer than most of its kind.

        Args:
            kind: as in `hedge_plan.read_kind`.
            request: made in any thread, and perhaps in two at once.
            pacer: while it holds requests back, none is made twice.

        Raises: what the request raises; UnavailableError once there is nothing left to wait for.
        """
        with self._lock:
            delay = self._plan.delay_seconds(kind)
        race = _Race(lambda: self._timed(kind, request), pacer, self._clock)
        if delay is None or not self._threads.start(race.run):
            return self._timed(kind, request)
        if not self._clock.sleep_seconds(delay, race.over):
            with self._lock:
                again = pacer.pace.rate is None and self._plan.spend()
            if again and race.enter():
                pacer.wait_for_turn()
                if not self._threads.start(race.run):
                    race.leave()
        return race.result()

    def _timed(self, kind: str, request: Callable[[], _T]) -> _T:
        began = self._clock.monotonic_seconds()
        answer = request()
        with self._lock:
            self._plan.observe(kind, self._clock.monotonic_seconds() - began)
        return answer


class _Race(Generic[_T]):
    """One request, perhaps made twice. It is over with the first answer, or when none is to come."""

    def __init__(self, request: Callable[[], _T], pacer: Pacer, clock: Clock) -> None:
        self._request = request
        self._pacer = pacer
        self._clock = clock
        self._lock = threading.Lock()
        self._entered = 1
        self._answer: list[_T] = []
        self._error: BaseException | None = None
        self.over = threading.Event()

    def enter(self) -> bool:
        """Count a further request; False if the race is over."""
        with self._lock:
            if self.over.is_set():
                return False
            self._entered += 1
            return True

    def leave(self) -> None:
        """Count one request less: it was not made, or has no answer."""
        with self._lock:
            self._entered -= 1
            if self._entered == 0:
                self.over.set()

    def run(self) -> None:
        """Make the request. Never raises."""
        began = self._clock.monotonic_seconds()
        try:
            answer = self._request()
        except UnavailableError as error:
            if isinstance(error, ThrottledError):
                self._pacer.refused(began, error)
            with self._lock:
                self._error = self._error or error
            self.leave()
        except BaseException as error:  # noqa: BLE001 (raised again in the thread that waits)
            with self._lock:
                if not self.over.is_set():
                    self._error = error
                self.over.set()
        else:
            with self._lock:
                if not self.over.is_set():
                    self._answer.append(answer)
                self.over.set()

    def result(self) -> _T:
        """Wait for the end of the race: the first answer, or why there is none."""
        self.over.wait()
        with self._lock:
            if self._answer:
                return self._answer[0]
            assert self._error is not None
            raise self._error


class _Threads:
    """Daemon threads, at most `most`, which end when idle: no lost request keeps a process alive."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0  # threads that wait for a job, less the jobs that wait for a thread

    @property
    def busy(self) -> int:
        with self._lock:
            return self._threads - self._idle

    def start(self, job: Callable[[], None]) -> bool:
        """Run it, which must not raise. False if all threads are busy: then it is not run."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name="dstl-hedge", daemon=True).start()
            else:
                return False
            self._jobs.put(job)
            return True

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._idle == 0:
                        continue  # a job was given to this thread just now
                    self._idle -= 1
                    self._threads -= 1
                    return
            job()
            del job  # it holds what was read
            with self._lock:
                self._idle += 1


_lock = threading.Lock()
_hedges: WeakSet[Hedge] = WeakSet()
_of_pacers: WeakKeyDictionary[Pacer, Hedge] = WeakKeyDictionary()


def hedge_of(pacer: Pacer, clock: Clock) -> Hedge:
    """The one of all requests that share this pacer, and its clock."""
    with _lock:
        found = _of_pacers.get(pacer)
        if found is None:
            found = _of_pacers[pacer] = Hedge(clock)
        return found


def _renew_all() -> None:
    global _lock
    _lock = threading.Lock()
    for hedge in list(_hedges):
        hedge._renew()


# The parent's threads are not in the child.
os.register_at_fork(after_in_child=_renew_all)
