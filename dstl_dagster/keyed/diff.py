"""What changed: between two checkpoints, between the state and rows beside it, and of one key over time.

Owns which key groups are compared, whether each key was added, removed or changed, and what the runs of a
state say of one key. Does not own reading the state (`keyed_state`), or when two values are equal
(`state.equality`).

Compares states, not logs: a row rewritten with the same values is unchanged, one that expired was removed,
and a merge in between makes no difference. Any two checkpoints can be compared, in either direction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.keyed_state import KeyedState, Log, folded_logs, split_count
from dstl_dagster.keyed.lookup import key_table, touched_ranges
from dstl_dagster.keyed.manifest import Manifest
from dstl_dagster.state import StateFold, StateSchema, expired_rows, python_rows, ranges_of_tasks, same_rows
from dstl_dagster.storage import ObjectStore

__all__ = [
    "Beside",
    "KeyChange",
    "StateDiff",
    "beside",
    "changed_rows",
    "compared_runs",
    "diff_checkpoints",
    "diff_states",
    "key_history",
    "paired_rows",
]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StateDiff:
    """What changed in some key groups. All tables have the columns of both states, by the newer one's names.

    A column that one of them has dropped is not compared: dropping or renaming a column changes no row.

    Attributes:
        key_groups: the range that was compared.
        added: rows of keys that only the newer state has.
        removed: rows of keys that only the older state has.
        before, after: rows of keys that both have with different values; row i of both has the same key.
    """

    key_groups: KeyGroupRange
    added: pa.Table
    removed: pa.Table
    before: pa.Table
    after: pa.Table

    @property
    def rows(self) -> int:
        """Keys that differ."""
        return int(self.added.num_rows + self.removed.num_rows + self.after.num_rows)


def diff_checkpoints(
    store: ObjectStore, older: Manifest, newer: Manifest, operator: str
) -> Iterator[StateDiff]:
    """`diff_states` for one operator. If only one checkpoint has state of it, the other counts as empty.

    Raises: NotFoundError (kind `no_state`) if neither has any; as `diff_states`.
    """
    states = [KeyedState.of(store, each, operator) for each in (older, newer)]
    known = [state for state in states if state is not None]
    if not known:
        raise NotFoundError(
            f"operator {operator!r} has no state at checkpoint {older.checkpoint_id}, "
            f"nor at {newer.checkpoint_id}",
            kind=ErrorKind.NO_STATE,
        )
    empty = KeyedState(store, replace(known[0].at, handles=()))
    before, after = (empty if state is None else state for state in states)
    return diff_states(before, after)


def diff_states(older: KeyedState, newer: KeyedState) -> Iterator[StateDiff]:
    """What turns the older state into the newer one, one run of key groups at a time, ascending.

    Holds one run of both states in memory. Key groups with the same handles in both are not read, unless
    rows may have expired in between; a run without differences is not yielded. Columns have the names of the
    newer state, or of the older one where two columns would have one name.

    Raises: InvalidInputError (kind `schema_change`) if the states have different keys; NotFoundError (kind
    `checkpoint_gone`), FormatError, UnavailableError during iteration.
    """
    try:
        schema = newer.schema.covering(older.schema)
    except InvalidInputError:
        # A name that one column had and another has now: the later checkpoint knows both columns apart.
        schema = older.schema.covering(newer.schema)
    return _walk(older, newer, schema)


def _walk(older: KeyedState, newer: KeyedState, schema: StateSchema) -> Iterator[StateDiff]:
    runs = compared_runs(older, newer)
    with ExitStack() as stack:
        # A remote file shared by several runs, or by both states, is fetched once.
        stack.enter_context(older.reading())
        reader = stack.enter_context(newer.reading(cached=len(runs) > 1))
        for key_groups in runs:
            logs = [Log(state.handles, [key_groups], state.at.ttl) for state in (older, newer)]
            before, after = map(partial(_rows, schema), folded_logs(reader, schema, logs))
            found = _compared(key_groups, schema, before, after)
            if found.rows:
                yield found


def compared_runs(older: KeyedState, newer: KeyedState) -> list[KeyGroupRange]:
    """The runs of key groups that must be read, ascending. Pure."""
    count = max(split_count(state.handles, state.schema.max_parallelism) for state in (older, newer))
    runs = ranges_of_tasks(count, older.schema.max_parallelism)
    # Where one of them hides rows that the other has, rows may be gone that no handle tells of.
    hides = [None if state.at.ttl is None else state.at.ttl.hides for state in (older, newer)]
    different = [
        each
        for each in _segments(older, newer)
        if hides[0] != hides[1] or _handles(older, each) != _handles(newer, each)
    ]
    shared = [run.intersection(segment) for run in runs for segment in different]
    return [each for each in shared if each.number_of_key_groups]


def _segments(older: KeyedState, newer: KeyedState) -> list[KeyGroupRange]:
    """All key groups, cut wherever a handle starts or ends: all of one segment have the same handles."""
    ranges = [handle.key_group_range for state in (older, newer) for handle in state.handles]
    cuts = {0, older.schema.max_parallelism}
    cuts |= {each.start_key_group for each in ranges} | {each.end_key_group + 1 for each in ranges}
    return [KeyGroupRange.of(start, end - 1) for start, end in itertools.pairwise(sorted(cuts))]


def _handles(state: KeyedState, segment: KeyGroupRange) -> list[object]:
    # Not by the handle's range: what a newer base left of it may differ.
    held = [each for each in state.handles if each.key_group_range.contains(segment.start_key_group)]
    return [handle.handles_and_offsets for handle in held]


def _rows(schema: StateSchema, fold: StateFold) -> pa.Table:
    return pa.concat_tables([schema.columns.empty_table(), *fold.tables()])


def _compared(key_groups: KeyGroupRange, schema: StateSchema, before: pa.Table, after: pa.Table) -> StateDiff:
    pairs = paired_rows(schema, before, after)
    only_after = pairs.filter(pc.is_null(pairs.column("before_max"))).column("after_max")
    only_before = pairs.filter(pc.is_null(pairs.column("after_max"))).column("before_max")
    both = pairs.filter(
        pc.and_(pc.is_valid(pairs.column("before_max")), pc.is_valid(pairs.column("after_max")))
    )
    old_rows, new_rows = before.take(both.column("before_max")), after.take(both.column("after_max"))
    changed = pa.array(~same_rows(old_rows, new_rows))
    return StateDiff(
        key_groups=key_groups,
        added=after.take(_ascending(only_after)),
        removed=before.take(_ascending(only_before)),
        before=old_rows.filter(changed),
        after=new_rows.filter(changed),
    )


def paired_rows(schema: StateSchema, before: pa.Table, after: pa.Table) -> pa.Table:
    """For each key, the row numbers `before_max` and `after_max`; null if that side does not have it.

    Groups rather than joins, because in a group-by null equals null, as it does in keys.
    """
    names = list(schema.key_columns)
    keys = pa.concat_tables([before.select(names), after.select(names)])
    sides = {}
    for side, rows, start in (("before", before, 0), ("after", after, before.num_rows)):
        numbers = np.zeros(keys.num_rows, np.int64)
        numbers[start : start + rows.num_rows] = np.arange(rows.num_rows)
        absent = np.ones(keys.num_rows, np.bool_)
        absent[start : start + rows.num_rows] = False
        sides[side] = pa.array(numbers, mask=absent)
    # Key columns may have any name, so they are renamed by position here.
    places = [f"k{place}" for place in range(len(names))]
    numbered = pa.table([*keys.columns, *sides.values()], names=[*places, *sides])
    grouped = pa.TableGroupBy(numbered, places, use_threads=False)
    return grouped.aggregate([("before", "max"), ("after", "max")]).sort_by(
        [("after_max", "ascending"), ("before_max", "ascending")]
    )


def _ascending(row_numbers: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.sort(row_numbers.to_numpy()))


class Beside(NamedTuple):
    """The state's row of each key.

    Attributes:
        old: as many rows as there are keys; null in every column where the state has none.
        in_state: which keys have one.
        repeated: whether a key occurs more than once.
    """

    old: pa.Table
    in_state: Flags
    repeated: bool


def beside(schema: StateSchema, state: pa.Table, keys: pa.Table) -> Beside:
    """`state`: the rows of these keys, each once, in any order. `keys`: the key columns, in their types."""
    pairs = paired_rows(schema, state, keys)
    pairs = pairs.filter(pairs.column("after_max").is_valid())
    at = np.zeros(keys.num_rows, np.int64)
    in_state = np.zeros(keys.num_rows, np.bool_)
    with_state = pairs.filter(pairs.column("before_max").is_valid())
    at[with_state.column("after_max").to_numpy()] = with_state.column("before_max").to_numpy()
    in_state[with_state.column("after_max").to_numpy()] = True
    return Beside(state.take(pa.array(at, mask=~in_state)), in_state, pairs.num_rows < keys.num_rows)


def changed_rows(before: pa.Table, after: pa.Table, in_state: Flags, deleted: Flags) -> Flags:
    """Which rows a merge writes: of keys that are in the state, those deleted or with other values; and new
    ones that are not deleted. `before`, `after`: of one schema.
    """
    changed: Flags = np.where(deleted, in_state, ~in_state | ~same_rows(before, after))
    return changed


@dataclass(frozen=True)
class KeyChange:
    """What one checkpoint holds about a key.

    Attributes:
        checkpoint_id: that checkpoint; of what was merged, the last one that the merge stands for.
        change: `upsert` and `delete` are changes made in that checkpoint. `from before`: a merge holds what
            that checkpoint or one before it wrote, whose changes it replaced. `expired`: the last row is none
            any more at the checkpoint that was asked, by the state's TTL; no change says so.
        row: the row from then on, in the columns of the newest schema; `None` if it was deleted. Text
            that is not UTF-8 is `state.RawText`.
    """

    checkpoint_id: int
    change: Literal["upsert", "delete", "from before", "expired"]
    row: dict[str, Any] | None


def key_history(
    store: ObjectStore, manifest: Manifest, operator: str, key: Mapping[str, Any]
) -> list[KeyChange]:
    """Every change of a key that the runs of this checkpoint still have, oldest first.

    Reads only the changes of the key's key group. Empty if the key was never written, or the operator has no
    state.

    Args:
        key: a value for every key column; None is a value like any other.

    Raises: InvalidInputError if `key` does not have this state's key columns, or the state has no schema;
    NotFoundError (kind `checkpoint_gone`), FormatError, UnavailableError.
    """
    state = KeyedState.of(store, manifest, operator)
    entry = manifest.operators.get(operator)
    if state is None or entry is None:
        return []
    wanted = key_table(state.schema, key)
    key_groups = touched_ranges(wanted, state.schema)
    logs = [Log(run.handles, key_groups, None) for run in entry.runs]
    with state.reading() as reader:
        # Each run is folded for itself: all of a key's changes are wanted.
        folds = folded_logs(reader, state.schema, logs, wanted)
        changes: list[KeyChange] = []
        expired = False
        for run, fold in zip(entry.runs, folds, strict=True):
            for row, deleted, is_over in _changes(fold, state):
                what: Literal["upsert", "delete", "from before"] = "delete" if deleted else "upsert"
                changes.append(KeyChange(run.last, "from before" if run.merged else what, row))
                expired = is_over
    return [*changes, KeyChange(state.checkpoint_id, "expired", None)] if expired else changes


def _changes(fold: StateFold, state: KeyedState) -> Iterator[tuple[dict[str, Any] | None, bool, bool]]:
    """The change of the key that was folded, if there is one: its row, whether it was deleted, and whether
    the row has expired by now.
    """
    for run in fold.runs():
        expired = expired_rows(run.alive().rows, state.schema, state.at.ttl) is not None
        for row in python_rows(run.rows):
            deleted = row.pop(run.rows.schema.names[-1])
            yield (None, True, False) if deleted else (row, False, expired)
