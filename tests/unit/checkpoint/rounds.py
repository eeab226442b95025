"""Round trips one after another, exactly: a store on which each request takes one unit of virtual time.

Threads overlap in that time, and run one after another in ours: an executor's task runs when it is submitted,
and its time begins when a worker of the pool would have been free. So the count is the same on each machine.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dstl_dagster.storage import ObjectStat, ObjectStore, Precondition
from tests.unit.checkpoint.counting import Counted


class Rounds:
    """The virtual time. `monkeypatch` replaces the thread pools of the package for the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        for name, module in list(sys.modules.items()):
            if (
                name.startswith("dstl_dagster.")
                and vars(module).get("ThreadPoolExecutor") is ThreadPoolExecutor
            ):
                monkeypatch.setattr(module, "ThreadPoolExecutor", self._pool)

    def _pool(self, max_workers: int = 8, thread_name_prefix: str = "") -> _Pool:
        del thread_name_prefix
        return _Pool(self, max_workers)


class _Done(Future[Any]):
    def __init__(self, time: Rounds, end: int) -> None:
        super().__init__()
        self._time = time
        self._end = end

    def result(self, timeout: float | None = None) -> Any:
        self._time.now = max(self._time.now, self._end)
        return super().result(timeout)


class _Pool:
    """An executor of `max_workers` virtual threads. A task must not wait for one that is submitted later."""

    def __init__(self, time: Rounds, max_workers: int) -> None:
        self._time = time
        self._free_at = [time.now] * max_workers

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._time.now = max(self._time.now, *self._free_at)

    def submit(self, job: Callable[..., Any], *arguments: Any) -> Future[Any]:
        submitted = self._time.now
        self._time.now = max(submitted, heapq.heappop(self._free_at))
        result, error = None, None
        try:
            result = job(*arguments)
        except Exception as raised:
            error = raised
        done = _Done(self._time, self._time.now)
        heapq.heappush(self._free_at, self._time.now)
        self._time.now = submitted
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
        return done

    def map(self, job: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        started = [self.submit(job, item) for item in items]
        return (each.result() for each in started)


class RoundsStore(Counted):
    """A bucket whose requests take one unit of `time` each, and are counted."""

    def __init__(self, inner: ObjectStore, time: Rounds) -> None:
        super().__init__(inner)
        self.time = time

    def measured(self, step: Callable[[], Any]) -> tuple[int, int, Any]:
        """The round trips one after another of `step`, its requests, and its result."""
        self.requests.clear()
        began = self.time.now
        result = step()
        return self.time.now - began, self.requests.total(), result

    def put(self, name: str, payload: Any, **how: Any) -> ObjectStat:
        self.time.now += 1
        return super().put(name, payload, **how)

    def stat(self, name: str, **how: Any) -> ObjectStat | None:
        self.time.now += 1
        return super().stat(name, **how)

    def get(self, name: str, **how: Any) -> bytes:
        self.time.now += 1
        return super().get(name, **how)

    def list(self, prefix: str = "", **how: Any) -> Iterator[ObjectStat]:
        self.time.now += 1
        yield from super().list(prefix, **how)

    def list_first(self, prefix: str, count: int, **how: Any) -> Sequence[ObjectStat]:
        self.time.now += 1
        return super().list_first(prefix, count, **how)

    def compose(self, sources: Any, target: str, **how: Any) -> ObjectStat:
        self.time.now += 1
        return super().compose(sources, target, **how)

    def delete(self, name: str, **how: Any) -> bool:
        self.time.now += 1
        return super().delete(name, **how)

    def delete_all(self, objects: Sequence[tuple[str, Precondition]]) -> Any:
        self.time.now += 1
        return super().delete_all(objects)
