"""Which frames of a change set hold some key groups, and what of them is wanted. Pure.

Owns that choice. Does not own the table of frames (`footer`), or reading them (`reader`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dstl_dagster.format.changelog_file.change_set_codec import ChangeSetLayout
from dstl_dagster.format.changelog_file.footer import Frames
from dstl_dagster.format.changes import META_KEY_GROUP
from dstl_dagster.format.key_groups import KeyGroupRange

Int64s = npt.NDArray[np.int64]

_MOST: Final = 0.75
"""Of a change set, to read a part of it alone."""

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


def part_of(
    layout: ChangeSetLayout, frames: Frames, key_groups: Sequence[KeyGroupRange]
) -> ChangeSetPart | None:
    """How to read these key groups alone; `None` where that is most of the change set.

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
    if int(frames.sizes[held].sum()) > _MOST * layout.encoded_bytes:
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
