"""Rows that take the place of a part of a state: which of them are written, and which keys are deleted.

Owns the rule, and the walk through a state beside the new rows, both in the order of key groups. Does not own
which rows are replaced (a `Scope`, such as `state.PartitionRows`), or writing.

A row is written if its key is new or its values differ; a key of the scope that gets no row is deleted; the
rest stays. So a reader that follows the job sees what differs, and nothing that was only written again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange, common_ranges
from dstl_dagster.keyed.read.conditions import Scope
from dstl_dagster.keyed.read.keyed_state import KeyedState
from dstl_dagster.keyed.read.pairs import paired_rows
from dstl_dagster.state import StateSchema, python_rows, same_rows, taken

Groups = npt.NDArray[np.int32]


class Grouped(NamedTuple):
    """Some rows, ascending by key group.

    Attributes:
        groups: the key group of each row.
    """

    rows: pa.Table
    groups: Groups

    @classmethod
    def of(cls, rows: pa.Table, groups: npt.NDArray[np.integer]) -> Grouped:
        """Of rows in any order."""
        order = np.argsort(groups.astype(np.uint16), kind="stable")
        return cls(taken(rows, order), groups[order].astype(np.int32))


class Replacement(NamedTuple):
    """Some rows to write.

    Attributes:
        groups: the key group of each row.
        deleted: whether a row is a tombstone, of which only the key counts.
    """

    rows: pa.Table
    groups: Groups
    deleted: pa.BooleanArray


def replacements(
    schema: StateSchema,
    state: KeyedState | None,
    key_groups: KeyGroupRange,
    new: Iterable[Grouped],
    scope: Scope | None,
    what: str,
) -> Iterator[Replacement]:
    """The changes that turn the state's rows of the scope into the new rows, in some key groups. Lazy.

    Holds one run of the state, and the new rows of its key groups. Two new rows of one key both come out, so
    that the writer refuses them.

    Args:
        schema: of the state's rows and of the new ones, columns in this order.
        state: `None`: there is none yet.
        new: all new rows of `key_groups`, ascending by key group.
        scope: `None`: the whole state.
        what: names the rows in errors.

    Raises: InvalidInputError for a new row that is not in the scope; as `KeyedState.runs`.
    """
    ahead = _Ahead(_checked(each, schema, scope, what) for each in new)
    ranges = common_ranges([key_groups], None if scope is None else scope.key_groups(schema))
    for run in () if state is None else state.runs(ranges):
        last = int(run.key_groups.max(initial=0))
        alive = run.alive()
        old = Grouped(alive.rows.select(schema.columns.names), alive.key_groups)
        if scope is not None:
            held = scope.holds(old.rows)
            old = Grouped(old.rows.filter(held), old.groups[held.to_numpy(zero_copy_only=False)])
        yield from _replaced(schema, old, ahead.through(last, schema))
    for each in ahead.rest():
        yield Replacement(*each, _flags(len(each.groups), value=False))


def _replaced(schema: StateSchema, old: Grouped, new: Grouped) -> Iterator[Replacement]:
    """The rule. Both have the same key groups, whole."""
    pairs = paired_rows(schema, old.rows, new.rows)
    if np.sum(pairs.after >= 0) < new.rows.num_rows:  # a key occurs twice
        yield Replacement(*new, _flags(len(new.groups), value=False))
        return
    before, after = pairs.before[pairs.in_both], pairs.after[pairs.in_both]
    differs = ~same_rows(taken(old.rows, before), taken(new.rows, after))
    written = np.sort(np.concatenate([pairs.after[pairs.before < 0], after[differs]]))
    removed = pairs.before[pairs.after < 0]
    if len(written):
        rows = taken(new.rows, written)
        yield Replacement(rows, new.groups[written], _flags(len(written), value=False))
    if len(removed):
        rows = taken(old.rows.select(list(schema.key_columns)), removed)
        yield Replacement(rows, old.groups[removed], _flags(len(removed), value=True))


def _flags(count: int, *, value: bool) -> pa.BooleanArray:
    return pa.array(np.full(count, value))


def _checked(new: Grouped, schema: StateSchema, scope: Scope | None, what: str) -> Grouped:
    if scope is not None:
        held = scope.holds(new.rows).to_numpy(zero_copy_only=False)
        if not held.all():
            place = int(np.argmin(held))
            (key,) = python_rows(new.rows.select(list(schema.key_columns)).slice(place, 1))
            shown = ", ".join(f"{name}={value!r}" for name, value in key.items())
            raise InvalidInputError(
                f"{what}: the row of key ({shown}) is not in {scope}, which this batch replaces: "
                "nothing was changed. Leave it out, or write it in a batch of its own"
            )
    return new


class _Ahead:
    """New rows that are read up to a key group at a time."""

    def __init__(self, new: Iterator[Grouped]) -> None:
        self._new = new
        self._read: deque[Grouped] = deque()

    def through(self, last: int, schema: StateSchema) -> Grouped:
        """Those not taken yet, up to key group `last`, inclusive."""
        taken = [Grouped(schema.columns.empty_table(), np.zeros(0, np.int32))]
        for each in self.rest():
            end = int(np.searchsorted(each.groups, last, side="right"))
            taken.append(Grouped(each.rows.slice(0, end), each.groups[:end]))
            if end < len(each.groups):
                self._read.appendleft(Grouped(each.rows.slice(end), each.groups[end:]))
                break
        return Grouped(
            pa.concat_tables([each.rows for each in taken]), np.concatenate([e.groups for e in taken])
        )

    def rest(self) -> Iterator[Grouped]:
        """All that were not taken yet."""
        while self._read:
            yield self._read.popleft()
        for each in self._new:
            if len(each.groups):
                yield each
