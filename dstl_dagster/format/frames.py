"""The table of frames in a footer, and which frames of a change set hold some key groups. Pure.

Owns the table's bytes and that choice. Does not own how frames are compressed (`compression`), where the
table is (`footer`), or reading a frame (`changelog_file`).

A frame is a piece of a change set that is stored, compressed and checksummed by itself; end to end, the
frames are the change set. The table is optional, and only change sets of several frames are in it: without
it a change set is read whole. In order, unsigned 32-bit and little-endian:

    frames of each change set; 0: not in the table
    for each of these frames: its size, its stored size, CRC-32C of its `size` bytes
    size of the table up to here, CRC-32C of the table up to here
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from dstl_dagster.errors import ErrorKind, FormatError
from dstl_dagster.format.change_set_codec import ChangeSetLayout
from dstl_dagster.format.changes import META_KEY_GROUP
from dstl_dagster.format.key_groups import KeyGroupRange

__all__ = [
    "TABLE_END_BYTES",
    "ChangeSetPart",
    "Frames",
    "decode_frame_table",
    "encode_frame_table",
    "frame_table_bytes",
    "has_any",
    "is_within",
    "part_of",
]

_TABLE_END: Final = struct.Struct("<II")
TABLE_END_BYTES: Final = _TABLE_END.size
_NUMBERS: Final = 3
_FEW_RANGES: Final = 4
"""Up to so many, comparing with each is as fast as a search."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Frames:
    """The frames of one change set, in order. All int64, of one length.

    Attributes:
        sizes: bytes of the change set in each frame.
        stored_sizes: bytes of each frame in the file.
        crc32cs: CRC-32C of each frame's `sizes` bytes.
    """

    sizes: Int64s
    stored_sizes: Int64s
    crc32cs: Int64s

    @classmethod
    def of(cls, frames: Sequence[tuple[int, int, int]]) -> Frames:
        """From (size, stored size, CRC-32C) of each."""
        return cls(*np.array(frames, np.int64).reshape(-1, _NUMBERS).T)

    def __len__(self) -> int:
        return len(self.sizes)


def frame_table_bytes(tables: Sequence[Frames | None]) -> int:
    """The length of what `encode_frame_table` returns."""
    frames = sum(len(each) for each in tables if each is not None)
    return 4 * (len(tables) + _NUMBERS * frames) + TABLE_END_BYTES


def encode_frame_table(tables: Sequence[Frames | None]) -> bytes:
    """The table of a file; one entry for each of its change sets, in file order."""
    counts = np.array([0 if each is None else len(each) for each in tables], "<u4")
    rows = [
        np.stack([each.sizes, each.stored_sizes, each.crc32cs], axis=1).astype("<u4").tobytes()
        for each in tables
        if each is not None
    ]
    table = counts.tobytes() + b"".join(rows)
    return table + _TABLE_END.pack(len(table), google_crc32c.value(table))


def decode_frame_table(table: bytes, sets: Sequence[tuple[int, int]]) -> list[Frames | None]:
    """The frames of each change set; `None` for one that is not in the table.

    `sets`: size and stored size of each change set of the file.

    Raises: FormatError if the table does not match its checksum, or the change sets.
    """
    size, crc = _TABLE_END.unpack_from(table, len(table) - TABLE_END_BYTES)
    if size != len(table) - TABLE_END_BYTES or size % 4 or google_crc32c.value(table[:size]) != crc:
        raise FormatError("the footer's frames do not match their checksum", kind=ErrorKind.CHECKSUM)
    numbers = np.frombuffer(table[:size], "<u4").astype(np.int64)
    counts, rest = numbers[: len(sets)], numbers[len(sets) :]
    if len(counts) != len(sets) or len(rest) != _NUMBERS * counts.sum():
        raise FormatError("the footer's frames are not of its change sets")
    rows = rest.reshape(-1, _NUMBERS)
    found: list[Frames | None] = []
    for (set_size, stored_size), start, count in zip(
        sets, (counts.cumsum() - counts).tolist(), counts.tolist(), strict=True
    ):
        frames = Frames(*rows[start : start + count].T)
        if count and (frames.sizes.sum(), frames.stored_sizes.sum()) != (set_size, stored_size):
            raise FormatError("the footer's frames are not those of its change sets")
        found.append(frames if count else None)
    return found


@dataclass(frozen=True)
class ChangeSetPart:
    """Some whole key groups of a change set, metadata included, and the frames that hold them.

    Attributes:
        layout: of a change set that has these key groups alone.
        frames: of the whole change set.
        runs: neighbouring frames to read, as [first, stop); ascending.
        pieces: [start, end) in the whole change set of the bytes to keep; ascending.
    """

    layout: ChangeSetLayout
    frames: Frames
    runs: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[int, int], ...]

    def stored_ranges(self) -> Iterator[tuple[int, int]]:
        """Where each run is stored, as (start, length), counted from the beginning of the change set."""
        ends = self.frames.stored_sizes.cumsum()
        for first, stop in self.runs:
            start = int(ends[first - 1]) if first else 0
            yield start, int(ends[stop - 1]) - start

    def places_in(self, whole: ChangeSetLayout) -> tuple[Int64s, Int64s]:
        """The positions in the whole change set of the part's group headers, and of its changes' first bytes.

        `whole`: the layout that the part is of.
        """
        wanted = np.isin(whole.key_groups, self.layout.key_groups)
        groups, starts = whole.places
        return groups[wanted], starts[np.repeat(wanted, whole.counts)]


def part_of(
    layout: ChangeSetLayout, frames: Frames, key_groups: Sequence[KeyGroupRange], *, most: float = 0.75
) -> ChangeSetPart | None:
    """How to read these key groups alone; `None` where that is more than `most` of the change set.

    `layout` and `frames` must be of one change set, which has some of `key_groups`, or metadata.
    """
    wanted = is_within(layout.key_groups, key_groups) | (layout.key_groups == META_KEY_GROUP)
    bounds = layout.group_bounds()
    starts, stops = bounds[:-1][wanted], bounds[1:][wanted]
    frame_ends = frames.sizes.cumsum()
    first = np.searchsorted(frame_ends, starts, side="right")
    last = np.searchsorted(frame_ends, stops - 1, side="right")
    # A frame is read once, also where one key group ends and the next begins in it.
    steps = np.zeros(len(frames) + 1, np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, last + 1, -1)
    held = np.flatnonzero(steps.cumsum()[:-1])
    if int(frames.sizes[held].sum()) > most * layout.encoded_bytes:
        return None
    return ChangeSetPart(
        layout.restricted_to(wanted),
        frames,
        tuple(_runs(held, held + 1)),
        tuple(_runs(starts, stops)),
    )


def _runs(starts: Int64s, stops: Int64s) -> Iterator[tuple[int, int]]:
    """These ascending [start, stop), neighbours joined."""
    breaks = np.flatnonzero(starts[1:] != stops[:-1])
    firsts = starts[np.append(0, breaks + 1)]
    lasts = stops[np.append(breaks, len(stops) - 1)]
    yield from zip(firsts.tolist(), lasts.tolist(), strict=True)


def is_within(key_groups: npt.NDArray[np.int32], ranges: Sequence[KeyGroupRange]) -> npt.NDArray[np.bool_]:
    """For each of these key groups, whether it is in one of the ranges."""
    found = np.zeros(len(key_groups), np.bool_)
    if len(ranges) > _FEW_RANGES and len(key_groups):
        bounds = sorted((each.start_key_group, each.end_key_group) for each in ranges)
        starts, ends = np.array(bounds, np.int64).T
        at = np.searchsorted(starts, key_groups, side="right") - 1
        # Ranges may overlap: what counts is how far those before it reach.
        within: npt.NDArray[np.bool_] = (at >= 0) & (key_groups <= np.maximum.accumulate(ends)[at])
        return within
    for each in ranges:
        found |= (key_groups >= each.start_key_group) & (key_groups <= each.end_key_group)
    return found


def has_any(layout: ChangeSetLayout, key_groups: Sequence[KeyGroupRange]) -> bool:
    """Whether a change set has metadata or one of these key groups."""
    found = layout.key_groups
    return bool((is_within(found, key_groups) | (found == META_KEY_GROUP)).any())
