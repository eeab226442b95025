"""Bases: an operator's log folded into one layer, so that nothing older is needed.

Owns writing a base, and its place in a report. Does not own when that is due (`due`), what a checkpoint does
for the logs of its parent (`folding`), or deleting what is older: clean-up does, once no retained checkpoint
names it.

A base is an ordinary part of the log: one handle per range of key groups, which starts with the schema and
holds every row once. So anything that reads changes can read a base. Its handles ascend, and the last one
ends at the last key group; that is how `OperatorReport.base_handles` separates them from later changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

import pyarrow.compute as pc

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.due import is_due
from dstl_dagster.keyed.keyed_state import (
    KeyedState,
    evolved_schema,
    folded,
    is_keyed,
    split_count,
)
from dstl_dagster.keyed.keyed_writer import open_attempt_changelog
from dstl_dagster.keyed.manifest import BaseAndLog, Manifest
from dstl_dagster.keyed.operator_log import operator_state
from dstl_dagster.keyed.reports import OperatorReport
from dstl_dagster.keyed.shared_files import SharedFiles
from dstl_dagster.settings import CheckpointOptions, parse_names
from dstl_dagster.state import EncodedChanges, FoldedRun, encode_changes, ranges_of_tasks
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt

__all__ = [
    "base_and_log",
    "due_operators",
    "with_base",
    "write_base",
]

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def base_and_log(store: ObjectStore, manifest: Manifest, operator: str) -> BaseAndLog:
    """The sizes of the state of `operator` at this checkpoint, as the manifest records them.

    Older manifests are read only if this one, or one that it builds on, is of the first release.

    Raises: NotFoundError, FormatError.
    """
    entry = manifest.operators.get(operator)
    if entry is not None and entry.sizes is not None:
        return entry.sizes
    state = operator_state(store, manifest, operator)
    sizes = BaseAndLog()
    for report in () if state is None else state.reports:
        sizes = sizes.with_report(report)
    return sizes


def due_operators(
    store: ObjectStore,
    manifest: Manifest,
    options: CheckpointOptions,
    operators: Collection[str] | None = None,
    *,
    force: bool = False,
) -> list[str]:
    """The operators of this checkpoint whose log is due to be folded, sorted by name.

    With `force` all that have a log; never those whose log is not keyed state. `operators`: only these.

    Raises: InvalidInputError (kind `no_operator`) if one of `operators` does not exist; NotFoundError,
    FormatError.
    """
    operators = None if operators is None else parse_names("operators", operators)
    unknown = sorted(set(operators or ()) - set(manifest.operators))
    if unknown:
        raise InvalidInputError(
            f"checkpoint {manifest.checkpoint_id} of job {manifest.job!r} has no operator {unknown[0]!r}, "
            f"only {', '.join(sorted(manifest.operators)) or 'none'}",
            kind=ErrorKind.NO_OPERATOR,
        )
    wanted = sorted(manifest.operators if operators is None else operators)
    keyed = [name for name in wanted if is_keyed(manifest.operators[name].report)]
    return [
        name
        for name in keyed
        if is_due(base_and_log(store, manifest, name), options) or (force and _has_log(store, manifest, name))
    ]


def _has_log(store: ObjectStore, manifest: Manifest, operator: str) -> bool:
    """Whether a fold of everything would leave something else than what is there."""
    state = operator_state(store, manifest, operator)
    if state is None or not state.handles:
        return False
    hides = state.newest.ttl is not None and state.newest.ttl.hides is not None
    return hides or any(layer.changes or layer.compacted for layer in state.layers)


def write_base(
    store: ObjectStore,
    attempt: Attempt,
    state: KeyedState,
    *,
    key_groups: KeyGroupRange | None = None,
    progress: Progress | None = None,
    shared: SharedFiles | None = None,
) -> OperatorReport:
    """Write the state as ordinary changelog files of `attempt`, durably, and report it as a base.

    One handle for each range that fits in memory, one range at a time: the schema, then every row once, each
    in the key group that it was written in. No tombstones, and no row that has expired. The same state
    produces the same changes. A state without rows produces the schema alone.

    Args:
        state: at the attempt's parent. Its options say how the changelog files are written, too.
        key_groups: only these, a slice; `None`: all.
        progress: called with (ranges done, ranges in total).
        shared: small ranges wait there to share files, and are durable once it is flushed; `None`: they share
            files with each other alone.

    Raises: NotFoundError (kind `checkpoint_gone`), FormatError, UnavailableError. Files written before the
    error carry the attempt and are in no report; clean-up deletes them once the attempt is dead.
    """
    slice_ = None if key_groups in (None, state.all_key_groups) else key_groups
    ranges = state.ranges() if slice_ is None else _ranges_within(state, slice_)
    handles, rows = [], 0
    into = shared or SharedFiles(store, attempt)
    with (
        open_attempt_changelog(store, attempt, state.at.options) as storage,
        state.reading(cached=len(ranges) > 1) as reader,
    ):
        for count, each in enumerate(ranges, 1):
            fold = folded(reader, state.at, each)
            counted = _Counted(state, fold.runs())
            handles.append(
                into.write_range(storage, state.operator, state.schema, each, counted, state.at.options)
            )
            rows += counted.rows
            if progress is not None:
                progress(count, len(ranges))
    schema = state.schema
    report = OperatorReport(
        operator=state.operator,
        handles=tuple(handles),
        key_columns=schema.key_columns,
        max_parallelism=schema.max_parallelism,
        schema=schema.arrow_message,
        base=slice_ is None,
        column_ids=schema.column_ids,
        base_range=slice_,
        ttl=state.at.ttl,
        base_rows=rows,
    )
    return report if shared is not None else into.durable_now(report)


def _ranges_within(state: KeyedState, key_groups: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
    """These key groups in ranges that each fit in memory."""
    held = state.at.within(key_groups).handles
    first, number = key_groups.start_key_group, key_groups.number_of_key_groups
    return tuple(
        KeyGroupRange.of(first + each.start_key_group, first + each.end_key_group)
        for each in ranges_of_tasks(split_count(held, number), number)
    )


def with_base(base: OperatorReport, changes: OperatorReport | None) -> OperatorReport:
    """One report that holds a base of the parent's state, a slice of one, or a compaction of its log, and
    then the attempt's own changes.

    Raises: InvalidInputError if they are not of one operator with the same keys, or are not a base and
    changes; kind `schema_change` if the changes' types are incompatible with the state.
    """
    if changes is None:
        return base
    frozen = [(each.operator, each.key_ids, each.max_parallelism) for each in (base, changes)]
    if frozen[0] != frozen[1]:
        raise InvalidInputError(
            f"a base of {frozen[0]} and changes of {frozen[1]} (operator, key columns, max_parallelism) "
            "cannot be combined in one report"
        )
    alone = base.base_handles or base.compacted_handles
    if not alone or base.change_handles or changes.base_handles or changes.compacted_handles:
        raise InvalidInputError(f"operator {base.operator!r}: pass a base alone, and changes without a base")
    # Changes may have fewer columns than the state; the report's schema must have all of them.
    schema = evolved_schema((base, changes))
    return replace(
        changes,
        handles=base.handles + changes.handles,
        schema=schema.arrow_message,
        base=base.base,
        column_ids=schema.column_ids,
        base_range=base.base_range,
        compaction=base.compaction,
        base_rows=base.base_rows,
    )


class _Counted:
    """The changes of a base, and how many rows they had as they went by."""

    def __init__(self, state: KeyedState, runs: Iterable[FoldedRun]) -> None:
        self._state, self._runs = state, runs
        self.rows = 0

    def __iter__(self) -> Iterator[EncodedChanges]:
        for run in self._runs:
            dead = pc.sum(run.rows.column(-1)).as_py() or 0
            self.rows += run.rows.num_rows - int(dead)
            yield _as_changes(self._state, run)


def _as_changes(state: KeyedState, run: FoldedRun) -> EncodedChanges:
    alive = run.alive()
    return encode_changes(state.schema, alive.rows.select(state.schema.columns.names), alive.key_groups)
