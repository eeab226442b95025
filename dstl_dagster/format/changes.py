"""State changes in memory: single changes, columns of them, and the change set of one sequence number.

Owns their shape and their sizes. Does not own their form in a file (`change_set_codec`).
Twin of Flink's `StateChange` and `StateChangeSet`; the columns have no twin.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.sequence import SequenceNumber

META_KEY_GROUP: Final = -1
"""The key group of metadata on disk and in `StateChange.key_group`, as in Flink."""

MAX_CHANGE_BYTES: Final = 2**31 - 2**16
"""The largest single change: with its header it must fit into one buffer with 32-bit offsets."""

_MAX_INT32_PAYLOAD_BYTES: Final = 2**31 - 2**16

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class StateChange(NamedTuple):
    """One change of one key group, or of the metadata (`key_group` -1). The bytes are not copied."""

    key_group: int
    change: bytes

    @classmethod
    def of(cls, key_group: int, change: bytes) -> StateChange:
        """A change of a key group, 0 or more. InvalidInputError for a negative one, or if not bytes."""
        if key_group < 0:
            raise InvalidInputError(f"key group {key_group} is negative: use StateChange.meta for metadata")
        return cls(key_group, checked_change(change))

    @classmethod
    def meta(cls, change: bytes) -> StateChange:
        """A metadata change, which has no key group."""
        return cls(META_KEY_GROUP, checked_change(change))

    def __repr__(self) -> str:
        # The bytes are the user's state, which must not end up in logs.
        return f"StateChange(key_group={self.key_group}, size_bytes={len(self.change)})"

    def __str__(self) -> str:
        return repr(self)


def checked_change(change: object) -> bytes:
    """`change` as immutable bytes. InvalidInputError for anything that is not bytes-like."""
    if isinstance(change, bytes):
        return change
    if isinstance(change, bytearray | memoryview):
        return bytes(change)
    raise InvalidInputError(f"a change is bytes, not {type(change).__name__}: serialise the value first")


class ChangeRun:
    """Consecutive changes of one writer, as columns, or as rows that become columns on demand.

    Immutable. `size_bytes` counts payload only.
    """

    __slots__ = ("_columns", "_rows", "size_bytes")

    def __init__(
        self,
        rows: tuple[list[int], list[bytes]] | None,
        columns: tuple[Int32s, pa.Array] | None,
        size_bytes: int,
    ) -> None:
        self._rows = rows
        self._columns = columns
        self.size_bytes = size_bytes

    @classmethod
    def of_rows(cls, key_groups: list[int], changes: list[bytes], size_bytes: int) -> ChangeRun:
        """A run of two lists of one length. Takes ownership of both."""
        return cls((key_groups, changes), None, size_bytes)

    @classmethod
    def of_columns(cls, key_groups: Int32s, changes: pa.Array) -> ChangeRun:
        """A run of two columns of one length: int32, and binary or large_binary without nulls."""
        return cls(None, (key_groups, changes), payload_bytes(changes))

    def __len__(self) -> int:
        if self._rows is not None:
            return len(self._rows[0])
        assert self._columns is not None
        return len(self._columns[0])

    def columns(self) -> tuple[Int32s, pa.Array]:
        """Key groups, and changes as a binary array (large_binary beyond 32-bit offsets)."""
        if self._columns is not None:
            return self._columns
        assert self._rows is not None
        key_groups, changes = self._rows
        arrow_type = pa.binary() if self.size_bytes <= _MAX_INT32_PAYLOAD_BYTES else pa.large_binary()
        # Not cached: the rows are still referenced, and a second copy would double the memory.
        return np.array(key_groups, dtype=np.int32), pa.array(changes, arrow_type)

    def __iter__(self) -> Iterator[StateChange]:
        if self._rows is not None:
            yield from map(StateChange._make, zip(*self._rows, strict=True))
            return
        assert self._columns is not None
        key_groups, changes = self._columns
        for key_group, change in zip(key_groups.tolist(), changes, strict=True):
            yield StateChange(key_group, change.as_py())


def payload_bytes(changes: pa.Array) -> int:
    """Bytes of all values of a binary or large_binary array without nulls."""
    offsets = value_offsets(changes)
    return int(offsets[-1]) - int(offsets[0])


def value_offsets(changes: pa.Array) -> Int32s | Int64s:
    """The n+1 offsets of a binary or large_binary array, as a view of its buffer."""
    dtype: Any = np.int64 if pa.types.is_large_binary(changes.type) else np.int32
    if len(changes) == 0:
        return np.zeros(1, dtype=dtype)
    offsets_buffer = changes.buffers()[1]
    offsets: Int32s | Int64s = np.frombuffer(
        offsets_buffer, dtype=dtype, count=len(changes) + 1, offset=changes.offset * dtype().itemsize
    )
    return offsets


class ChangeColumns(Sequence[StateChange]):
    """Changes in append order, stored as runs; a `Sequence` for callers that need single changes."""

    __slots__ = ("runs",)

    def __init__(self, runs: Iterable[ChangeRun]) -> None:
        self.runs = tuple(runs)

    @classmethod
    def of_changes(cls, changes: Iterable[StateChange]) -> ChangeColumns:
        """One run of these changes."""
        rows = list(changes)
        values = [row.change for row in rows]
        return cls([ChangeRun.of_rows([row.key_group for row in rows], values, sum(map(len, values)))])

    @property
    def size_bytes(self) -> int:
        """Payload bytes."""
        return sum(run.size_bytes for run in self.runs)

    def __len__(self) -> int:
        return sum(len(run) for run in self.runs)

    def __iter__(self) -> Iterator[StateChange]:
        for run in self.runs:
            yield from run

    @overload
    def __getitem__(self, index: int) -> StateChange: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[StateChange]: ...
    def __getitem__(self, index: int | slice) -> StateChange | Sequence[StateChange]:
        return list(self)[index]


class StateChangeSet:
    """All changes of one writer under one sequence number: those between two roll-overs.

    Attributes:
        log_id: the writer's log.
        sequence_number: its position in the log.
        changes: in append order.
        size: payload bytes, without headers, uncompressed.
    """

    __slots__ = ("changes", "log_id", "sequence_number", "size")

    def __init__(
        self, log_id: uuid.UUID, sequence_number: SequenceNumber, changes: Sequence[StateChange]
    ) -> None:
        self.log_id = log_id
        self.sequence_number = sequence_number
        self.changes = changes if isinstance(changes, ChangeColumns) else ChangeColumns.of_changes(changes)
        self.size = self.changes.size_bytes

    def __repr__(self) -> str:
        return (
            f"StateChangeSet(log_id={self.log_id}, sequence_number={self.sequence_number}, size={self.size})"
        )
