"""What an open state keeps decoded between look-ups of keys: the changes in its small files.

Owns which handles these are, and their changes in memory. Does not own reading (`changelog`), where the
footers of the other files are kept, nor what a look-up needs (`keyed_state`).

A log is many small files. A look-up needs a little of each, and opening them takes longer than anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from dstl_dagster.changelog import ChangelogReader, HandleRead
from dstl_dagster.format import ChangelogStateHandle
from dstl_dagster.keyed.passes import smallest_within
from dstl_dagster.state import CollectedChanges

__all__ = ["KEPT_BYTES", "KeptLog", "collected", "kept_handles"]

KEPT_BYTES: Final = 32 << 20
"""Of payload, at most: as much as a pass over the state holds."""

_SMALL_FILE_BYTES: Final = 1 << 20
"""As stored. One look-up takes longer by what decoding such a file as a whole does, once."""

_LEAST_CHANGE_BYTES: Final = 512
"""On average: a change that is found by its key group takes some 300 bytes beside its own."""


def kept_handles(handles: Sequence[ChangelogStateHandle], max_bytes: int = KEPT_BYTES) -> frozenset[int]:
    """The indices of the handles that are kept once they are read: the smallest of those that are in small
    files, of `max_bytes` of payload at most together. Pure.
    """
    small = (number for number, handle in enumerate(handles) if _is_small(handle))
    return frozenset(smallest_within(handles, small, max_bytes))


def collected(
    handle: ChangelogStateHandle, log: list[pa.RecordBatch]
) -> list[pa.RecordBatch] | CollectedChanges:
    """What was read of the handle, for several folds: by key group, unless that is much more to hold."""
    changes = sum(batch.num_rows for batch in log)
    return CollectedChanges(log) if handle.state_size >= changes * _LEAST_CHANGE_BYTES else log


def _is_small(handle: ChangelogStateHandle) -> bool:
    sizes = [stream.stored_bytes for stream, _ in handle.handles_and_offsets]
    return all(size is not None and size <= _SMALL_FILE_BYTES for size in sizes)


class KeptLog:
    """Filled as look-ups need it. Any thread; two that need a handle at once both read it.

    Attributes:
        numbers: of the handles that are kept once they are read, if they then still fit.
    """

    def __init__(self, handles: Sequence[ChangelogStateHandle]) -> None:
        self.numbers = kept_handles(handles)
        self._handles = handles
        self._kept: dict[int, CollectedChanges] = {}

    def changes(self, reader: ChangelogReader, numbers: Sequence[int]) -> dict[int, CollectedChanges]:
        """All changes of these handles, by number. Raises: FormatError, what reading raises."""
        found = {number: kept for number in numbers if (kept := self._kept.get(number)) is not None}
        missing = [number for number in numbers if number not in found]
        if missing:
            handles = [self._handles[number] for number in missing]
            reads = [HandleRead(each, (each.key_group_range,), views=True) for each in handles]
            new = dict(zip(missing, map(CollectedChanges, reader.read_all(reads)), strict=True))
            left = KEPT_BYTES - sum(each.held_bytes for each in list(self._kept.values()))
            for number, changes in new.items():
                left -= changes.held_bytes
                if left >= 0:  # of tiny changes, many more bytes are held than their payload
                    self._kept[number] = changes
            found.update(new)
        return found
