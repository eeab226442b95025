"""Which key groups still need what is older, on the way from a checkpoint back through its history.

Owns this set, and what it leaves of a handle. Does not own the way (`operator_log`, and for clean-up
`checkpoint.references`). Pure.

At first all key groups are uncovered. Each base covers its own, and once all are covered, nothing older is
needed. So the state of a key group is its newest base and the changes since, whatever is folded with it.

A compaction stands for the changes of its key groups since their newest base or compaction before it: on the
way back, older changes of these are passed over, bases and compactions are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange

__all__ = ["Uncovered"]


@dataclass(frozen=True, slots=True)
class Uncovered:
    """The key groups without a newer base; by default all, however many there are. False if none.

    Attributes:
        bits: bit n stands for key group n; negative numbers have bits without end.
        compacted: those of them whose older changes a newer compaction holds.
    """

    bits: int = -1
    compacted: int = 0

    @classmethod
    def of(cls, key_groups: KeyGroupRange) -> Uncovered:
        return cls(_bits(key_groups))

    def __bool__(self) -> bool:
        return self.bits != 0

    def __or__(self, other: Uncovered) -> Uncovered:
        """What one of them needs."""
        bits = self.bits | other.bits
        return Uncovered(bits, bits & ~(self._with_changes | other._with_changes))

    def __sub__(self, other: Uncovered) -> Uncovered:
        """What this one needs and the other does not: of some key groups that may be only the changes."""
        with_changes = self._with_changes & ~other._with_changes
        bits = self.bits & ~other.bits | with_changes
        return Uncovered(bits, bits & ~with_changes)

    @property
    def _with_changes(self) -> int:
        return self.bits & ~self.compacted

    def before(self, based: KeyGroupRange, max_parallelism: int) -> Uncovered:
        """What is uncovered before a report with a base of the key groups `based`."""
        if not based.number_of_key_groups:
            return self
        left = self.bits & ~_bits(based)
        there_are = _bits(KeyGroupRange.of(0, max_parallelism - 1))
        return Uncovered(left, self.compacted & left) if left & there_are else Uncovered(0)

    def compacted_in(self, ranges: Iterable[KeyGroupRange]) -> Uncovered:
        """The same with a compaction of these key groups."""
        compacted = self.compacted
        for key_groups in ranges:
            compacted |= self.bits & _bits(key_groups)
        return self if compacted == self.compacted else Uncovered(self.bits, compacted)

    def for_changes(self) -> Uncovered:
        """The key groups whose changes are needed, beside bases and compactions."""
        return Uncovered(self._with_changes) if self.compacted else self

    def meets(self, key_groups: KeyGroupRange) -> bool:
        """Whether one of these key groups is uncovered."""
        return self.bits == -1 or bool(self.bits & _bits(key_groups))

    def of_handles(self, handles: Iterable[ChangelogStateHandle]) -> Iterator[ChangelogStateHandle]:
        """The handles for these key groups only: one becomes none, or one for each run of neighbours.

        The size of a part is in proportion to its key groups: what it takes to hold, not to read.
        """
        for handle in handles:
            key_groups = handle.key_group_range
            wanted = self.bits & _bits(key_groups)
            if wanted == _bits(key_groups):
                yield handle
                continue
            for run in _runs(wanted):
                size = handle.state_size * run.number_of_key_groups // key_groups.number_of_key_groups
                yield replace(handle, key_group_range=run, state_size=size)


def _bits(key_groups: KeyGroupRange) -> int:
    return ((1 << key_groups.number_of_key_groups) - 1) << key_groups.start_key_group


def _runs(bits: int) -> Iterator[KeyGroupRange]:
    """Neighbouring key groups of the set, ascending."""
    start = 0
    while bits:
        absent = (bits & -bits).bit_length() - 1
        bits >>= absent
        present = (~bits & (bits + 1)).bit_length() - 1
        start += absent
        yield KeyGroupRange.of(start, start + present - 1)
        bits >>= present
        start += present
