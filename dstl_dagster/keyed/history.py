"""The changes of one key, checkpoint by checkpoint.

Owns the walk along a checkpoint's chain for one key. Does not own where the chain ends (`bases`): of what is
older than a base only the outcome is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from dstl_dagster.changelog import ChangelogReader
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.keyed.keyed_state import KeyedState, folded, key_table, rows_of_key
from dstl_dagster.keyed.manifest import Manifest
from dstl_dagster.keyed.operator_log import OperatorLayer, operator_state
from dstl_dagster.state import key_group_of, python_rows
from dstl_dagster.storage import ObjectStore, OnceRead, concurrently

__all__ = ["KeyChange", "key_history"]

_THREADS = 8
"""Checkpoints whose changes are read at once."""


@dataclass(frozen=True)
class KeyChange:
    """What one checkpoint holds about a key.

    Attributes:
        checkpoint_id: that checkpoint.
        change: `upsert` and `delete` are changes made in that checkpoint. `from before`: its base holds the
            row, which was written by an older checkpoint whose changes the base replaced.
        row: the row from then on, in the columns of the newest schema; `None` if it was deleted. Text
            that is not UTF-8 is `state.RawText`.
    """

    checkpoint_id: int
    change: Literal["upsert", "delete", "from before"]
    row: dict[str, Any] | None


def key_history(
    store: ObjectStore, manifest: Manifest, operator: str, key: Mapping[str, Any]
) -> list[KeyChange]:
    """Every change of a key that the chain of this checkpoint still has, oldest first.

    Reads only the changes of the key's key group. Empty if the key was never written, or the operator has no
    state.

    Args:
        key: a value for every key column; None is a value like any other.

    Raises: InvalidInputError if `key` does not have this state's key columns, or the state has no schema;
    NotFoundError (kind `checkpoint_gone`, `state_missing`), FormatError, UnavailableError.
    """
    store = OnceRead(store)
    state = KeyedState.of(store, manifest, operator)
    found = operator_state(store, manifest, operator)
    if state is None or found is None:
        return []
    wanted = key_table(state.schema, key)
    with state.reading() as reader:

        def changes_in(layer: OperatorLayer) -> list[KeyChange]:
            checkpoint_id = layer.checkpoint_id
            held = _last_change(reader, state, layer.base, wanted)
            before = [KeyChange(checkpoint_id, "from before", row) for row, _ in held[:1]]
            changes = _last_change(reader, state, layer.changes, wanted)
            return before + [
                KeyChange(checkpoint_id, "delete" if deleted else "upsert", row) for row, deleted in changes
            ]

        # Each checkpoint's changes are read for themselves: which one is the last needs no fold here.
        looks = [partial(changes_in, layer) for layer in found.layers]
        threads = store.capabilities.useful_threads(_THREADS)
        return [change for each in concurrently(looks, threads, "dstl-history") for change in each]


def _last_change(
    reader: ChangelogReader, state: KeyedState, handles: Iterable[ChangelogStateHandle], key: pa.Table
) -> list[tuple[dict[str, Any] | None, bool]]:
    """The change of the key in these handles, as (row, whether it was deleted), or an empty list."""
    key_group = int(key_group_of(key, state.schema)[0])
    fold = folded(reader, handles, state.schema, KeyGroupRange.of(key_group, key_group))
    changes: list[tuple[dict[str, Any] | None, bool]] = []
    for run in fold.runs():
        for row in python_rows(rows_of_key(run.rows, key)):
            deleted = row.pop(run.rows.schema.names[-1])
            changes.append((None, True) if deleted else (row, False))
    return changes
