"""What a restore undoes: the checkpoints that it leaves behind, and the retraction of their files.

Owns finding these checkpoints, before the decision (a plan, which changes nothing) and after it, and
retracting their files. Does not own the decision (`decisions.to_restore`) or how one file is retracted
(`recoverable.retract_file`).

Why this is safe. The `restored` record is written first, so nobody publishes these files any more except a
zombie in mid-compose. Sources are deleted before final objects: either the zombie's compose took effect
before, and its object is found, or it finds no sources. A final object is deleted, by generation, only if it
carries the checkpoint's own fingerprint. All of it is idempotent, and every trigger repeats it until one has
opened an attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from dstl_dagster.errors import ConflictError, NotFoundError
from dstl_dagster.keyed import Manifest, load_manifest
from dstl_dagster.recoverable import is_own, retract_file
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import Generation, ObjectStore
from dstl_dagster.timeline import (
    Completed,
    FinalFile,
    Opened,
    Restored,
    Retraction,
    Timeline,
    TimelineView,
    decisions,
)

__all__ = ["RestorePlan", "left_behind", "plan_restore", "retract_abandoned"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestorePlan:
    """What a restore would undo, keep and read, as of one look at the timeline. Nothing was changed.

    Attributes:
        checkpoint_id: the checkpoint to resume from.
        last: the checkpoint that the job resumes from now.
        left_behind: the completed checkpoints that go, oldest first.
        manifests: what those of `left_behind` hold that can still be read, by id.
        positions: how far each source will have been read.
        open_attempt: the attempt that ends, if one is open.
        read_objects, read_bytes: the changelog files that the restore reads, to prove that none is damaged.
    """

    checkpoint_id: int
    last: int
    left_behind: tuple[Completed, ...]
    manifests: Mapping[int, Manifest] = field(repr=False)
    positions: Mapping[str, object] = field(repr=False)
    open_attempt: Opened | None
    read_objects: int
    read_bytes: int

    @property
    def batches(self) -> tuple[str, ...]:
        """The idempotency keys (partitions) of what goes, oldest first: these batches have to run again."""
        keys = (completed.idempotency_key for completed in self.left_behind)
        return tuple(key for key in keys if key is not None)

    @property
    def files(self) -> tuple[FinalFile, ...]:
        """The files that are retracted, each only if it is still its checkpoint's own."""
        return tuple(file for completed in self.left_behind for file in completed.files)

    @property
    def state_bytes(self) -> int:
        """Bytes of changelog that go, of the checkpoints in `manifests`."""
        return sum(manifest.state_bytes for manifest in self.manifests.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of files that go, of the checkpoints in `manifests`."""
        return sum(manifest.file_bytes for manifest in self.manifests.values())


def plan_restore(
    store: ObjectStore, timeline: Timeline, view: TimelineView, manifest: Manifest
) -> RestorePlan:
    """What a restore to the checkpoint of this manifest would undo in this view. Reads only.

    Raises: ConflictError (kind `abandoned`), NotFoundError, FormatError.
    """
    target = manifest.checkpoint_id
    entry = decisions.entry_of(view, target)
    decisions.refuse_gone(entry)
    decisions.refuse_abandoned(view, target, "restore to")
    gone = _abandoned_between(timeline, entry.completed, view.slot + 1)
    manifests = {}
    for completed in gone:
        kept = view.checkpoints.get(completed.checkpoint_id)
        if kept is not None and kept.subsumed is None:
            manifests[completed.checkpoint_id] = load_manifest(
                store, completed.manifest, completed.manifest_crc32c
            )
    files = {
        stream.name: stream.stored_bytes or stream.size or 0
        for entry in manifest.operators.values()
        for handle in entry.handles
        for stream in handle.streams
    }
    return RestorePlan(
        checkpoint_id=target,
        last=view.last_completed_id or target,
        left_behind=gone,
        manifests=manifests,
        positions=manifest.positions,
        open_attempt=view.open_attempt,
        read_objects=len(files),
        read_bytes=sum(files.values()),
    )


def left_behind(timeline: Timeline, restored: Restored) -> tuple[Completed, ...]:
    """The completed checkpoints that this restore abandoned, oldest first; none once its own is gone."""
    entry = timeline.tail().checkpoints.get(restored.checkpoint_id)
    return () if entry is None else _abandoned_between(timeline, entry.completed, restored.slot)


def _abandoned_between(timeline: Timeline, target: Completed, before_slot: int) -> tuple[Completed, ...]:
    """Those completed after `target` and before `before_slot` that no restore in between abandoned."""
    found: dict[int, Completed] = {}
    for record in timeline.records(target.slot):
        if record.slot >= before_slot:
            break
        if isinstance(record, Completed):
            found[record.checkpoint_id] = record
        elif isinstance(record, Restored):
            found = {each: kept for each, kept in found.items() if each <= record.checkpoint_id}
    return tuple(found.values())


def retract_abandoned(
    store: ObjectStore,
    timeline: Timeline,
    view: TimelineView,
    options: GSFileSystemOptions,
    *,
    threads: int,
) -> int:
    """Retract the files of all checkpoints that the view's unfinished restores abandoned.

    Returns: the slot of the newest of these restores; 0 if there is none.
    """
    for retraction in view.retractions:
        for completed in _abandoned(timeline, retraction):
            _retract(store, completed, options, threads)
    return max((each.restored_slot for each in view.retractions), default=0)


def _abandoned(timeline: Timeline, retraction: Retraction) -> Iterator[Completed]:
    for record in timeline.records(retraction.after_slot):
        if record.slot >= retraction.restored_slot:
            return
        if isinstance(record, Completed) and record.checkpoint_id >= retraction.first_id:
            yield record


def _retract(store: ObjectStore, completed: Completed, options: GSFileSystemOptions, threads: int) -> None:
    try:
        manifest = load_manifest(store, completed.manifest, completed.manifest_crc32c)
    except NotFoundError:
        # Subsumed and cleaned up: only a committed checkpoint is subsumed, so no source is left, and the
        # `completed` record has all that is needed to find the final objects.
        for final in completed.files:
            _delete_own(completed.origin.located(store), final)
        return
    home, copied = completed.origin.located(store), cache(partial(completed.origin.is_copied, store))
    for file in manifest.files:
        if retract_file(
            home, file.recoverable, file.components, options=options, parallelism=threads, copied=copied
        ):
            log.info("retracted %s of checkpoint %d", file.object_name, completed.checkpoint_id)


def _delete_own(store: ObjectStore, file: FinalFile) -> None:
    if not file.fingerprint:
        log.warning("cannot prove that %s is the object of its checkpoint: left alone", file.name)
        return
    home = store.in_bucket(file.bucket)
    found = home.stat(file.name)
    if found is None or not is_own(found, file.fingerprint):
        return
    try:
        home.delete(file.name, precondition=Generation(found.generation))
    except ConflictError:
        log.info("%s was replaced meanwhile: left alone", file.name)
