"""Some key groups of a change set, read by the frames that hold them.

Owns which frames those are, which of them are needed for some bytes, and what is in memory: a frame is
decompressed and verified once a byte of it is needed. Does not own where frames are stored (`footer`),
fetching them (`changelog_file`), or which bytes of a change somebody needs (`state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.errors import ErrorKind, FormatError
from dstl_dagster.format.change_set_codec import GROUP_BYTES, LENGTH_BYTES, ChangeSetLayout
from dstl_dagster.format.changes import META_KEY_GROUP
from dstl_dagster.format.compression import Compression, decompressed_whole
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.format.footer import Frames
from dstl_dagster.format.key_groups import KeyGroupRange

__all__ = [
    "LARGE_CHANGE_BYTES",
    "ChangeSetPart",
    "FramedChange",
    "FramedChanges",
    "has_any",
    "has_large_changes",
    "is_within",
    "part_of",
    "verified_frames",
]

LARGE_CHANGE_BYTES: Final = 256 << 10
"""Of a change, on average: with less, hardly a frame of it would not be needed."""

Int64s = npt.NDArray[np.int64]
Octets = bytes | memoryview

_FEW_RANGES: Final = 4
"""Up to so many, comparing with each is as fast as a search."""


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


def verified_frames(
    compression: Compression, frames: Frames, first: int, stop: int, stored: Octets
) -> pa.Buffer:
    """The bytes of the frames `[first, stop)`, which are end to end in `stored`.

    Raises: FormatError if one does not match its checksum.
    """
    sizes = frames.sizes[first:stop]
    body = decompressed_whole(compression, stored, int(sizes.sum()))
    octets = memoryview(body).cast("B")
    bounds = pairwise([0, *sizes.cumsum().tolist()])
    for (start, end), crc in zip(bounds, frames.crc32cs[first:stop].tolist(), strict=True):
        if crc32c(octets[start:end]) != crc:
            raise FormatError("a frame of a change set does not match its checksum", kind=ErrorKind.CHECKSUM)
    return body


def has_large_changes(layout: ChangeSetLayout) -> bool:
    """Whether it is worth while to read some bytes of these changes and not others. Pure."""
    return layout.encoded_bytes >= LARGE_CHANGE_BYTES * max(1, len(layout.lengths))


@dataclass(frozen=True)
class FramedChange:
    """One change whose bytes are there once they were asked for.

    Attributes:
        buffer: its bytes; zeros where nothing was needed yet.
    """

    key_group: int
    buffer: pa.Buffer
    _start: int
    _body: FramedChanges

    @property
    def size(self) -> int:
        return int(self.buffer.size)

    def need(self, starts: Int64s, stops: Int64s) -> None:
        """From now on these parts `[start, stop)` of `buffer` are there. Raises: FormatError."""
        self._body.need(starts + self._start, stops + self._start)

    def whole(self) -> pa.Buffer:
        """All of it. Raises: FormatError."""
        self.need(np.zeros(1, np.int64), np.array([self.size]))
        return self.buffer


class FramedChanges:
    """The changes of some key groups of one change set, metadata included. One thread.

    Positions count in the held frames end to end.

    Args:
        part: what was read of the change set, which is the change set `layout`.
        stored: the bytes of each of the part's runs, as stored.
        again: reads them once more, where they turn out to be damaged; `None` if it cannot.
        explained: what to raise in place of an error, with the place of the file.
    """

    def __init__(
        self,
        compression: Compression,
        layout: ChangeSetLayout,
        part: ChangeSetPart,
        stored: Sequence[Octets],
        again: Callable[[], Sequence[Octets] | None] = lambda: None,
        explained: Callable[[FormatError], BaseException] = lambda error: error,
    ) -> None:
        frames = part.frames
        self._compression, self._frames, self._layout, self._part = compression, frames, layout, part
        self._stored, self._again, self._explained = stored, again, explained
        counts = [stop - first for first, stop in part.runs]
        self._held = np.concatenate([np.arange(first, stop) for first, stop in part.runs])
        self._run_of = np.repeat(np.arange(len(counts)), counts)
        self._sizes = frames.sizes[self._held]
        self._ends: Int64s = self._sizes.cumsum()
        # Where each held frame is in what is stored of its run.
        stored_at = frames.stored_sizes.cumsum() - frames.stored_sizes
        first = np.repeat([first for first, _ in part.runs], counts)
        self._stored_at: Int64s = stored_at[self._held] - stored_at[first]
        self._filled: set[int] = set()
        self._octets = np.zeros(int(self._ends[-1]), np.uint8)
        self._buffer = pa.py_buffer(self._octets)

    def changes(self) -> Iterator[FramedChange]:
        """Each, in the change set's order; the headers are verified. Raises: FormatError."""
        part = self._part.layout
        groups, starts = (self._positions(each) for each in self._part.places_in(self._layout))
        self.need(np.append(groups, starts - LENGTH_BYTES), np.append(groups + GROUP_BYTES, starts))
        agrees = (
            bool((self._numbers(groups) == part.counts).all())
            and bool((self._numbers(groups + 4) == part.key_groups).all())
            and bool((self._numbers(starts - LENGTH_BYTES) == part.lengths).all())
        )
        if not agrees:
            raise self._explained(
                FormatError("the headers of a change set do not match the layout recorded for it")
            )
        rows = zip(
            np.repeat(part.key_groups, part.counts).tolist(),
            starts.tolist(),
            part.lengths.tolist(),
            strict=True,
        )
        for key_group, start, length in rows:
            yield FramedChange(key_group, self._buffer.slice(start, length), start, self)

    def _positions(self, whole: Int64s) -> Int64s:
        """Positions in the change set, all of them in held frames, as positions here."""
        frame = np.searchsorted(self._frames.sizes.cumsum(), whole, side="right")
        at = np.searchsorted(self._held, frame)
        starts, held_starts = self._frames.sizes.cumsum() - self._frames.sizes, self._ends - self._sizes
        found: Int64s = whole - starts[frame] + held_starts[at]
        return found

    def _numbers(self, positions: Int64s) -> npt.NDArray[np.int32]:
        """The big-endian 4-byte integers at these positions, which are there."""
        octets = self._octets[positions[:, None] + np.arange(4)]
        found: npt.NDArray[np.int32] = octets.view(">i4")[:, 0]
        return found

    def need(self, starts: Int64s, stops: Int64s) -> None:
        """From now on the bytes `[start, stop)` are there. Raises: FormatError."""
        wanted: set[int] = set()
        firsts = np.searchsorted(self._ends, starts, side="right").tolist()
        lasts = np.searchsorted(self._ends, stops - 1, side="right").tolist()
        for first, last in set(zip(firsts, lasts, strict=True)):
            wanted.update(range(first, last + 1))
        missing = sorted(wanted - self._filled)
        start = 0
        for at in range(1, len(missing) + 1):
            if at == len(missing) or not self._are_neighbours(missing[at - 1], missing[at]):
                self._fill(missing[start], missing[at - 1] + 1)
                start = at

    def _are_neighbours(self, one: int, other: int) -> bool:
        return other == one + 1 and bool(self._run_of[one] == self._run_of[other])

    def _fill(self, first: int, stop: int) -> None:
        """These held frames, which are neighbours where they are stored."""
        frame, run = int(self._held[first]), int(self._run_of[first])
        at = int(self._stored_at[first])
        size = int(self._frames.stored_sizes[frame : frame + stop - first].sum())

        def verified() -> pa.Buffer:
            stored = memoryview(self._stored[run])[at : at + size]
            return verified_frames(self._compression, self._frames, frame, frame + stop - first, stored)

        try:
            body = verified()
        except FormatError as error:
            try:
                anew = self._again()
                if anew is None:
                    raise
                self._stored = anew
                body = verified()
            except FormatError:
                raise self._explained(error) from error
        start = int(self._ends[first - 1]) if first else 0
        self._octets[start : start + body.size] = np.frombuffer(body, np.uint8)
        self._filled.update(range(first, stop))
