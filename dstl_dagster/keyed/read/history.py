"""The changes of one key over time, as the runs of a checkpoint still have them.

Owns what a run says of a key. Does not own reading runs (`keyed_state`), or which runs there are (`runs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dstl_dagster.keyed.documents.manifest import Manifest
from dstl_dagster.keyed.read.keyed_state import KeyedState, Log, replayed_logs
from dstl_dagster.keyed.read.lookup import KeysToFind, key_table
from dstl_dagster.state import StateReplay, expired_rows, python_rows
from dstl_dagster.storage import ObjectStore


@dataclass(frozen=True)
class KeyChange:
    """The change of a key in one checkpoint.

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
    wanted = KeysToFind.of(key_table(state.schema, key), state.schema)
    logs = [Log(run.handles, wanted.touched_ranges(), None) for run in entry.runs]
    with state.reading() as reader:
        # Each run is replayed for itself: all of a key's changes are wanted.
        replays = replayed_logs(reader, state.schema, logs, wanted)
        changes: list[KeyChange] = []
        expired = False
        for run, replay in zip(entry.runs, replays, strict=True):
            for row, deleted, is_over in _changes(replay, state):
                what: Literal["upsert", "delete", "from before"] = "delete" if deleted else "upsert"
                changes.append(KeyChange(run.last, "from before" if run.merged else what, row))
                expired = is_over
    return [*changes, KeyChange(state.checkpoint_id, "expired", None)] if expired else changes


def _changes(replay: StateReplay, state: KeyedState) -> Iterator[tuple[dict[str, Any] | None, bool, bool]]:
    """The change of the key that was replayed, if there is one: its row, whether it was deleted, and whether
    the row has expired by now.
    """
    for run in replay.runs():
        expired = expired_rows(run.alive().rows, state.schema, state.at.ttl) is not None
        for row in python_rows(run.rows):
            deleted = row.pop(run.rows.schema.names[-1])
            yield (None, True, False) if deleted else (row, False, expired)
