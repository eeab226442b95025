"""The changes of one key, checkpoint by checkpoint.

Owns the walk along a checkpoint's chain for one key. Does not own where the chain ends (`bases`): of what is
older than a base, or than a compaction, only the outcome is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dstl_dagster.keyed.keyed_state import KeyedState
from dstl_dagster.keyed.log_reads import Log, folded_logs
from dstl_dagster.keyed.lookup import key_table, touched_ranges
from dstl_dagster.keyed.manifest import Manifest
from dstl_dagster.keyed.operator_log import operator_state
from dstl_dagster.state import StateFold, expired_rows, python_rows
from dstl_dagster.storage import ObjectStore, OnceRead

__all__ = ["KeyChange", "key_history"]

_Change = tuple[dict[str, Any] | None, bool]
"""A row, and whether it was deleted."""


@dataclass(frozen=True)
class KeyChange:
    """What one checkpoint holds about a key.

    Attributes:
        checkpoint_id: that checkpoint.
        change: `upsert` and `delete` are changes made in that checkpoint. `from before`: its base, or its
            compaction, holds what an older checkpoint wrote, whose changes it replaced. `expired`: the last
            row is none any more at the checkpoint that was asked, by the state's TTL; no change says so.
        row: the row from then on, in the columns of the newest schema; `None` if it was deleted. Text
            that is not UTF-8 is `state.RawText`.
    """

    checkpoint_id: int
    change: Literal["upsert", "delete", "from before", "expired"]
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
    key_groups = touched_ranges(wanted, state.schema)
    logs = [
        Log(handles, key_groups, None)
        for layer in found.layers
        for handles in (layer.base + layer.compacted, layer.changes)
    ]
    with state.reading() as reader:
        # Each checkpoint's changes are folded for themselves: all of a key's changes are wanted.
        folds = iter(folded_logs(reader, state.schema, logs, wanted))
        changes: list[KeyChange] = []
        expired = False
        for layer in found.layers:
            both = [_last_change(next(folds), state) for _ in range(2)]
            changes += _changes(layer.checkpoint_id, *(held for held, _ in both))
            expired = next((is_over for held, is_over in reversed(both) if held), expired)
    return [*changes, KeyChange(state.checkpoint_id, "expired", None)] if expired else changes


def _changes(checkpoint_id: int, held: list[_Change], changes: list[_Change]) -> Iterator[KeyChange]:
    """`held`: by the checkpoint's base or compaction; `changes`: made in it."""
    for row, _ in held[:1]:
        yield KeyChange(checkpoint_id, "from before", row)
    for row, deleted in changes:
        yield KeyChange(checkpoint_id, "delete" if deleted else "upsert", row)


def _last_change(fold: StateFold, state: KeyedState) -> tuple[list[_Change], bool]:
    """The change of the key that was folded, or an empty list; and whether its row has expired by now."""
    changes: list[_Change] = []
    expired = False
    for run in fold.runs():
        expired = expired_rows(run.alive().rows, state.schema, state.at.ttl) is not None
        for row in python_rows(run.rows):
            deleted = row.pop(run.rows.schema.names[-1])
            changes.append((None, True) if deleted else (row, False))
    return changes, expired
