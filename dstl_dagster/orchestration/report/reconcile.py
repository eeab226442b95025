"""Which events are reported: what Dagster should show of a job, less what it shows.

The one place that decides that a materialization, an observation or a mark is written. Steps and sensors call
it with the records that they know to be new, and write what it returns. It reads, and writes nothing.

Owns the decision. Does not own what an event says (`events`), how a partition is shown as failed (`marks`),
or who reports when (`steps`, `watch.tick`).

Why all of it may run any number of times, from any record on. An event has a data version, by which it is
left out where the instance has it. The last event of a record is written last: where it was written, all
before it were. A partition is marked only while it shows a checkpoint that was left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.errors import NotFoundError
from dstl_dagster.keyed import load_manifest
from dstl_dagster.orchestration.definitions import state_of
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.partitions import is_held
from dstl_dagster.orchestration.report import events as says
from dstl_dagster.orchestration.report.events import Event, Reporter
from dstl_dagster.orchestration.report.marks import Mark, blocked_mark, other_store_mark, restored_mark
from dstl_dagster.orchestration.report.page import Page
from dstl_dagster.orchestration.tags import TAG_VERSION
from dstl_dagster.timeline import (
    CheckpointEntry,
    Committed,
    Completed,
    Restored,
    TimelineRecord,
    TimelineView,
)

__all__ = [
    "History",
    "PartitionChanges",
    "Report",
    "partition_changes",
    "show_newest",
    "show_store",
    "to_report",
]


@dataclass(frozen=True)
class History:
    """What a job's timeline says, the manifests behind it, and how an event tells of it.

    Attributes:
        reporter: with the view of all records up to those that are reported, at least.
        known: completed checkpoints that are too old for the view.
        manifest: of a completed checkpoint; `None` where clean-up has deleted it.
        left_behind: the checkpoints that a restore abandoned, oldest first.
    """

    reporter: Reporter
    manifest: Callable[[Completed, Committed | None], Checkpoint | None]
    left_behind: Callable[[Restored], tuple[Completed, ...]]
    known: Mapping[int, Completed] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        coordinator: CheckpointCoordinator,
        view: TimelineView,
        kind: str,
        *read: Checkpoint,
        known: Mapping[int, Completed] | None = None,
        **of_reporter: Any,
    ) -> History:
        """As the store has it. `read`: checkpoints whose manifests the caller has. Others: as `Reporter`."""

        def manifest(completed: Completed, committed: Committed | None) -> Checkpoint | None:
            found = next((each.manifest for each in read if each.attempt == completed.attempt), None)
            with suppress(NotFoundError):
                found = found or load_manifest(
                    coordinator.store, completed.manifest, completed.manifest_crc32c
                )
            entry = CheckpointEntry(completed=completed, committed=committed)
            return None if found is None else Checkpoint(entry, found)

        reporter = Reporter.of(coordinator, view, kind, **of_reporter)
        return cls(reporter, manifest, coordinator.left_behind, known or {})

    @property
    def view(self) -> TimelineView:
        """Of the timeline."""
        return self.reporter.view or TimelineView()

    def completed(self, checkpoint_id: int) -> Completed | None:
        """The record of step 5 of this checkpoint."""
        entry = self.view.checkpoints.get(checkpoint_id)
        return self.known.get(checkpoint_id) if entry is None else entry.completed


@dataclass(frozen=True)
class Report:
    """What is to be written: marks first, then events, in order."""

    events: tuple[Event, ...] = ()
    marks: tuple[Mark, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.events or self.marks)

    def __add__(self, other: Report) -> Report:
        return Report(self.events + other.events, self.marks + other.marks)

    def without(self, attempts: Iterable[UUID]) -> Report:
        """Less the events about the checkpoints of these."""
        left_out = {str(attempt) for attempt in attempts}
        events = tuple(event for event in self.events if says.attempt_of(event) not in left_out)
        return replace(self, events=events)

    def materialized(self, key: dg.AssetKey) -> list[dg.AssetMaterialization]:
        """Those of one asset, oldest first."""
        made = (event for event in self.events if isinstance(event, dg.AssetMaterialization))
        return [event for event in made if event.asset_key == key]


def to_report(record: TimelineRecord, history: History, page: Page) -> Report:
    """What is lacking of one record; of records that no page shows, nothing.

    A checkpoint that a restore left behind has its own event, and none of files or state: those would show
    its batch as done.
    """
    match record:
        case Completed():
            return _of_completed(record, history, page)
        case Committed() if not history.view.is_abandoned(record.checkpoint_id):
            completed = history.completed(record.checkpoint_id)
            if completed is not None:
                return _of_committed(completed, record, history, page)
        case Restored():
            return _of_restored(record, history, page)
        case _:
            pass
    return Report()


def show_newest(
    so_far: Report,
    history: History,
    page: Page,
    restored: Restored | None = None,
) -> Report:
    """The job's last checkpoint as the newest of each of its assets, where another one is so after `so_far`:
    one that a restore left behind, or that was reported late.

    `restored`: the newest restore; it is told of while the job resumes where it went back to.
    """
    last, assets = history.view.last_completed, page.assets

    def newest(key: dg.AssetKey) -> str | None:
        made = so_far.materialized(key)
        event = made[-1] if made else page.newest(key)
        return None if event is None else says.attempt_of(event)

    if last is None or newest(assets.checkpoints_key) in (None, str(last.completed.attempt)):
        return Report()
    if restored is not None and restored.checkpoint_id != last.checkpoint_id:
        restored = None
    by = replace(history.reporter, restored_in=None if restored is None else restored.slot)
    events = _anew(last, history, page, by)
    lacking = [event for event in events[:-1] if newest(event.asset_key) != str(last.completed.attempt)]
    for event in events[-1:]:
        if restored is None or not isinstance(event, dg.AssetMaterialization):
            lacking.append(event)
        else:
            lacking.append(says.rolled_back(event, assets, restored, history.left_behind(restored)))
    return Report(tuple(lacking))


def show_store(so_far: Report, history: History, page: Page) -> Report:
    """`so_far`, and all that can be restored, anew and once, after this page has shown another store; and
    days that it does not have as failed.
    """
    view, assets = history.view, page.assets
    gone = {}
    for key in (*assets.state_keys, assets.files_key):
        definition = page.states.get(key) if key in assets.state_keys else page.files
        shown = sorted(page.materialized(key))
        foreign = [day for day in shown if not is_held(view, definition, day)]
        if foreign:
            gone[key] = tuple(foreign)
    before = page.newest(assets.checkpoints_key)
    left = "" if before is None else says.attempt_of(before)
    report = so_far.without(entry.completed.attempt for entry in view.retained)
    report += Report(marks=(other_store_mark(assets, left, gone),))
    for entry in view.retained:
        report += Report(tuple(_anew(entry, history, page, history.reporter)))
        checkpoint = history.manifest(entry.completed, entry.committed)
        partition = page.partition(page.files, entry.completed)
        if checkpoint is not None and checkpoint.blocked and partition is not None:
            report += Report(marks=(blocked_mark(assets, checkpoint, partition),))
    return report


def _anew(entry: CheckpointEntry, history: History, page: Page, reporter: Reporter) -> list[Event]:
    """A checkpoint's events once more, its own last; none without its manifest."""
    checkpoint, assets = history.manifest(entry.completed, entry.committed), page.assets
    if checkpoint is None:
        return []
    events: list[Event] = []
    state, batch = state_of(assets, checkpoint), checkpoint.idempotency_key

    def place(key: dg.AssetKey, definition: dg.PartitionsDefinition[str] | None) -> str | None:
        return batch if batch in page.materialized(key) else page.partition(definition, entry.completed)

    if state is not None and entry.committed is not None:
        key = state.state_key
        where, known = place(key, page.states.get(key)), page.newest(key)
        if where is not None or (known is not None and known.partition is None):
            events.append(says.state_materialization(state, checkpoint, reporter, where))
    events += _operators(page, checkpoint, reporter)
    if checkpoint.manifest.files and checkpoint.committed:
        where = place(assets.files_key, page.files)
        events.append(says.files_event(assets, checkpoint, reporter, where))
    return [*events, says.checkpoint_materialization(assets, checkpoint, reporter)]


def _lacking(events: Iterable[Event], page: Page) -> tuple[Event, ...]:
    """Those that were not written by an earlier try. The last one was written last."""
    return tuple(event for event in events if not page.has(event.asset_key, _version(event)))


def _version(event: Event) -> str:
    return (event.tags or {})[TAG_VERSION]


def _operators(page: Page, checkpoint: Checkpoint, reporter: Reporter) -> list[Event]:
    return [
        says.operator_materialization(page.assets, checkpoint, operator, reporter)
        for operator in page.assets.operators
        if operator in checkpoint.manifest.operators
    ]


def _of_completed(completed: Completed, history: History, page: Page) -> Report:
    """The changes of each operator, a word on the parent's page, and the checkpoint's own event."""
    assets, reporter = page.assets, history.reporter
    if page.has(assets.checkpoints_key, says.state_version(completed.attempt)):
        return Report()
    checkpoint = history.manifest(completed, None)
    if checkpoint is None:
        return Report((says.subsumed_materialization(assets, completed, reporter),))
    events: list[Event] = _operators(page, checkpoint, reporter)
    if _has_page(history.view, completed.parent):
        events.append(says.child_observation(assets, completed))
    own = says.checkpoint_materialization(assets, checkpoint, reporter)
    return Report((*_lacking(events, page), own))


def _of_committed(
    completed: Completed,
    committed: Committed,
    history: History,
    page: Page,
) -> Report:
    """The files, which a person's word on a blocked one changes; and the state, if no output shows it."""
    assets, reporter = page.assets, history.reporter
    version = says.files_version(completed.attempt, committed)
    has_files = bool(completed.files) and not page.has(assets.files_key, version)
    state = says.state_version(completed.attempt)
    has_state = bool(page.states) and not any(page.has(key, state) for key in assets.state_keys)
    checkpoint = history.manifest(completed, committed) if has_files or has_state else None
    if checkpoint is None:
        return Report()
    events: list[Event] = []
    marks: tuple[Mark, ...] = ()
    if has_files:
        partition = page.partition(page.files, completed)
        if _has_page(history.view, completed.checkpoint_id):
            events += _lacking([says.published_observation(assets, checkpoint, reporter)], page)
        events.append(says.files_event(assets, checkpoint, reporter, partition))
        if checkpoint.blocked and partition is not None:
            marks = (blocked_mark(assets, checkpoint, partition),)
    made = state_of(assets, checkpoint) if has_state else None
    if made is not None and made.state_key in page.states:
        definition = page.states[made.state_key]
        where = page.partition(definition, completed)
        if definition is None or where is not None:
            events.append(says.state_materialization(made, checkpoint, reporter, where))
    return Report(tuple(events), marks)


def _of_restored(restored: Restored, history: History, page: Page) -> Report:
    """What is gone, said wherever it is shown."""
    assets, left = page.assets, history.left_behind(restored)
    batches = {each.idempotency_key: each for each in left if each.idempotency_key is not None}
    still: dict[dg.AssetKey, tuple[str, ...]] = {}
    for key in (*assets.state_keys, assets.files_key) if batches else ():
        ever = page.materialized(key)
        taken = [day for day, each in batches.items() if day in ever and _shows(page.newest(key, day), each)]
        if taken:
            still[key] = tuple(taken)
    gone = [event for each in left for event in says.left_behind(assets, restored, each, still)]
    marks = (restored_mark(assets, restored, left, still),) if still else ()
    return Report(_lacking(gone, page), marks)


def _shows(event: dg.AssetMaterialization | None, completed: Completed) -> bool:
    return event is not None and says.attempt_of(event) == str(completed.attempt)


def _has_page(view: TimelineView, checkpoint_id: int | None) -> bool:
    """Only what can be restored has one: a backlog of thousands costs no more than what is retained."""
    return any(entry.checkpoint_id == checkpoint_id for entry in view.retained)


@dataclass(frozen=True)
class PartitionChanges:
    """What makes the dynamic partitions of a job the checkpoints that can be restored now.

    Attributes:
        missing: keys of retained checkpoints that have no partition, oldest first.
        stale: keys of partitions whose checkpoint is not retained.
    """

    missing: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)


def partition_changes(
    instance: dg.DagsterInstance, assets: JobAssets, coordinator: CheckpointCoordinator
) -> PartitionChanges:
    """The difference between the partitions that exist and the checkpoints that are retained."""
    # The partitions are read first: each existing one has a checkpoint on a timeline that is read later, so
    # a checkpoint that completes in between is never taken for a stale one.
    existing = set(instance.get_dynamic_partitions(assets.partitions_name))
    retained = [assets.partition_key(entry.checkpoint_id) for entry in coordinator.timeline.tail().retained]
    return PartitionChanges(
        missing=[key for key in retained if key not in existing],
        stale=sorted(existing.difference(retained), reverse=True),
    )
