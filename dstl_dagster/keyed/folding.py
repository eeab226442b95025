"""What a checkpoint does for the logs of its parent: the bases and compactions whose turn it is.

Owns which of them an attempt writes. Does not own when each is due (`due`), writing a base (`bases`) or a
compaction (`compaction`), or the steps that put both in a checkpoint (`checkpoint`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.bases import base_and_log, with_base, write_base
from dstl_dagster.keyed.compaction import CompactionPlan, compaction_of, write_compaction
from dstl_dagster.keyed.due import due_key_groups, is_due, key_groups_to_compact
from dstl_dagster.keyed.keyed_state import KeyedState, StateAt, evolved_schema, is_keyed, schema_of
from dstl_dagster.keyed.manifest import Manifest
from dstl_dagster.keyed.operator_log import OperatorState, loading, operator_layers, operator_state
from dstl_dagster.keyed.read_ahead import RecentManifests
from dstl_dagster.keyed.reports import OperatorReport, stored_bytes
from dstl_dagster.keyed.shared_files import SharedFiles
from dstl_dagster.settings import CheckpointOptions, JobOptions
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt

__all__ = ["compacted", "with_due_bases"]

log = logging.getLogger(__name__)


def with_due_bases(
    store: ObjectStore,
    attempt: Attempt,
    parent: Manifest,
    reports: Iterable[OperatorReport],
    options: JobOptions,
    recent: RecentManifests,
) -> list[OperatorReport]:
    """The reports, with a base ahead of the changes of each operator whose log at the parent is due, with the
    slice of it that is, or with a compaction of its log. And, whatever is due, with a base of each operator
    whose TTL ends or becomes longer in its report. All of it is durable; what is small shares files.

    `recent`: manifests that the caller has from earlier batches.

    Raises: NotFoundError, FormatError, UnavailableError.
    """
    folding = _Folding(store, attempt, parent, options, recent)
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
    folding = _Folding(store, attempt, parent, options or JobOptions(), RecentManifests())
    compaction = folding.compaction(operator, key_groups, own)
    return None if compaction is None else folding.shared.durable_now(compaction)


class _Folding:
    """What one attempt writes of older changes, for its operators together.

    Attributes:
        shared: where small ranges wait; what a method returns is durable once it is flushed.
    """

    def __init__(
        self,
        store: ObjectStore,
        attempt: Attempt,
        parent: Manifest,
        options: JobOptions,
        recent: RecentManifests,
    ) -> None:
        self.shared = SharedFiles(store, attempt)
        self._store, self._attempt, self._parent, self._options = store, attempt, parent, options
        self._recent = recent  # the operators' walks meet the same ones

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
        if found is None or (key_groups is not None and not found.handles):
            return None
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
