"""Bases: an operator's log folded into one layer, so that nothing older is needed.

Owns when a log is due for folding, which key groups are folded next, and writing the base. Does not own the
steps that put it in a checkpoint (`checkpoint`), or deleting what is older: clean-up does, once no retained
checkpoint names it.

A base is an ordinary part of the log: one handle per range of key groups, which starts with the schema and
holds every row once. So anything that reads changes can read a base. Its handles ascend, and the last one
ends at the last key group; that is how `OperatorReport.base_handles` separates them from later changes.

A large state is folded in slices, one range of key groups after the other, so that no checkpoint writes all
of it. The slices of a round are spread over the checkpoints in which the log grows to what makes it due: so
each key group is rewritten as often as if all were folded together, and has as long a log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.keyed_state import (
    KeyedState,
    evolved_schema,
    folded,
    is_keyed,
    schema_of,
    split_count,
)
from dstl_dagster.keyed.keyed_writer import open_attempt_changelog, write_range
from dstl_dagster.keyed.manifest import BaseAndLog, Manifest
from dstl_dagster.keyed.operator_log import operator_state
from dstl_dagster.keyed.reports import OperatorReport, stored_bytes
from dstl_dagster.settings import CheckpointOptions, JobOptions, parse_names
from dstl_dagster.state import EncodedChanges, FoldedRun, encode_changes, ranges_of_tasks
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt

__all__ = [
    "base_and_log",
    "due_key_groups",
    "due_operators",
    "is_due",
    "with_base",
    "with_due_bases",
    "write_base",
]

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]

MAX_SLICES: Final = 16
"""Of one round. A slice reads its part of every file of the log: with more, that would take longer than the
rest."""


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


def is_due(sizes: BaseAndLog, options: CheckpointOptions) -> bool:
    """Whether the log is long enough for all of it to be folded. Pure."""
    return _progress(sizes, options) >= 1


def due_key_groups(
    sizes: BaseAndLog, own_bytes: int, max_parallelism: int, options: CheckpointOptions
) -> KeyGroupRange:
    """The key groups that the next checkpoint folds: those whose turn it is; `EMPTY` if none are due. Pure.

    At most a slice, or if that is more, as much of the base as the checkpoint's own changes of `own_bytes`
    are of what makes the log due: so no log outgrows its folding.
    """
    slices = min(sizes.base_bytes // options.materialize_slice_bytes, MAX_SLICES, max_parallelism)
    slice_ = math.ceil(max_parallelism / max(slices, 1))
    left = max_parallelism - sizes.folded_key_groups
    # In time, all will have been folded when the log is due.
    by_now = math.floor(min(1.0, _progress(sizes, options)) * max_parallelism)
    behind = by_now - sizes.folded_key_groups
    if behind < min(slice_, left):
        return KeyGroupRange.EMPTY
    paid = math.ceil(max_parallelism * own_bytes / max(1.0, _due_bytes(sizes, options)))
    count = min(behind, max(slice_, paid))
    return KeyGroupRange.of(sizes.folded_key_groups, sizes.folded_key_groups + count - 1)


def _progress(sizes: BaseAndLog, options: CheckpointOptions) -> float:
    """How far the log has grown towards being folded; at 1 it is due.

    By bytes: to `materialize_log_ratio` times the base, which bounds write amplification. A log below
    `materialize_min_log_bytes` waits for some checkpoints more. Or by the number of checkpoints alone.
    """
    if not sizes.checkpoints:
        return 0.0
    by_bytes = sizes.log_bytes / max(1.0, _due_bytes(sizes, options))
    by_checkpoints = sizes.checkpoints / options.materialize_max_checkpoints
    if sizes.log_bytes >= options.materialize_log_ratio * sizes.base_bytes:
        by_checkpoints = max(by_checkpoints, sizes.checkpoints / options.materialize_min_checkpoints)
    return max(by_bytes, by_checkpoints)


def _due_bytes(sizes: BaseAndLog, options: CheckpointOptions) -> float:
    return max(options.materialize_min_log_bytes, options.materialize_log_ratio * sizes.base_bytes)


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
    return state is not None and any(layer.changes for layer in state.layers)


def write_base(
    store: ObjectStore,
    attempt: Attempt,
    state: KeyedState,
    *,
    key_groups: KeyGroupRange | None = None,
    progress: Progress | None = None,
) -> OperatorReport:
    """Write the state as ordinary changelog files of `attempt`, durably, and report it as a base.

    One handle for each range that fits in memory, one range at a time: the schema, then every row once, each
    in the key group that it was written in. No tombstones. The same state produces the same changes. A state
    without rows produces the schema alone.

    Args:
        state: at the attempt's parent. Its options say how the changelog files are written, too.
        key_groups: only these, a slice; `None`: all.
        progress: called with (ranges done, ranges in total).

    Raises: NotFoundError (kind `checkpoint_gone`), FormatError, UnavailableError. Files written before the
    error carry the attempt and are in no report; clean-up deletes them once the attempt is dead.
    """
    slice_ = None if key_groups in (None, state.all_key_groups) else key_groups
    ranges = state.ranges() if slice_ is None else _ranges_within(state, slice_)
    handles = []
    with (
        open_attempt_changelog(store, attempt, state.at.options) as storage,
        state.reading(cached=len(ranges) > 1) as reader,
    ):
        for count, each in enumerate(ranges, 1):
            fold = folded(reader, state.handles, state.schema, each)
            changes = (_as_changes(state, run) for run in fold.runs())
            handles.append(write_range(storage, attempt, state.operator, state.schema, each, changes))
            if progress is not None:
                progress(count, len(ranges))
    schema = state.schema
    return OperatorReport(
        operator=state.operator,
        handles=tuple(handles),
        key_columns=schema.key_columns,
        max_parallelism=schema.max_parallelism,
        schema=schema.arrow_message,
        base=slice_ is None,
        column_ids=schema.column_ids,
        base_range=slice_,
    )


def _ranges_within(state: KeyedState, key_groups: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
    """These key groups in ranges that each fit in memory."""
    held = state.at.within(key_groups).handles
    first, number = key_groups.start_key_group, key_groups.number_of_key_groups
    return tuple(
        KeyGroupRange.of(first + each.start_key_group, first + each.end_key_group)
        for each in ranges_of_tasks(split_count(held, number), number)
    )


def with_base(base: OperatorReport, changes: OperatorReport | None) -> OperatorReport:
    """One report that holds a base of the parent's state, or a slice, and then the attempt's own changes.

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
    if not base.base_handles or base.change_handles or changes.base_handles:
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
    )


def with_due_bases(
    store: ObjectStore,
    attempt: Attempt,
    parent: Manifest,
    reports: Iterable[OperatorReport],
    options: JobOptions,
) -> list[OperatorReport]:
    """The reports, with a base ahead of the changes of each operator whose log at the parent is due, or with
    the slice of it that is.

    Raises: NotFoundError, FormatError, UnavailableError.
    """
    combined = list(reports)
    if not options.checkpoint.materialize:
        return combined
    for operator in sorted(parent.operators):
        own = [report for report in combined if report.operator == operator]
        key_groups = _due_next(store, parent, operator, own, options.checkpoint)
        if not key_groups.number_of_key_groups:
            continue
        state = KeyedState.of(store, parent, operator, options)
        if state is None:
            continue
        base = write_base(store, attempt, _without_dropped(state, own), key_groups=key_groups)
        # A second report of one operator is refused at step 4, and must not be hidden here.
        rest = [report for report in combined if report not in own]
        combined = [*rest, with_base(base, own[0] if own else None), *own[1:]]
        log.info(
            "operator %s: wrote a base of checkpoint %d, of key groups %s",
            operator,
            parent.checkpoint_id,
            key_groups,
        )
    return combined


def _due_next(
    store: ObjectStore,
    parent: Manifest,
    operator: str,
    own: Iterable[OperatorReport],
    options: CheckpointOptions,
) -> KeyGroupRange:
    """The key groups of the operator that are due, with these reports of the attempt's own changes."""
    entry = parent.operators[operator]
    if not is_keyed(entry.report):
        return KeyGroupRange.EMPTY
    if entry.sizes is None:
        # A manifest of the first release: all at once, and from then on the sizes are recorded.
        due = is_due(base_and_log(store, parent, operator), options)
        return KeyGroupRange.of(0, entry.report.max_parallelism - 1) if due else KeyGroupRange.EMPTY
    own_bytes = sum(stored_bytes(report.change_handles) for report in own)
    return due_key_groups(entry.sizes, own_bytes, entry.report.max_parallelism, options)


def _without_dropped(state: KeyedState, own: list[OperatorReport]) -> KeyedState:
    """The state with the columns as this attempt leaves them, so that the base has no dropped ones."""
    if not own or own[0].column_ids == state.schema.column_ids:
        return state
    schema = schema_of(own[0]).covering(state.schema)
    return replace(state, at=replace(state.at, schema=schema))


def _as_changes(state: KeyedState, run: FoldedRun) -> EncodedChanges:
    alive = run.alive()
    return encode_changes(state.schema, alive.rows.select(state.schema.columns.names), alive.key_groups)
