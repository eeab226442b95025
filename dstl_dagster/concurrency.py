"""Calls in several threads whose results come in order, values that several threads want, and the parts that
a forked child begins anew.

Owns every pool that lives as long as one operation, how far reading runs ahead of its reader, what is cached
in memory, and the hook that a fork runs. Does not own whether a call is worth a thread
(`storage.StoreCapabilities`), nor threads that live longer: those of uploads (`upload`) and of deletions
(`registry`).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Final, Generic, Protocol, Self, TypeVar
from weakref import ref

T = TypeVar("T")
U = TypeVar("U")

Progress = Callable[[int, int], None]
"""Called with how many things are done, and how many there are, which may grow."""

AHEAD_BYTES: Final = 32 << 20
"""Fetched and not yet used, at most, or one result where that is longer. What 50 ms are worth at 640 MB/s."""


_MOST_PASSES: Final = 3
"""Each is in memory, up to `AHEAD_BYTES`. With more, one thread that uses them does not keep up."""


def passes_ahead() -> int:
    """How many passes a process with the machine to itself reads ahead: one for each core, up to three."""
    return min(_MOST_PASSES, os.cpu_count() or 1)


_LARGEST: Final = 8
"""Of what is kept in memory, no value weighs more than this part."""


class Closing(Protocol):
    """A `with` block closes it at its end."""

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Submit(Protocol):
    """Runs a call in another thread."""

    def __call__(self, call: Callable[[], T], /) -> Future[T]: ...


class ReadAhead(Generic[T]):
    """Calls whose results are taken in order; other threads make them ahead once `run` has named some.

    A call begins as long as the results that are not taken yet, and the one taken last, weigh `most` at most
    together; the next result may always come. One thread at a time.

    Args:
        calls: what each result weighs, mostly in bytes, and the call.
    """

    def __init__(self, calls: Iterable[tuple[int, Callable[[], T]]] = (), most: int = AHEAD_BYTES) -> None:
        self._waiting = deque(calls)
        self._most = most
        self._coming: deque[tuple[int, Future[T]]] = deque()
        self._in_use = 0
        self._submit: Submit | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting or self._coming)

    def run(self, submit: Submit) -> None:
        """From now on calls are made by other threads."""
        self._submit = submit
        self._begin()

    def take(self) -> T:
        """The next result; the call is made here if no other thread has begun it. Raises: as the call."""
        if self._coming:
            self._in_use, future = self._coming.popleft()
            result = future.result()
        else:
            self._in_use, call = self._waiting.popleft()
            result = call()
        self._begin()
        return result

    def _begin(self) -> None:
        if self._submit is None:
            return
        weight = self._in_use + sum(size for size, _ in self._coming)
        while self._waiting and (not weight or weight + self._waiting[0][0] <= self._most):
            size, call = self._waiting.popleft()
            weight += size
            self._coming.append((size, self._submit(call)))

    def close(self) -> None:
        """Begin no further call. Those under way go on, in their threads."""
        self._waiting.clear()
        while self._coming:
            self._coming.popleft()[1].cancel()


def read_ahead(calls: Sequence[Callable[[], T]], count: int, name: str) -> Generator[T, None, None]:
    """The result of each call, in order. While one result is used, the next `count` calls are under way or
    done, and no more. A single call is made by the caller's own thread.

    Raises: what a call raises, where its result would come. Close the iterator if it is not walked to its
    end: that waits for the calls under way. `name`: of the threads.
    """
    if len(calls) < 2:
        for call in calls:
            yield call()
        return
    with (
        ThreadPoolExecutor(min(count, len(calls)), thread_name_prefix=name) as pool,
        closing(ReadAhead([(1, call) for call in calls], count + 1)) as ahead,
    ):
        ahead.run(pool.submit)
        while ahead:
            # Not named here: what a result holds may go before the next one is there.
            yield ahead.take()


def in_order(calls: Sequence[Callable[[], T]], threads: int, name: str) -> Generator[T, None, None]:
    """All results, in order; the calls begin as soon as a thread is free. One after another, as they are
    taken, if `threads` is 1. `name`: of the threads.

    Raises: the first error in their order; what has not begun by then is left out.
    """
    if threads == 1 or len(calls) < 2:
        for call in calls:
            yield call()
        return
    with ThreadPoolExecutor(min(threads, len(calls)), thread_name_prefix=name) as pool:
        results = [pool.submit(call) for call in calls]
        try:
            for each in results:
                yield each.result()
        finally:
            for each in results:
                each.cancel()


def gather(calls: Sequence[Callable[[], T]], threads: int, name: str) -> list[T]:
    """All of `in_order`. Returns, or raises, once no call is under way."""
    return list(in_order(calls, threads, name))


def both(first: Callable[[], T], second: Callable[[], U], threads: int) -> tuple[T, U]:
    """Both results, for the time of the longer one; one after the other with a single thread.

    Raises: the error of `first` if it has one, else that of `second`. Either way both have ended.
    """
    if threads == 1:
        return first(), second()
    with ThreadPoolExecutor(1, thread_name_prefix="dstl-both") as pool:
        other = pool.submit(second)
        found = first()
        return found, other.result()


_renewals: dict[ref[Any], Callable[[Any], None]] = {}
_functions: list[Callable[[], None]] = []


def after_fork(renew: Callable[[], None]) -> None:
    """Call `renew` in every child that this process forks from now on; a method as long as its object lives.

    In the child there is one thread. All that the parent's other threads held or did is half done for ever: a
    lock has to be made anew, a descriptor, a connection or a file is the parent's.
    """
    if isinstance(renew, MethodType):
        _renewals[ref(renew.__self__, _drop)] = renew.__func__
    else:
        _functions.append(renew)


def _drop(dead: ref[Any], renewals: dict[ref[Any], Callable[[Any], None]] = _renewals) -> None:
    renewals.pop(dead, None)


def _renew_all() -> None:
    for function in _functions:
        function()
    for each, method in list(_renewals.items()):
        owner = each()
        if owner is not None:
            method(owner)


os.register_at_fork(after_in_child=_renew_all)


@dataclass
class _Flight:
    """Fetching one value, and how many wait for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class Memory:
    """Values by key, the longest unused dropped first. A forked child begins without any. Any thread.

    Args:
        most: what all values weigh together, mostly in bytes.

    Attributes:
        largest: a value that weighs more is not kept.
    """

    def __init__(self, most: int) -> None:
        self.largest = most // _LARGEST
        self._most = most
        self._renew()
        after_fork(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._flights: dict[Hashable, _Flight] = {}
        self._weight = 0

    def find(self, key: Hashable) -> Any:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def keep(self, key: Hashable, value: object, weight: int) -> None:
        if weight > self.largest:
            return
        with self._lock:
            _, before = self._kept.pop(key, (None, 0))
            self._kept[key] = (value, weight)
            self._weight += weight - before
            while self._weight > self._most:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._weight -= dropped

    @contextmanager
    def one_at_a_time(self, key: Hashable) -> Iterator[None]:
        """A second caller for the same waits: the first one's answer may be cached."""
        with self._lock:
            flight = self._flights.setdefault(key, _Flight())
            flight.users += 1
        try:
            with flight.lock:
                yield
        finally:
            with self._lock:
                flight.users -= 1
                if flight.users == 0 and self._flights.get(key) is flight:
                    del self._flights[key]
