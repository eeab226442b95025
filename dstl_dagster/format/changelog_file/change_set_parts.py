"""Which frames of a change set hold some key groups, or some keys of them, and what of them is wanted. Pure.

Owns that choice. Does not own the table of frames (`footer`), or reading them (`reader`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dstl_dagster.format.changelog_file.change_set_codec import LENGTH_BYTES, ChangeSetLayout
from dstl_dagster.format.changelog_file.footer import Frames
from dstl_dagster.format.changes import META_KEY_GROUP
from dstl_dagster.format.key_group_ranges import KeyGroupRange

Int64s = npt.NDArray[np.int64]

_MOST: Final = 0.75
"""Of a change set, to read a part of it alone."""

_FEW_RANGES: Final = 4
"""Up to so many, comparing with each is as fast as a search."""


def slices_of(hashes: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.uint64]:
    """The slice of its key group that each key is in, 0 to `count` - 1, by its hash."""
    return (hashes.view(np.uint32).astype(np.uint64) * np.uint64(count)) >> np.uint64(32)


@dataclass(frozen=True, eq=False)
class WantedKeys:
    """The keys that a read looks for, in no order: the key group and the hash of each."""

    key_groups: npt.NDArray[np.int32]
    hashes: npt.NDArray[np.int32]

    def changes_of(
        self, layout: ChangeSetLayout, groups: npt.NDArray[np.bool_], slices: int
    ) -> npt.NDArray[np.bool_]:
        """For each change of these groups, whether it can hold one of the keys.

        A group that has `slices` changes has a change for each slice; of another, each can hold any key.
        """
        found = np.repeat(groups, layout.counts)
        if not (layout.key_groups[1:] > layout.key_groups[:-1]).all():
            return found
        sliced = groups & (layout.counts == slices) & (layout.key_groups != META_KEY_GROUP)
        found[np.repeat(sliced, layout.counts)] = False
        at = np.searchsorted(layout.key_groups, self.key_groups)
        at[at == len(sliced)] = 0
        here = sliced[at] & (layout.key_groups[at] == self.key_groups)
        first = layout.counts.cumsum() - layout.counts
        found[first[at[here]] + slices_of(self.hashes[here], slices).astype(np.int64)] = True
        return found


@dataclass(frozen=True)
class ChangeSetPart:
    """Some changes of a change set, metadata included, and the frames that hold them.

    Attributes:
        layout: of a change set that has these changes alone.
        frames: of the whole change set.
        runs: neighbouring frames to read, as [first, stop); ascending.
        pieces: [start, end) in the whole change set of the changes to keep, with their lengths, and where
            they begin in one that has these alone; ascending.
    """

    layout: ChangeSetLayout
    frames: Frames
    runs: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[int, int, int], ...]

    def stored_ranges(self) -> Iterator[tuple[int, int]]:
        """Where each run is stored, as (start, length), counted from the beginning of the change set."""
        ends = self.frames.stored_sizes.cumsum()
        for first, stop in self.runs:
            start = int(ends[first - 1]) if first else 0
            yield start, int(ends[stop - 1]) - start


def part_of(
    layout: ChangeSetLayout,
    frames: Frames,
    key_groups: Sequence[KeyGroupRange],
    wanted_keys: WantedKeys | None = None,
    slices: int = 1,
) -> ChangeSetPart | None:
    """How to read these key groups alone; `None` where that is most of the change set.

    `layout` and `frames` must be of one change set, which has some of `key_groups`, or metadata.
    `wanted_keys`: of a key group with this number of `slices`, only the changes that can hold one of these
    keys; `None`: all.
    """
    groups = is_within(layout.key_groups, key_groups) | (layout.key_groups == META_KEY_GROUP)
    every = np.repeat(groups, layout.counts)
    wanted = every if wanted_keys is None else wanted_keys.changes_of(layout, groups, slices)
    part = layout.restricted_to(wanted)
    starts = layout.places[1][wanted] - LENGTH_BYTES
    stops = starts + LENGTH_BYTES + part.lengths
    if not len(starts):
        return ChangeSetPart(part, frames, (), ())
    frame_ends = frames.sizes.cumsum()
    first = np.searchsorted(frame_ends, starts, side="right")
    last = np.searchsorted(frame_ends, stops - 1, side="right")
    # A frame is read once, also where one key group ends and the next begins in it.
    steps = np.zeros(len(frames) + 1, np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, last + 1, -1)
    held = np.flatnonzero(steps.cumsum()[:-1])
    if int(frames.sizes[held].sum()) > _MOST * layout.encoded_bytes:
        return None
    breaks = np.append(True, starts[1:] != stops[:-1])
    begins = (part.places[1] - LENGTH_BYTES)[breaks]
    pieces = zip(
        starts[breaks].tolist(), stops[np.append(breaks[1:], True)].tolist(), begins.tolist(), strict=True
    )
    return ChangeSetPart(part, frames, tuple(_runs(held)), tuple(pieces))


def _runs(numbers: Int64s) -> Iterator[tuple[int, int]]:
    """These ascending numbers as [first, stop), neighbours joined."""
    breaks = np.flatnonzero(numbers[1:] != numbers[:-1] + 1)
    firsts = numbers[np.append(0, breaks + 1)]
    stops = numbers[np.append(breaks, len(numbers) - 1)] + 1
    yield from zip(firsts.tolist(), stops.tolist(), strict=True)


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
