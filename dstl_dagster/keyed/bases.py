"""Bases: an operator's log folded into one layer, so that nothing older is needed.

Owns writing a base, and what a checkpoint does for the logs of its parent. Does not own when that is due
(`due`), compacting a log (`compaction`), the steps that put both in a checkpoint (`checkpoint`), or deleting
what is older: clean-up does, once no retained checkpoint names it.

A base is an ordinary part of the log: one handle per range of key groups, which starts with the schema and
holds every row once. So anything that reads changes can read a base. Its handles ascend, and the last one
ends at the last key group; that is how `OperatorReport.base_handles` separates them from later changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow.compute as pc

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.compaction import CompactionPlan, compaction_of, write_compaction
from dstl_dagster.keyed.due import due_key_groups, is_due, key_groups_to_compact
from dstl_dagster.keyed.keyed_state import (
    KeyedState,
    StateAt,
    evolved_schema,
    folded,
    is_keyed,
    schema_of,
    split_count,
)
from dstl_dagster.keyed.keyed_writer import open_attempt_changelog
from dstl_dagster.keyed.manifest import BaseAndLog, Manifest
from dstl_dagster.keyed.operator_log import OperatorState, loading, operator_layers, operator_state
from dstl_dagster.keyed.read_ahead import RecentManifests
from dstl_dagster.keyed.reports import OperatorReport, stored_bytes
from dstl_dagster.keyed.shared_files import SharedFiles
from dstl_dagster.settings import CheckpointOptions, JobOptions, parse_names
from dstl_dagster.state import EncodedChanges, FoldedRun, encode_changes, ranges_of_tasks
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt

__all__ = [
    "base_and_log",
    "compacted",
    "due_operators",
    "with_base",
    "with_due_bases",
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
    if state is None:
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


def with_due_bases(
    store: ObjectStore,
    attempt: Attempt,
    parent: Manifest,
    reports: Iterable[OperatorReport],
    options: JobOptions,
) -> list[OperatorReport]:
    """The reports, with a base ahead of the changes of each operator whose log at the parent is due, with the
    slice of it that is, or with a compaction of its log. And, whatever is due, with a base of each operator
    whose TTL ends or becomes longer in its report. All of it is durable; what is small shares files.

    Raises: NotFoundError, FormatError, UnavailableError.
    """
    folding = _Folding(store, attempt, parent, options)
    reported: dict[str, list[OperatorReport]] = {}
    for report in reports:
        reported.setdefault(report.operator, []).append(report)
    for operator in sorted(parent.operators):
        own = reported.get(operator, [])
        older = folding.due(operator, own)
        if older is None:
            continue
        # A second report of one operator is refused at step 4, and must not be hidden here.
        reported.pop(operator, None)
        reported[operator] = [with_base(older, own[0] if own else None), *own[1:]]
    folding.shared.flush()
    return [folding.shared.durable(report) for reports in reported.values() for report in reports]


def compacted(
    store: ObjectStore,
    attempt: Attempt,
    parent: Manifest,
    operator: str,
    key_groups: KeyGroupRange,
    own: Sequence[OperatorReport] = (),
    options: JobOptions | None = None,
) -> OperatorReport | None:
    """Write a compaction of these key groups of the parent's log, durably, and report it; `None` if it would
    be of less than two checkpoints, or of much.

    `own`: what the attempt wrote itself, whose columns count.

    Raises: as `write_compaction`.
    """
    folding = _Folding(store, attempt, parent, options or JobOptions())
    compaction = folding.compaction(operator, key_groups, own)
    return None if compaction is None else folding.shared.durable_now(compaction)


class _Folding:
    """What one attempt writes of older changes, for its operators together.

    Attributes:
        shared: where small ranges wait; what a method returns is durable once it is flushed.
    """

    def __init__(self, store: ObjectStore, attempt: Attempt, parent: Manifest, options: JobOptions) -> None:
        self.shared = SharedFiles(store, attempt)
        self._store, self._attempt, self._parent, self._options = store, attempt, parent, options
        self._recent = RecentManifests()  # for the operators' walks, which meet the same ones

    def due(self, operator: str, own: Sequence[OperatorReport]) -> OperatorReport | None:
        """The base or the compaction whose turn it is, with these reports of the attempt's own changes."""
        ttl, hidden = own[0].ttl if own else None, self._parent.operators[operator].report.ttl
        if ttl is not None and not ttl.hides_what(hidden):
            # What the parent hides would come back: it is left out for good, at once.
            return self.base(operator, None, own)
        if not self._options.checkpoint.materialize:
            return None
        return self._due_compaction(operator, own) or self._due_base(operator, own)

    def _due_compaction(self, operator: str, own: Sequence[OperatorReport]) -> OperatorReport | None:
        entry = self._parent.operators[operator]
        if not is_keyed(entry.report) or entry.sizes is None:
            return None
        key_groups = key_groups_to_compact(
            entry.sizes, _own_bytes(own), entry.report.max_parallelism, self._options.checkpoint
        )
        return self.compaction(operator, key_groups, own) if key_groups.number_of_key_groups else None

    def _due_base(self, operator: str, own: Sequence[OperatorReport]) -> OperatorReport | None:
        key_groups = _due_next(self._store, self._parent, operator, own, self._options.checkpoint)
        return self.base(operator, key_groups, own) if key_groups.number_of_key_groups else None

    def compaction(
        self, operator: str, key_groups: KeyGroupRange, own: Sequence[OperatorReport]
    ) -> OperatorReport | None:
        """As `compacted`."""
        load = loading(self._store, self._parent, operator, self._recent)
        plan = compaction_of(operator_layers(self._parent, operator, load, key_groups), key_groups)
        if plan is None:
            return None
        state = self._state(operator, plan)
        compaction = write_compaction(self._attempt, _without_dropped(state, own), plan, self.shared)
        log.info(
            "operator %s: compacted %d handles of checkpoint %d, of key groups %s",
            operator,
            len(plan.handles),
            self._parent.checkpoint_id,
            key_groups,
        )
        return compaction

    def base(
        self, operator: str, key_groups: KeyGroupRange | None, own: Sequence[OperatorReport]
    ) -> OperatorReport | None:
        """A base of these key groups; `None`: of all."""
        found = operator_state(self._store, self._parent, operator, key_groups, self._recent)
        if found is None and key_groups is not None:
            return None
        if found is None:  # no row was ever written: the base says so
            load = loading(self._store, self._parent, operator, self._recent)
            found = OperatorState(operator, (next(operator_layers(self._parent, operator, load)),))
        state = _without_dropped(self._state(operator, found), own)
        base = write_base(self._store, self._attempt, state, key_groups=key_groups, shared=self.shared)
        log.info(
            "operator %s: wrote a base of checkpoint %d, of key groups %s",
            operator,
            self._parent.checkpoint_id,
            key_groups or state.all_key_groups,
        )
        return base

    def _state(self, operator: str, part: OperatorState | CompactionPlan) -> KeyedState:
        """The rows in some of the operator's handles."""
        store, parent, schema = self._store, self._parent, evolved_schema(part.reports)
        ttl, options = parent.operators[operator].report.ttl, self._options
        at = StateAt(
            store.uri, parent.job, parent.checkpoint_id, operator, schema, part.handles, options, ttl
        )
        return at.opened(store)


def _own_bytes(own: Iterable[OperatorReport]) -> int:
    return sum(stored_bytes(report.change_handles) for report in own)


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
    return due_key_groups(entry.sizes, _own_bytes(own), entry.report.max_parallelism, options)


def _without_dropped(state: KeyedState, own: Sequence[OperatorReport]) -> KeyedState:
    """The state with the columns as this attempt leaves them, so that the base has no dropped ones."""
    if not own or own[0].column_ids == state.schema.column_ids:
        return state
    schema = schema_of(own[0]).covering(state.schema)
    return replace(state, at=replace(state.at, schema=schema))


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
