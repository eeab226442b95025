"""Compaction: the changes of several checkpoints written once more, as one, so that few files make up a log.

Owns when a part of the log is compacted, what a compaction holds, and writing it. Does not own folding the
log into a base (`bases`), or what a reader then still needs of older checkpoints (`coverage`).

A base is folded slice by slice, and a slice needs its part of every file of the log. So these files are made
fewer first: every few checkpoints, for one quarter of the key groups in turn. It costs what those checkpoints
wrote, whatever the size of the state. Of a key only the last change is kept, tombstones included; a row that
has expired becomes one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.keyed.coverage import Uncovered
from dstl_dagster.keyed.keyed_state import KeyedState, folded, split_count
from dstl_dagster.keyed.keyed_writer import open_attempt_changelog
from dstl_dagster.keyed.operator_log import OperatorLayer
from dstl_dagster.keyed.reports import Compaction, OperatorReport, stored_bytes
from dstl_dagster.keyed.shared_files import SharedFiles
from dstl_dagster.state import EncodedChanges, FoldedRun, StateSchema, encode_changes, ranges_of_tasks
from dstl_dagster.timeline import Attempt

__all__ = [
    "CompactionPlan",
    "compaction_of",
    "compaction_turn",
    "is_worth_compacting",
    "write_compaction",
]

CHECKPOINTS: Final = 4
"""With changes, between two compactions."""

PARTS: Final = 4
"""Of the key groups, compacted in turn: each holds the changes of `PARTS * CHECKPOINTS` checkpoints."""

LEAST_CHECKPOINTS: Final = 2 * PARTS * CHECKPOINTS
"""A log that is folded after fewer is not compacted before."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a compaction holds.

    Attributes:
        key_groups: of the compaction.
        handles: of the changes that it stands for, in log order.
        reports: what the checkpoints with these added, oldest first, and last the newest of all.
        replaced_bytes: stored bytes of these, in proportion to their key groups.
    """

    key_groups: KeyGroupRange
    handles: tuple[ChangelogStateHandle, ...]
    reports: tuple[OperatorReport, ...]
    replaced_bytes: int


def compaction_turn(checkpoints: int, max_parallelism: int) -> KeyGroupRange:
    """The key groups whose turn it is after so many checkpoints with changes; `EMPTY` if none. Pure."""
    turn, waited = divmod(checkpoints, CHECKPOINTS)
    if waited or not turn:
        return KeyGroupRange.EMPTY
    parts = ranges_of_tasks(min(PARTS, max_parallelism), max_parallelism)
    return parts[turn % len(parts)]


def is_worth_compacting(own_bytes: int, due_bytes: float, max_checkpoints: int) -> bool:
    """Whether many checkpoints of `own_bytes` come before the log is folded: at `due_bytes`, or after
    `max_checkpoints`. Pure.
    """
    return 0 < own_bytes * LEAST_CHECKPOINTS <= due_bytes and max_checkpoints >= LEAST_CHECKPOINTS


def compaction_of(layers: Iterable[OperatorLayer], key_groups: KeyGroupRange) -> CompactionPlan | None:
    """The compaction of these key groups at this state; `None` if it would be of a single checkpoint, or does
    not fit in memory at once: such changes are in large files.

    `layers`: of these key groups, newest first; taken only as far back as they have changes that no base and
    no other compaction holds.
    """
    newest: list[OperatorReport] = []
    found: list[OperatorLayer] = []
    missing = Uncovered.of(key_groups)
    for layer in layers:
        newest = newest or [layer.report]
        if layer.changes and not layer.is_first:
            found.append(layer)
        missing = layer.before(missing)
        if not missing.for_changes():
            break
    handles = tuple(handle for layer in reversed(found) for handle in layer.changes)
    if len(found) < 2 or split_count(handles, key_groups.number_of_key_groups) > 1:
        return None
    reports = (*(layer.report for layer in reversed(found)), *newest)
    return CompactionPlan(key_groups, handles, reports, sum(map(_replaced_bytes, found)))


def _replaced_bytes(layer: OperatorLayer) -> int:
    changes = layer.report.change_handles
    return stored_bytes(changes) * _key_groups(layer.changes) // _key_groups(changes)


def _key_groups(handles: Iterable[ChangelogStateHandle]) -> int:
    return sum(handle.key_group_range.number_of_key_groups for handle in handles)


def write_compaction(
    attempt: Attempt, state: KeyedState, plan: CompactionPlan, shared: SharedFiles
) -> OperatorReport:
    """Write the last change of each key as an ordinary changelog file of `attempt`, and report it: durably,
    or into `shared` if it is small.

    Args:
        state: whose handles are the plan's. Its options say how the changelog files are written, too.

    Raises: NotFoundError (kind `checkpoint_gone`), FormatError, UnavailableError. Files written before the
    error carry the attempt and are in no report; clean-up deletes them once the attempt is dead.
    """
    schema = state.schema
    with (
        open_attempt_changelog(state.store, attempt, state.at.options) as storage,
        state.reading() as reader,
    ):
        fold = folded(reader, state.at, plan.key_groups)
        changes = (_as_changes(schema, run) for run in fold.runs())
        handle = shared.write_range(
            storage, state.operator, schema, plan.key_groups, changes, state.at.options
        )
    return OperatorReport(
        operator=state.operator,
        handles=(handle,),
        key_columns=schema.key_columns,
        max_parallelism=schema.max_parallelism,
        schema=schema.arrow_message,
        column_ids=schema.column_ids,
        compaction=Compaction(1, plan.replaced_bytes),
        ttl=state.at.ttl,
    )


def _as_changes(schema: StateSchema, run: FoldedRun) -> EncodedChanges:
    deleted: pa.ChunkedArray = run.rows.column(-1)
    rows = run.rows.select(schema.columns.names)
    return encode_changes(schema, rows, run.key_groups, deleted if pc.any(deleted).as_py() else None)
