"""Positions in the log of one writer. Owns their order and text form, not the changes at them.

Twin of Flink's `SequenceNumber` and `SequenceNumberRange`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dstl_dagster.errors import InvalidInputError

MAX_SEQUENCE_NUMBER: Final = 2**63 - 1
"""The highest position; positions are signed 64-bit on disk and in Flink."""


@dataclass(frozen=True, order=True, slots=True)
class SequenceNumber:
    """A position in one writer's log: 0 or more, ordered, hashable; `int(sqn)` is the number.

    Raises InvalidInputError for a number outside 0 .. 2^63-1.
    """

    number: int

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int):
            raise InvalidInputError(
                f"a sequence number is an int, not {type(self.number).__name__}: pass SequenceNumber.of(n)"
            )
        if not 0 <= self.number <= MAX_SEQUENCE_NUMBER:
            raise InvalidInputError(
                f"sequence number {self.number} is outside 0..2^63-1: use one that a writer returned"
            )

    @classmethod
    def of(cls, number: int) -> SequenceNumber:
        """The position `number`."""
        return cls(number)

    def next(self) -> SequenceNumber:
        """The position after this one. InvalidInputError at 2^63-1, the last one."""
        return SequenceNumber(self.number + 1)

    def __int__(self) -> int:
        return self.number

    def __str__(self) -> str:
        return str(self.number)


@dataclass(frozen=True, slots=True)
class SequenceNumberRange:
    """Positions from `from_` (inclusive) to `to` (exclusive). InvalidInputError if `to < from_`."""

    from_: SequenceNumber
    to: SequenceNumber

    def __post_init__(self) -> None:
        if self.to < self.from_:
            raise InvalidInputError(f"range [{self.from_}, {self.to}) ends before it begins: swap its ends")

    @property
    def size(self) -> int:
        """How many positions it holds."""
        return self.to.number - self.from_.number

    @property
    def is_empty(self) -> bool:
        """Whether it holds no position."""
        return self.size == 0

    def __iter__(self) -> Iterator[SequenceNumber]:
        return map(SequenceNumber, range(self.from_.number, self.to.number))

    def contains(self, sqn: SequenceNumber) -> bool:
        """Whether `from_ <= sqn < to`."""
        return self.from_ <= sqn < self.to

    def __str__(self) -> str:
        return f"from={self.from_}, to={self.to}, size={self.size}"
