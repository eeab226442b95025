"""A store whose requests fail as a schedule decides.

Owns the mechanics of faults. Does not own the schedule (`fault_schedules`) or storage: the inner store is
real. One `FaultStore` is one process's view of it: after a simulated crash, every further request of that
view raises `SimulatedCrash`, while other views of the same inner store keep working.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from dstl_dagster.clock import Clock
from dstl_dagster.errors import ConflictError, DstlError, UnavailableError
from dstl_dagster.storage import (
    Buffer,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    RangeReader,
    Source,
    WrapperRanges,
    WrapperReader,
    WrapperStore,
    WrapperWriter,
    check_delete_all,
    each_deleted,
)
from dstl_dagster.testing.fault_schedules import Fault, FaultSchedule, NoFaults, Request, SimulatedCrash
from dstl_dagster.testing.virtual_clock import VirtualClock

__all__ = ["FaultStore"]

_T = TypeVar("_T")
_LIST_PAGE_OBJECTS = 1000
_CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_LATE)


class _Process:
    """Shared by all buckets of one view: the requests so far, the crash, the effects in flight."""

    def __init__(
        self,
        schedule: FaultSchedule,
        clock: Clock,
        delay_seconds: float,
        before_request: Callable[[], None] | None,
    ) -> None:
        self.schedule = schedule
        self.before_request = before_request
        self.clock = clock
        self.delay_seconds = delay_seconds
        self.requests: list[Request] = []
        self.late_effects: list[Callable[[], object]] = []
        self.crashed = False
        self.lock = threading.RLock()

    def run(
        self,
        method: str,
        bucket_name: str,
        name: str,
        effect: Callable[[], _T],
        *,
        changes: bool = False,
        twin: Callable[[], object] | None = None,
    ) -> _T:
        if self.before_request is not None and not self.crashed:
            self.before_request()
        with self.lock:
            if self.crashed:
                raise SimulatedCrash("the process is dead")
            self._deliver_due()
            request = Request(len(self.requests), method, bucket_name, name, changes)
            self.requests.append(request)
            fault = self.schedule.decide(request)
            if fault in _CRASHES:
                self.crashed = True
        if fault is None:
            return effect()
        return self._fail(fault, request, effect, twin or effect)

    def _fail(
        self, fault: Fault, request: Request, effect: Callable[[], _T], twin: Callable[[], object]
    ) -> _T:
        message = f"{fault.value} at request {request.index} ({request.method} {request.name!r})"
        if fault in _CRASHES:
            if fault is Fault.CRASH_AFTER and request.changes:
                _attempt(effect)
            if fault is Fault.CRASH_LATE and request.changes:
                with self.lock:
                    self.late_effects.append(effect)
            raise SimulatedCrash(message)
        if fault is Fault.LOST_ANSWER and request.changes:
            _attempt(effect)
            raise UnavailableError(message)
        if fault is Fault.LATE_EFFECT and request.changes:
            with self.lock:
                self.late_effects.append(effect)
            raise UnavailableError(message)
        if fault is Fault.REPEATED:
            if request.changes:
                with self.lock:
                    self.late_effects.append(twin)
            return effect()
        if fault is Fault.DELAY:
            self.clock.sleep_seconds(self.delay_seconds)
            return effect()
        if fault is Fault.CORRUPT:
            return _corrupted(effect())
        raise UnavailableError(message)

    def _deliver_due(self) -> None:
        waiting, self.late_effects = self.late_effects, []
        for effect in waiting:
            if self.schedule.deliver_late_effect():
                _attempt(effect)
            else:
                self.late_effects.append(effect)

    def deliver_late_effects(self) -> None:
        with self.lock:
            waiting, self.late_effects = self.late_effects, []
        for effect in waiting:
            _attempt(effect)


class FaultStore(WrapperStore):
    """An `ObjectStore` over `inner` with faults.

    Args:
        inner: a real store; several views may share it.
        schedule: which requests fail. Without one none does; `requests` still records them.
        clock: advanced by DELAY; by default a virtual one of its own.
        delay_seconds: by how much.
        before_request: called before each request, outside any lock: where actors take turns.
    """

    def __init__(
        self,
        inner: ObjectStore,
        schedule: FaultSchedule | None = None,
        *,
        clock: Clock | None = None,
        delay_seconds: float = 30.0,
        before_request: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(inner)
        self._process = _Process(
            schedule or NoFaults(), clock or VirtualClock(), delay_seconds, before_request
        )

    # -- for the test

    @property
    def requests(self) -> Sequence[Request]:
        """Every request so far, including failed ones."""
        return tuple(self._process.requests)

    @property
    def crashed(self) -> bool:
        """True once a request crashed this view's process."""
        return self._process.crashed

    def deliver_late_effects(self) -> None:
        """Let every effect still in flight arrive; each does what is still possible."""
        self._process.deliver_late_effects()

    # -- requests

    def _run(
        self,
        method: str,
        name: str,
        effect: Callable[[], _T],
        *,
        changes: bool = False,
        twin: Callable[[], object] | None = None,
    ) -> _T:
        where = self.prefix + name
        return self._process.run(method, self.bucket_name, where, effect, changes=changes, twin=twin)

    def put(self, name: str, payload: Buffer, **options: Any) -> ObjectStat:
        kept = bytes(payload)
        return self._run("put", name, lambda: self._inner.put(name, kept, **options), changes=True)

    def open_write(self, name: str, *, chunk_size: int | None = None, **options: Any) -> ObjectWriter:
        upload = self._inner.open_write(name, chunk_size=chunk_size, **options)
        return _FaultWriter(self, name, upload, lambda payload: self._inner.put(name, payload, **options))

    def stat(self, name: str, **options: Any) -> ObjectStat | None:
        return self._run("stat", name, lambda: self._inner.stat(name, **options))

    def get(self, name: str, **options: Any) -> bytes:
        return self._run("get", name, lambda: self._inner.get(name, **options))

    def get_range(self, name: str, start: int, length: int, **options: Any) -> bytes | memoryview:
        return self._run("get_range", name, lambda: self._inner.get_range(name, start, length, **options))

    def open_ranges(self, name: str, **options: Any) -> RangeReader | None:
        forward = super().open_ranges
        inner = self._run("open_ranges", name, lambda: forward(name, **options))
        return None if inner is None else _FaultRanges(self, name, inner)

    def open_read(self, name: str, **options: Any) -> ObjectReader:
        reader = self._run("open_read", name, lambda: self._inner.open_read(name, **options))
        return _FaultReader(self, name, reader)

    def list(self, prefix: str = "", **options: Any) -> Iterator[ObjectStat]:
        found = self._inner.list(prefix, **options)
        while True:
            page = self._run("list", prefix, lambda: _page(found))
            yield from page
            if len(page) < _LIST_PAGE_OBJECTS:
                return

    def list_first(self, prefix: str, count: int, **options: Any) -> Sequence[ObjectStat]:
        forward = super().list_first
        return self._run("list", prefix, lambda: forward(prefix, count, **options))

    def compose(self, sources: Sequence[Source], target: str, **options: Any) -> ObjectStat:
        return self._run(
            "compose", target, lambda: self._inner.compose(sources, target, **options), changes=True
        )

    def copy(self, source: Source, target: str, **options: Any) -> ObjectStat:
        forward = super().copy
        return self._run("copy", target, lambda: forward(source, target, **options), changes=True)

    def delete(self, name: str, **options: Any) -> bool:
        return self._run("delete", name, lambda: self._inner.delete(name, **options), changes=True)

    def delete_all(self, objects: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        """One request for each object: a batch may be cut anywhere."""
        check_delete_all(objects)
        return each_deleted(self, objects)


class _FaultWriter(WrapperWriter):
    def __init__(
        self, store: FaultStore, name: str, upload: ObjectWriter, put_again: Callable[[bytes], ObjectStat]
    ) -> None:
        super().__init__(upload)
        self._store = store
        self._name = name
        self._put_again = put_again
        self._sent: list[bytes] = []

    def write(self, payload: Buffer, crc32c: int | None = None) -> int:
        octets = bytes(payload)
        self._sent.append(octets)
        try:
            return self._store._run("write", self._name, lambda: self._inner.write(octets, crc32c))
        except UnavailableError:
            self.abort()  # how much arrived is unknown: by contract, the upload ends here
            raise

    def close(self) -> ObjectStat:
        # An upload in a single request, arriving twice, writes the object a second time.
        return self._store._run(
            "finish",
            self._name,
            self._inner.close,
            changes=True,
            twin=lambda: self._put_again(b"".join(self._sent)),
        )


class _FaultReader(WrapperReader):
    def __init__(self, store: FaultStore, name: str, reader: ObjectReader) -> None:
        super().__init__(reader)
        self._store = store
        self._name = name

    def read(self, size: int = -1) -> bytes:
        return self._store._run("read", self._name, lambda: self._inner.read(size))


class _FaultRanges(WrapperRanges):
    def __init__(self, store: FaultStore, name: str, ranges: RangeReader) -> None:
        super().__init__(ranges)
        self._store = store
        self._name = name

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        return self._store._run("read", self._name, lambda: self._inner.read_range(start, length))


def _attempt(effect: Callable[[], object]) -> None:
    # Nothing receives the answer to such a request, so a refusal has no receiver.
    try:
        effect()
    except DstlError:
        return


def _corrupted(answer: _T) -> _T:
    if isinstance(answer, bytes) and answer:
        middle = len(answer) // 2
        # `answer` is bytes here, and so is this; mypy cannot see that _T is.
        return answer[:middle] + bytes((answer[middle] ^ 0x40,)) + answer[middle + 1 :]  # type: ignore[return-value]
    return answer


def _page(found: Iterator[ObjectStat]) -> list[ObjectStat]:
    page: list[ObjectStat] = []
    for stat in found:
        page.append(stat)
        if len(page) == _LIST_PAGE_OBJECTS:
            break
    return page
