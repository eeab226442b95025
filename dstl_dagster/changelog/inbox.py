"""Where results of uploads wait for the writer's own thread. Owns the one lock between it and all others."""

from __future__ import annotations

import threading
from collections import deque

from dstl_dagster.format.sequence import SequenceNumber
from dstl_dagster.upload import UploadResult

__all__ = ["Arrival", "Inbox"]

Arrival = tuple[int | None, list[UploadResult]] | tuple[list[SequenceNumber], BaseException]
"""A checkpoint (or none, where nobody asked) and what was uploaded for it; or what failed, and why."""


class Inbox:
    """A queue that refuses once it is closed. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Arrival] = deque()
        self._closed = False

    def put(self, arrival: Arrival) -> bool:
        """False where it is closed: the arrival is the caller's still."""
        with self._lock:
            if not self._closed:
                self._waiting.append(arrival)
            return not self._closed

    def take(self) -> Arrival | None:
        """The oldest one; `None` where none waits."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def close(self) -> list[Arrival]:
        """Refuse from now on; what nobody took."""
        with self._lock:
            self._closed = True
            unread = list(self._waiting)
            self._waiting.clear()
            return unread
