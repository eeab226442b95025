"""The changes between two checkpoints.

Owns which key groups are compared, and whether each key was added, removed or changed. Does not own reading
the state (`keyed_state`), which rows have the same key (`pairs`), or when two values are equal
(`state.equality`).

Compares states, not logs: a row rewritten with the same values is unchanged, one that expired was removed,
and a merge in between makes no difference. Any two checkpoints can be compared, in either direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import KeyGroupRange, common_ranges, ranges_of_tasks
from dstl_dagster.keyed.documents.manifest import Manifest
from dstl_dagster.keyed.read.keyed_state import KeyedState, Log, replayed_logs, split_count
from dstl_dagster.keyed.read.pairs import paired_rows
from dstl_dagster.state import LastChanges, StateReplay, StateSchema, same_rows, taken
from dstl_dagster.storage import ObjectStore

_NONE = np.zeros(1, np.bool_)


@dataclass(frozen=True)
class StateDiff:
    """The changes in some key groups. All tables have the columns of both states, by the newer one's names.

    A column that one of them has dropped is not compared: dropping or renaming a column changes no row.

    Attributes:
        key_groups: those that were compared.
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
    """The changes from the older state to the newer one, some key groups at a time, ascending.

    Holds the changes of one range of key groups of both states in memory, and the rows of a part of it. Key
    groups with the same handles in both are not read, unless rows may have expired in between; those without
    differences are not yielded. Columns have the names of the newer state, or of the older one where two
    columns would have one name.

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
            for before, after in StateReplay.runs_of(replayed_logs(reader, schema, logs)):
                found = _compared(schema, before.alive(), after.alive())
                if found is not None:
                    yield found


def compared_runs(older: KeyedState, newer: KeyedState) -> list[KeyGroupRange]:
    """The runs of key groups that must be read, ascending: of what is read together, from the first key group
    that may differ to the last. Pure.
    """
    count = max(split_count(state.handles, state.schema.max_parallelism) for state in (older, newer))
    differs = _different(older, newer)
    found = []
    for each in ranges_of_tasks(count, older.schema.max_parallelism):
        places = np.flatnonzero(differs[each.start_key_group : each.end_key_group + 1])
        if len(places):
            first, last = places[[0, -1]].tolist()
            found.append(KeyGroupRange.of(each.start_key_group + first, each.start_key_group + last))
    return found


def _different(older: KeyedState, newer: KeyedState) -> npt.NDArray[np.bool_]:
    """For each key group, whether one of them has other handles, or rows of it may have expired since."""
    found = np.zeros(older.schema.max_parallelism, np.bool_)
    before, after = _key_groups_by_handle(older), _key_groups_by_handle(newer)
    for key in before.keys() | after.keys():
        found |= before.get(key, _NONE) ^ after.get(key, _NONE)
    # Where one of them hides rows that the other has, rows may be gone that no handle mentions.
    hides = [None if state.at.ttl is None else state.at.ttl.hides for state in (older, newer)]
    return found | (hides[0] != hides[1])


def _key_groups_by_handle(state: KeyedState) -> dict[object, npt.NDArray[np.bool_]]:
    """For each handle, which key groups it may have changes of."""
    found: dict[object, npt.NDArray[np.bool_]] = {}
    for handle in state.handles:
        # Not by the handle's range: what a newer base left of it may differ. Nor by the folder: a job that
        # took over another's state has copies of its files, and the last name of a file is of no other one.
        key = tuple(
            (stream.name.rpartition("/")[2], stream.size, offset)
            for stream, offset in handle.handles_and_offsets
        )
        groups = found.setdefault(key, np.zeros(state.schema.max_parallelism, np.bool_))
        for each in common_ranges([handle.key_group_range], handle.held or None):
            groups[each.start_key_group : each.end_key_group + 1] = True
    return found


def _compared(schema: StateSchema, older: LastChanges, newer: LastChanges) -> StateDiff | None:
    """`None` if nothing differs."""
    groups = np.concatenate([older.key_groups, newer.key_groups])
    if not len(groups):
        return None
    before, after = (run.rows.select(schema.columns.names) for run in (older, newer))
    pairs = paired_rows(schema, before, after)
    old_rows, new_rows = taken(before, pairs.before[pairs.in_both]), taken(after, pairs.after[pairs.in_both])
    changed = pa.array(~same_rows(old_rows, new_rows))
    found = StateDiff(
        key_groups=KeyGroupRange.of(int(groups.min()), int(groups.max())),
        added=taken(after, pairs.after[pairs.before < 0]),
        removed=taken(before, pairs.before[pairs.after < 0]),
        before=old_rows.filter(changed),
        after=new_rows.filter(changed),
    )
    return found if found.rows else None
