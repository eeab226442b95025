"""How many bytes may be in flight at once, and the signal that there is room again.

Owns the in-flight count, the queue of blocked callers and the availability signal. Does not own what the
bytes are.

Source: Flink's `UploadThrottle` and `AvailabilityProvider`. Upstream admits a task of any size while one
byte is free; here the limit holds, except that a task larger than the limit may be in flight alone.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from dstl_dagster.errors import ClosedError, InternalError, InvalidInputError
from dstl_dagster.futures import MailboxFuture


class Availability(Protocol):
    """Whether more can be uploaded without blocking."""

    @property
    def is_available(self) -> bool:
        """Whether there is room now. True promises nothing for a task larger than the room."""
        ...

    def available_future(self) -> MailboxFuture[None]:
        """Done when there is room: at once if there is now. It fails with ClosedError on close.

        What follows it runs in the thread that made room, which uploads: it must not wait for another upload.
        """
        ...


class _AlwaysAvailable:
    @property
    def is_available(self) -> bool:
        return True

    def available_future(self) -> MailboxFuture[None]:
        future: MailboxFuture[None] = MailboxFuture()
        future.set_result(None)
        return future


ALWAYS_AVAILABLE: Availability = _AlwaysAvailable()


class UploadThrottle:
    """A byte budget, granted in order of arrival. All methods may be called from any thread."""

    def __init__(self, max_bytes_in_flight: int) -> None:
        if max_bytes_in_flight < 1:
            raise InvalidInputError(f"an in-flight limit of {max_bytes_in_flight} bytes would block for ever")
        self._max_bytes = max_bytes_in_flight
        self._condition = threading.Condition()
        self._in_flight_bytes = 0
        self._line: deque[object] = deque()
        self._closed = False
        self._room: MailboxFuture[None] | None = None

    @property
    def in_flight_bytes(self) -> int:
        with self._condition:
            return self._in_flight_bytes

    @property
    def is_available(self) -> bool:
        """Whether at least one byte is free."""
        with self._condition:
            return self._has_room()

    def available_future(self) -> MailboxFuture[None]:
        """Done when at least one byte is free."""
        with self._condition:
            if self._has_room():
                return ALWAYS_AVAILABLE.available_future()
            if self._closed:
                future: MailboxFuture[None] = MailboxFuture()
                future.set_exception(ClosedError("the upload scheduler is closed: open another storage"))
                return future
            if self._room is None:
                self._room = MailboxFuture()  # no waiter can cancel what other waiters share
            return self._room

    def seize(self, byte_count: int) -> None:
        """Take bytes out of the budget; blocks while they do not fit, first come, first served.

        ClosedError when it is closed before or meanwhile. An interrupted caller takes nothing.
        """
        ticket = object()
        with self._condition:
            self._line.append(ticket)
            try:
                while not self._closed and not (self._line[0] is ticket and self._fits(byte_count)):
                    self._condition.wait()
                if self._closed:
                    raise ClosedError("the upload scheduler was closed while the upload waited for room")
                self._in_flight_bytes += byte_count
            finally:
                self._line.remove(ticket)
                self._condition.notify_all()

    def release(self, byte_count: int) -> None:
        with self._condition:
            if byte_count > self._in_flight_bytes:
                raise InternalError(f"released {byte_count} of {self._in_flight_bytes} bytes in flight")
            self._in_flight_bytes -= byte_count
            room, freed = self._room, self._has_room()
            if freed:
                self._room = None
            self._condition.notify_all()
        # Outside the lock: a callback of the future may call in here at once.
        if freed and room is not None:
            room.set_result(None)

    def close(self) -> None:
        """Admit no other caller; blocked callers get ClosedError. Seized bytes may still be released."""
        with self._condition:
            self._closed = True
            room, self._room = self._room, None
            self._condition.notify_all()
        if room is not None:
            room.set_exception(ClosedError("the upload scheduler was closed while it had no room"))

    def _has_room(self) -> bool:
        return self._in_flight_bytes < self._max_bytes and not self._closed

    def _fits(self, byte_count: int) -> bool:
        return self._in_flight_bytes == 0 or self._in_flight_bytes + byte_count <= self._max_bytes
