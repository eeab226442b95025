"""The events to report: those that Dagster should show of a job, less those that it shows.

The one place that decides that a materialization, an observation or a mark is written. Steps and sensors call
it with the records that they know to be new, and write what it returns. It reads, and writes nothing.

Owns the decision. Does not own what an event says (`events`), how a partition is shown as failed
(`failed_partitions`), or when it is reported (`steps`, `watch.timeline_follower`).

Why all of it may run any number of times, from any record on. An event has a data version, by which it is
left out where the instance has it. The last event of a record is written last: where it was written, all
before it were. A partition is marked only while it shows a checkpoint that was left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from uuid import UUID

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format import names_in_words
from dstl_dagster.keyed import load_manifest
from dstl_dagster.orchestration.code_location import state_of
from dstl_dagster.orchestration.keys import TAG_ATTEMPT, TAG_CHECKPOINT, TAG_RESTORED, TAG_VERSION
from dstl_dagster.orchestration.partitions import held_by, is_held
from dstl_dagster.orchestration.report import events as says
from dstl_dagster.orchestration.report.events import Event, Reporter
from dstl_dagster.orchestration.report.failed_partitions import Mark
from dstl_dagster.orchestration.report.links import how_to_resolve
from dstl_dagster.orchestration.report.sample import sample_metadata
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.orchestration.timeline_check import Shown
from dstl_dagster.timeline import (
    CheckpointEntry,
    Committed,
    Completed,
    Ending,
    Restored,
    TimelineRecord,
    TimelineView,
)


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


@dataclass(frozen=True)
class Reconcile:
    """What should be shown of a job, by its timeline, less what a page shows.

    Attributes:
        view: of all records up to those that are reported, at least.
        kind, restored_in: as of `Reporter`.
        read: checkpoints whose manifests are at hand.
        known: completed checkpoints that are too old for the view.
    """

    page: Page
    coordinator: CheckpointCoordinator
    view: TimelineView
    kind: str
    read: tuple[Checkpoint, ...] = ()
    known: Mapping[int, Completed] = field(default_factory=dict)
    restored_in: int | None = None

    @cached_property
    def reporter(self) -> Reporter:
        return Reporter(self.page, self.coordinator, self.view, kind=self.kind, restored_in=self.restored_in)

    def completed(self, checkpoint_id: int) -> Completed | None:
        entry = self.view.checkpoints.get(checkpoint_id)
        return self.known.get(checkpoint_id) if entry is None else entry.completed

    # ---- what is to be reported ----

    def record(self, record: TimelineRecord) -> Report:
        """What is missing of one record; of records that no page shows, nothing.

        A checkpoint that a restore left behind has its own event, and none of files or state: those would
        show its batch as done.
        """
        match record:
            case Completed():
                return self._of_completed(record)
            case Committed() if not self.view.is_abandoned(record.checkpoint_id):
                completed = self.completed(record.checkpoint_id)
                if completed is not None:
                    return self._of_committed(CheckpointEntry(completed=completed, committed=record))
            case Restored():
                return self._of_restored(record)
            case _:
                pass
        return Report()

    def newest(self, so_far: Report, restored: Restored | None = None) -> Report:
        """The job's last checkpoint as the newest of each of its assets, where another one is so after
        `so_far`: one that a restore left behind, or that was reported late.

        `restored`: the newest restore; it is reported while the job resumes where it went back to.
        """
        last, assets = self.view.last_completed, self.page.assets

        def newest(key: dg.AssetKey) -> str | None:
            made = so_far.materialized(key)
            return says.attempt_of(made[-1]) if made else self._shown(key)

        if last is None or newest(assets.checkpoints_key) in (None, str(last.completed.attempt)):
            return Report()
        if restored is not None and restored.checkpoint_id != last.checkpoint_id:
            restored = None
        again = self
        if restored is not None:
            again = replace(self, page=self.page.with_plain(), restored_in=restored.slot)
        events = again._anew(last)
        lacking = [event for event in events[:-1] if newest(event.asset_key) != str(last.completed.attempt)]
        for own in events[-1:]:
            if restored is not None and isinstance(own, dg.AssetMaterialization):
                own = again.reporter.rolled_back(own, restored, self.coordinator.left_behind(restored))
            lacking.append(own)
        return Report(tuple(lacking))

    def whole_store(self, so_far: Report) -> Report:
        """`so_far`, and all that can be restored, anew and once, after this page has shown another store; and
        days that it does not have as failed.
        """
        report = so_far.without(entry.completed.attempt for entry in self.view.retained)
        report += Report(marks=(self.of_another_store(),))
        for entry in self.view.retained:
            report += Report(tuple(self._anew(entry)), self._blocked(entry))
        return report

    def of_another_store(self) -> Mark:
        """Days that this store does not have."""
        view, page = self.view, self.page.with_plain()
        assets, gone = page.assets, {}
        for key in (*assets.state_keys, assets.files_key):
            definition = page.states.get(key) if key in assets.state_keys else page.files
            unnamed = {
                day
                for day in page.materialized(key)
                if held_by(view, day, key, assets) is False or not is_held(view, definition, day)
            }
            # The batch of a plain asset may have a name of its own.
            shown = page.checkpoints(key, unnamed.__contains__)
            foreign = [day for day in sorted(unnamed) if not any(map(self._has, shown.get(day, ())))]
            if foreign:
                gone[key] = tuple(foreign)
        return Mark(
            cause=f"store/{assets.job}/{self._shown(assets.checkpoints_key) or ''}",
            about="not in the store that the job was started over in",
            why=f"{assets.job} was started over in another store, which does not have these partitions: run "
            "them there, oldest first",
            partitions=gone,
            alone=True,
        )

    def _has(self, shown: Shown) -> bool:
        """Whether the timeline holds this checkpoint."""
        attempt, view = UUID(shown.attempt), self.view
        is_known = view.completed_by(attempt, shown.checkpoint_id) is not None
        fate = None if is_known else view.fate(attempt)
        is_known = is_known or (fate is not None and fate.ending is Ending.SUBSUMED)
        return is_known and not view.is_abandoned(shown.checkpoint_id)

    # ---- of one record ----

    def _of_completed(self, completed: Completed) -> Report:
        """The changes of each operator, and the checkpoint's own event."""
        if self.page.has(self.page.assets.checkpoints_key, says.state_version(completed.attempt)):
            return Report()
        checkpoint = self._checkpoint(CheckpointEntry(completed=completed, committed=None))
        if checkpoint is None:
            return Report((self.reporter.subsumed(completed),))
        return Report((*self._lacking(self._operators(checkpoint)), self.reporter.checkpoint(checkpoint)))

    def _of_committed(self, entry: CheckpointEntry) -> Report:
        """The files, which a person's word on a blocked one changes; and the state, if no output shows it."""
        completed, page, assets = entry.completed, self.page, self.page.assets
        version = says.files_version(completed.attempt, entry.committed)
        has_files = bool(completed.files) and not page.has(assets.files_key, version)
        state = says.state_version(completed.attempt)
        has_state = bool(page.states) and not any(page.has(key, state) for key in assets.state_keys)
        checkpoint = self._checkpoint(entry) if has_files or has_state else None
        if checkpoint is None:
            return Report()
        events: list[Event] = []
        if has_files:
            # Only what can be restored has a page: a backlog of thousands costs no more than these.
            if any(each.checkpoint_id == completed.checkpoint_id for each in self.view.retained):
                events += self._lacking([self.reporter.published(checkpoint)])
            events.append(self.reporter.files(checkpoint, page.partition(page.files, completed)))
        made = state_of(assets, checkpoint, page.definitions) if has_state else None
        if made is not None and made.state_key in page.states:
            definition = page.states[made.state_key]
            where = page.partition(definition, completed)
            is_its = definition is None or where is not None
            if is_its and not page.shows(made.state_key, where, completed.attempt):
                events.append(self.reporter.state(made.state_key, checkpoint, where))
        return Report(tuple(events), self._blocked(entry) if has_files else ())

    def _of_restored(self, restored: Restored) -> Report:
        """The partitions that show what it undid, as failed."""
        page = self.page.with_plain()
        assets = page.assets
        # By attempt: each source may have a batch of a name, and a batch of a table several partitions.
        undone = {str(each.attempt) for each in self.coordinator.left_behind(restored)}
        still: dict[dg.AssetKey, tuple[str, ...]] = {}
        for key in (*assets.state_keys, assets.files_key) if undone else ():
            shown = page.attempts(key, self.view.timeline_id)
            taken = tuple(sorted(day for day, attempts in shown.items() if attempts & undone))
            if taken:
                still[key] = taken
        mark = Mark(
            cause=f"restored/{restored.decision_id}",
            about=f"run again after the restore to {restored.where}",
            why=f"{assets.job} was rolled back to {restored.where}. Run again, oldest first: "
            + names_in_words(*sorted({day for days in still.values() for day in days})),
            partitions=still,
            tags={TAG_CHECKPOINT: str(restored.checkpoint_id), TAG_RESTORED: str(restored.slot)},
        )
        return Report(marks=(mark,) if still else ())

    def _blocked(self, entry: CheckpointEntry) -> tuple[Mark, ...]:
        """The partition of a checkpoint with blocked files, as failed."""
        partition, number = self.page.partition(self.page.files, entry.completed), entry.checkpoint_id
        blocked = () if entry.committed is None else entry.committed.blocked
        if not blocked or partition is None:
            return ()
        names = ", ".join(file.name for file in blocked)
        mark = Mark(
            cause=f"blocked/{entry.completed.attempt}",
            about=f"blocked files of checkpoint {number}",
            why=f"Files of checkpoint {number} are blocked: {names}. {how_to_resolve(number, 'NAME')}",
            partitions={self.page.assets.files_key: (partition,)},
            tags={TAG_CHECKPOINT: str(number), TAG_ATTEMPT: str(entry.completed.attempt)},
        )
        return (mark,)

    # ---- of a checkpoint ----

    def _anew(self, entry: CheckpointEntry) -> list[Event]:
        """Its events once more, its own last; none without its manifest."""
        checkpoint, page, assets = self._checkpoint(entry), self.page, self.page.assets
        if checkpoint is None:
            return []
        events: list[Event] = []
        state, batch = state_of(assets, checkpoint, page.definitions), checkpoint.idempotency_key

        def place(key: dg.AssetKey, definition: dg.PartitionsDefinition[str] | None) -> str | None:
            return batch if batch in page.materialized(key) else page.partition(definition, entry.completed)

        if state is not None and entry.committed is not None:
            key = state.state_key
            where, known = place(key, page.states.get(key)), page.newest(key)
            if where is not None or (known is not None and known.partition is None):
                events.append(self.reporter.state(key, checkpoint, where))
        events += self._operators(checkpoint)
        if checkpoint.manifest.files and checkpoint.committed:
            events.append(self.reporter.files(checkpoint, place(assets.files_key, page.files)))
        return [*events, self.reporter.checkpoint(checkpoint)]

    def _checkpoint(self, entry: CheckpointEntry) -> Checkpoint | None:
        """With its manifest; `None` where clean-up has deleted that, or a restore left it behind damaged."""
        completed = entry.completed
        for each in self.read:
            if each.attempt == completed.attempt:
                return Checkpoint(entry, each.manifest)
        try:
            manifest = load_manifest(self.coordinator.store, completed.manifest, completed.manifest_crc32c)
        except NotFoundError:
            return None
        except FormatError:
            if self.view.is_abandoned(entry.checkpoint_id):
                return None
            raise
        return Checkpoint(entry, manifest)

    def _operators(self, checkpoint: Checkpoint) -> list[Event]:
        made = partial(self.reporter.operator, checkpoint)
        named = [each for each in self.page.assets.operators if each in checkpoint.manifest.operators]
        return [made(each, self._sample(checkpoint, each)) for each in named]

    def _sample(self, checkpoint: Checkpoint, operator: str) -> Mapping[str, dg.MetadataValue]:
        """Nothing where none is asked for, or the checkpoint before is too old."""
        count, on = self.page.assets.sample, checkpoint.parent
        parent = None if on is None else self.completed(on)
        if not count or (on is not None and parent is None):
            return {}
        return sample_metadata(self.coordinator.store, checkpoint, parent, operator, count)

    def _shown(self, key: dg.AssetKey, partition: str | None = None) -> str | None:
        """The attempt of the newest event of an asset, or of one of its partitions."""
        event = self.page.newest(key, partition)
        return None if event is None else says.attempt_of(event)

    def _lacking(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Those that were not written by an earlier try. The last one was written last."""
        return tuple(
            event for event in events if not self.page.has(event.asset_key, (event.tags or {})[TAG_VERSION])
        )


def partition_changes(page: Page, coordinator: CheckpointCoordinator) -> tuple[list[str], list[str]]:
    """The partitions that retained checkpoints are missing, oldest first, and those of others."""
    # The partitions are read first: each existing one has a checkpoint on a timeline that is read later, so
    # a checkpoint that completes in between is never taken for a stale one.
    assets, existing = page.assets, set(page.instance.get_dynamic_partitions(page.assets.partitions_name))
    retained = [assets.partition_key(entry.checkpoint_id) for entry in coordinator.timeline.tail().retained]
    missing = [key for key in retained if key not in existing]
    return missing, sorted(existing.difference(retained), reverse=True)
