"""The changes of one handle of a log by key group, for several folds of a few key groups each.

Owns finding them. Does not own reading them (`changelog`), or what they mean (`fold`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import FormatError
from dstl_dagster.format import META_KEY_GROUP, KeyGroupRange
from dstl_dagster.format.change_set_codec import MAX_INLINE_VIEW_BYTES
from dstl_dagster.format.changes import value_offsets

__all__ = ["CollectedChanges", "WrittenChange", "payloads", "without_schema"]

_ENTRY_BYTES: Final = 300
"""Of a change in memory, beside its bytes: roughly what Python's objects take."""


class WrittenChange(NamedTuple):
    """A change, and the stored schema that precedes it in the log."""

    key_group: int
    schema: bytes
    payload: pa.Buffer


class CollectedChanges:
    """All changes of one handle, in log order, as views of its record batches. Not changed once it is made.

    Args:
        log: as of `StateFold.add`.

    Attributes:
        held_bytes: in memory, roughly.

    Raises: FormatError if the first change is not a schema.
    """

    def __init__(self, log: Iterable[pa.RecordBatch]) -> None:
        self._by_group: dict[int, list[WrittenChange]] = {}
        self.held_bytes = 0
        schema: bytes | None = None
        for batch in log:
            groups = batch.column(0).to_numpy()
            rows = np.arange(len(groups))
            for key_group, change in zip(groups.tolist(), payloads(batch.column(1), rows), strict=True):
                if key_group == META_KEY_GROUP:
                    schema = change.to_pybytes()
                    continue
                if schema is None:
                    raise without_schema()
                self._by_group.setdefault(key_group, []).append(WrittenChange(key_group, schema, change))
                self.held_bytes += change.size + _ENTRY_BYTES

    def within(self, key_groups: Sequence[KeyGroupRange]) -> Iterator[WrittenChange]:
        """Those of these key groups, ascending and disjoint; of one key group in log order."""
        for each in key_groups:
            if each.number_of_key_groups < len(self._by_group):
                for group in each:
                    yield from self._by_group.get(group, ())
            else:
                for group, changes in self._by_group.items():
                    if each.contains(group):
                        yield from changes


def without_schema() -> FormatError:
    """What is raised for a log that does not begin with its schema."""
    return FormatError(
        "the changes of keyed state begin without their schema: this is not a log of keyed state"
    )


def payloads(changes: pa.Array, rows: npt.NDArray[np.int64]) -> Iterator[pa.Buffer]:
    """These values of a binary or binary_view array, not copied: a scalar of a view would be."""
    buffers = changes.buffers()
    if pt.is_binary_view(changes.type):
        views = np.frombuffer(buffers[1], np.int32).reshape(-1, 4)[rows + changes.offset]
        for row, (size, _, number, start) in zip(rows.tolist(), views.tolist(), strict=True):
            # Shorter values stand in the view itself.
            is_inline = size <= MAX_INLINE_VIEW_BYTES
            yield changes[row].as_buffer() if is_inline else buffers[2 + number].slice(start, size)
        return
    offsets = value_offsets(changes)
    for start, stop in zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True):
        yield buffers[2].slice(start, stop - start)
