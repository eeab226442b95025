"""The merge of a checkpoint: which key groups of which runs. Pure.

Owns the pace and the order of merges, from the sizes of runs. Does not own merging (`merge`), or what a
merge replaces (`runs`).

Merges are paid for by changes. Runs are in classes by their size, each `max_runs` times the one before. Once
so many runs of a class stand one behind the other, they become one, of the next class as a rule; a change is
written once a class. Where runs above the oldest, whole one have `log_ratio` times its bytes, all become one.
A checkpoint merges one range of key groups, the one that waits most, of about as many bytes as it pays for
with its own: so no checkpoint is slow, and since the average due is less than what is paid, no debt grows.

Sizes are per key group: a run of a few key groups is in the class that it would be in if all were like them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.documents.runs import FROM_THE_BEGINNING, Run, handle_bytes

SMALL_RUN_BYTES: Final = 256 << 10
"""Stored. Smaller runs are of one class; so much may be merged by any checkpoint, however little it wrote."""

_CLASSES_PAID: Final = 4
"""Each change pays for so many classes. Where a state has more, more of its runs become one at a time."""

_NEARLY: Final = 0.5
"""Key groups beside those that are due are merged with them, if they have this share of their runs and are
paid for. They wait for the same merge from then on: else key groups that are out of step, as after a merge of
all runs of some, would each need a checkpoint."""


class DueMerge(NamedTuple):
    """The runs of these key groups that begin with the checkpoint `first`, or later."""

    key_groups: KeyGroupRange
    first: int

    @classmethod
    def of_all(cls, max_parallelism: int) -> DueMerge:
        return cls(KeyGroupRange.of(0, max_parallelism - 1), FROM_THE_BEGINNING)


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """The two numbers that an owner of a job chooses, and the size that counts as small.

    Attributes:
        max_runs: 2 or more runs of one class that are merged to one.
        log_ratio: above 0: bytes above the last run, as a share of its own, at which all are merged.
        small_bytes: as `SMALL_RUN_BYTES`.
    """

    max_runs: int = 6
    log_ratio: float = 0.5
    small_bytes: int = SMALL_RUN_BYTES

    def due(self, runs: Sequence[Run], max_parallelism: int, own_bytes: int) -> DueMerge | None:
        """The merge of a checkpoint that writes `own_bytes`; `None` if nothing waits.

        `runs`: oldest first, without the checkpoint's own.
        """
        if self._nothing_waits(runs):
            return None
        grid = _Grid(runs, max_parallelism)
        paid = max(self.small_bytes, own_bytes * (_CLASSES_PAID + 2 / self.log_ratio))
        waits = _Waits.of(grid, self)
        seed = int(np.argmax(waits.most))
        if waits.most[seed] < 1:
            return None
        first = grid.first_of(seed, int(waits.taken[seed]))
        return DueMerge(self._range(grid, seed, first, paid), first)

    def _nothing_waits(self, runs: Sequence[Run]) -> bool:
        """Without a closer look, as of most operators at most checkpoints."""
        if len(runs) < 2:
            return True
        above = sum(run.stored_bytes for run in runs if not run.whole)
        whole = sum(run.stored_bytes for run in runs if run.whole)
        return len(runs) < self.max_runs and above < min(self.small_bytes, self.log_ratio * whole)

    def _range(self, grid: _Grid, seed: int, first: int, paid: float) -> KeyGroupRange:
        """As many key groups around the seed's first one as are paid for: at least that one."""
        taken = grid.present & (grid.firsts >= first)[:, None]
        cost = (grid.bytes * taken).sum(axis=0)
        count = taken.sum(axis=0)
        largest = np.where(taken, grid.bytes, 0).max(axis=0)
        # No key group whose runs of this age are of another size: it would pay for what is not due. Where all
        # that there is is small, it is cheaper to merge it than to have more runs.
        alike = (count >= _NEARLY * count[seed]) & (largest <= self.max_runs * largest[seed])
        fits = alike | (cost * grid.max_parallelism <= self.small_bytes)
        start, left = grid.cuts[seed], paid
        stop = start
        for at in range(seed, len(cost)):
            if at > seed and not fits[at]:
                break
            width = grid.cuts[at + 1] - grid.cuts[at]
            number = width if cost[at] * width <= left else int(left // cost[at])
            stop += number
            left -= number * cost[at]
            if number < width:
                break
        stop = max(stop, start + 1)
        for at in range(seed - 1, -1, -1):
            width = grid.cuts[at + 1] - grid.cuts[at]
            if not fits[at] or cost[at] * width > left:
                break
            start -= width
            left -= width * cost[at]
        return KeyGroupRange.of(start, stop - 1)


class _Grid:
    """Bytes of a key group, by run (oldest first) and by segment of key groups that are all alike.

    Attributes:
        cuts: where segments begin, and the end of the last one.
        bytes, present: by run and segment.
        firsts: of each run.
    """

    def __init__(self, runs: Sequence[Run], max_parallelism: int) -> None:
        ranges = [handle.key_group_range for run in runs for handle in run.handles]
        cuts = {0, max_parallelism}
        cuts.update(each.start_key_group for each in ranges)
        cuts.update(each.end_key_group + 1 for each in ranges)
        self.cuts = sorted(each for each in cuts if each <= max_parallelism)
        at = {cut: index for index, cut in enumerate(self.cuts)}
        shape = len(runs), len(self.cuts) - 1
        self.bytes: npt.NDArray[np.float64] = np.zeros(shape)
        self.present: npt.NDArray[np.bool_] = np.zeros(shape, np.bool_)
        self.firsts = np.array([run.first for run in runs])
        self.max_parallelism = max_parallelism
        for number, run in enumerate(runs):
            for handle in run.handles:
                own = handle.key_group_range
                start = at[own.start_key_group]
                stop = at[min(own.end_key_group + 1, max_parallelism)]
                self.bytes[number, start:stop] += handle_bytes(handle) / own.number_of_key_groups
                self.present[number, start:stop] = True

    def first_of(self, segment: int, newest: int) -> int:
        """The first checkpoint of the `newest` runs of the segment; from the beginning, if these are all."""
        own = np.flatnonzero(self.present[:, segment])
        return FROM_THE_BEGINNING if newest >= len(own) else int(self.firsts[own[-newest]])


class _Waits(NamedTuple):
    """By segment: how much it waits (1: due), and how many of its newest runs are to be merged."""

    most: npt.NDArray[np.float64]
    taken: npt.NDArray[np.int64]

    @classmethod
    def of(cls, grid: _Grid, policy: MergePolicy) -> _Waits:
        present = grid.present[::-1]  # newest first
        sizes = grid.bytes[::-1] * grid.max_parallelism  # of a run whose key groups were all like this one
        small = max(1, policy.small_bytes)
        size_class = (
            np.floor(np.log(np.maximum(sizes, 1) / small) / np.log(policy.max_runs)).astype(np.int64) + 1
        )
        # Merges take what is newest: a run counts as large as the largest that is merged before it.
        size_class = np.maximum.accumulate(np.where(present, np.maximum(size_class, 0), 0), axis=0)
        most = np.zeros(present.shape[1])
        taken = np.zeros(present.shape[1], np.int64)
        for each in range(int(size_class.max(initial=0)) + 1):
            waiting = (present & (size_class == each)).sum(axis=0) / policy.max_runs
            better = (waiting >= most) & (waiting >= 1)
            taken = np.where(better, (present & (size_class <= each)).sum(axis=0), taken)
            most = np.where(better, waiting, most)
        # The oldest run of a segment, if nothing is older than that: all of it is merged at once.
        above = (np.cumsum(present, axis=0) < present.sum(axis=0)) & present
        above_bytes = (sizes * above).sum(axis=0)
        last_bytes = (sizes * (present & ~above)).sum(axis=0)
        ratio = np.where(above_bytes >= small, above_bytes / np.maximum(policy.log_ratio * last_bytes, 1), 0)
        better = ratio > np.maximum(most, 1 - 1e-9)
        return cls(np.where(better, ratio, most), np.where(better, present.sum(axis=0), taken))
