"""The footers of the files that one reader has read, so that the next read of them begins with the changes.

Owns which are kept. Does not own what is in them (`format.read_footer`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from dstl_dagster.format.handles import StreamStateHandle
from dstl_dagster.format.read_footer import ReadFooter

__all__ = ["KnownFooters"]

_MOST_BYTES: Final = 8 << 20
"""About a thousandth of the files that it describes."""


class KnownFooters:
    """The footers of immutable files, by handle; those that were unused for longest go. Any thread.

    Args:
        most_bytes: in memory, roughly, beside the footer that was read last.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int | None], tuple[ReadFooter, int]] = OrderedDict()
        self._bytes = 0

    def of(self, stream: StreamStateHandle) -> ReadFooter:
        """What is known of this file; a new one, to be filled and kept, if nothing is."""
        with self._lock:
            found = self._kept.get(_key(stream))
            if found is None:
                return ReadFooter()
            self._kept.move_to_end(_key(stream))
            return found[0]

    def keep(self, stream: StreamStateHandle, footer: ReadFooter) -> None:
        """Keep what was read, if the handle tells which generation it is of."""
        if stream.generation is None or not footer.opened:
            return
        size = footer.held_bytes
        with self._lock:
            _, before = self._kept.pop(_key(stream), (None, 0))
            self._kept[_key(stream)] = (footer, size)
            self._bytes += size - before
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._bytes -= dropped


def _key(stream: StreamStateHandle) -> tuple[str, int | None]:
    return stream.name, stream.generation
