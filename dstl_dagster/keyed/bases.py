"""Bases: an operator's log folded into one layer, so that nothing older is needed.

Owns when a log is due for folding, and writing the base. Does not own the steps that put it in a checkpoint
(`checkpoint`), or deleting what is older: clean-up does, once no retained checkpoint names it.

A base is an ordinary part of the log: one handle per range of key groups, which starts with the schema and
holds every row once. So anything that reads changes can read a base. Its handles ascend, and the last one
ends at the last key group; that is how `OperatorReport.base_handles` separates them from later changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.keyed.keyed_state import KeyedState, evolved_schema, folded, is_keyed, schema_of
from dstl_dagster.keyed.keyed_writer import open_attempt_changelog, write_range
from dstl_dagster.keyed.manifest import BaseAndLog, Manifest
from dstl_dagster.keyed.operator_log import operator_state
from dstl_dagster.keyed.reports import OperatorReport
from dstl_dagster.settings import CheckpointOptions, JobOptions, parse_names
from dstl_dagster.state import EncodedChanges, FoldedRun, encode_changes
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt

__all__ = ["base_and_log", "due_operators", "is_due", "with_base", "with_due_bases", "write_base"]

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


def is_due(sizes: BaseAndLog, options: CheckpointOptions) -> bool:
    """Whether the log is long enough to be folded. Pure.

    By bytes: the log has grown to `materialize_log_ratio` times the base, which bounds write amplification;
    small logs are left alone. Or by the number of manifests that a reader has to load.
    """
    if not sizes.checkpoints:
        return False
    by_bytes = (
        sizes.log_bytes >= options.materialize_min_log_bytes
        and sizes.log_bytes >= options.materialize_log_ratio * sizes.base_bytes
    )
    return by_bytes or sizes.checkpoints >= options.materialize_max_checkpoints


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
    sizes = {name: base_and_log(store, manifest, name) for name in keyed}
    return [name for name in keyed if is_due(sizes[name], options) or (force and sizes[name].checkpoints)]


def write_base(
    store: ObjectStore,
    attempt: Attempt,
    state: KeyedState,
    *,
    progress: Progress | None = None,
) -> OperatorReport:
    """Write the whole state as ordinary changelog files of `attempt`, durably, and report it as a base.

    One handle for each of `state.ranges()`, one range at a time: the schema, then every row once, each in
    the key group that it was written in. No tombstones. The same state produces the same changes. A state
    without rows produces the schema alone.

    Args:
        state: at the attempt's parent. Its options say how the changelog files are written, too.
        progress: called with (ranges done, ranges in total).

    Raises: NotFoundError (kind `checkpoint_gone`), FormatError, UnavailableError. Files written before the
    error carry the attempt and are in no report; clean-up deletes them once the attempt is dead.
    """
    ranges = state.ranges()
    handles = []
    with (
        open_attempt_changelog(store, attempt, state.at.options) as storage,
        state.reading(cached=len(ranges) > 1) as reader,
    ):
        for count, key_groups in enumerate(ranges, 1):
            fold = folded(reader, state.handles, state.schema, key_groups)
            changes = (_as_changes(state, run) for run in fold.runs())
            handles.append(write_range(storage, attempt, state.operator, state.schema, key_groups, changes))
            if progress is not None:
                progress(count, len(ranges))
    schema = state.schema
    return OperatorReport(
        operator=state.operator,
        handles=tuple(handles),
        key_columns=schema.key_columns,
        max_parallelism=schema.max_parallelism,
        schema=schema.arrow_message,
        base=True,
        column_ids=schema.column_ids,
    )


def with_base(base: OperatorReport, changes: OperatorReport | None) -> OperatorReport:
    """One report that holds a base of the parent's state, followed by the attempt's own changes.

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
    if not base.base or base.change_handles or changes.base:
        raise InvalidInputError(f"operator {base.operator!r}: pass a base alone, and changes without a base")
    # Changes may have fewer columns than the state; the report's schema must have all of them.
    schema = evolved_schema((base, changes))
    return replace(
        changes,
        handles=base.handles + changes.handles,
        schema=schema.arrow_message,
        base=True,
        column_ids=schema.column_ids,
    )


def with_due_bases(
    store: ObjectStore,
    attempt: Attempt,
    parent: Manifest,
    reports: Iterable[OperatorReport],
    options: JobOptions,
) -> list[OperatorReport]:
    """The reports, with a base ahead of the changes of each operator whose log at the parent is due.

    Raises: NotFoundError, FormatError, UnavailableError.
    """
    combined = list(reports)
    if not options.checkpoint.materialize:
        return combined
    for operator in due_operators(store, parent, options.checkpoint):
        state = KeyedState.of(store, parent, operator, options)
        if state is None:
            continue
        own = [report for report in combined if report.operator == operator]
        base = write_base(store, attempt, _without_dropped(state, own))
        # A second report of one operator is refused at step 4, and must not be hidden here.
        rest = [report for report in combined if report not in own]
        combined = [*rest, with_base(base, own[0] if own else None), *own[1:]]
        log.info("operator %s: wrote a base of checkpoint %d", operator, parent.checkpoint_id)
    return combined


def _without_dropped(state: KeyedState, own: list[OperatorReport]) -> KeyedState:
    """The state with the columns as this attempt leaves them, so that the base has no dropped ones."""
    if not own or own[0].column_ids == state.schema.column_ids:
        return state
    schema = schema_of(own[0]).covering(state.schema)
    return replace(state, at=replace(state.at, schema=schema))


def _as_changes(state: KeyedState, run: FoldedRun) -> EncodedChanges:
    alive = run.alive()
    return encode_changes(state.schema, alive.rows.select(state.schema.columns.names), alive.key_groups)
