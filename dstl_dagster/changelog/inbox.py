"""Upload results on their way to the writer's thread. Owns the one lock between it and all others."""

from __future__ import annotations

import threading
from collections import deque

from dstl_dagster.format.sequence import SequenceNumber
from dstl_dagster.upload import UploadResult

__all__ = ["Arrival", "Inbox"]

Arrival = tuple[int | None, list[UploadResult]] | tuple[list[SequenceNumber], BaseException]
"""A checkpoint id (None: pre-emptive) and the results; or the positions that failed, and why."""


class Inbox:
    """A queue that refuses once it is closed. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Arrival] = deque()
        self._closed = False

    def put(self, arrival: Arrival) -> bool:
        """False once closed: the caller keeps the arrival."""
        with self._lock:
            if not self._closed:
                self._waiting.append(arrival)
            return not self._closed

    def take(self) -> Arrival | None:
        """The oldest; `None` where there is none."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def close(self) -> list[Arrival]:
        """Refuse from now on. Returns what was not taken."""
        with self._lock:
            self._closed = True
            unread = list(self._waiting)
            self._waiting.clear()
            return unread
