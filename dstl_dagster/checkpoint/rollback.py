"""After a restore: retract the files of the checkpoints that it abandoned.

Owns finding these files and retracting them. Does not own the decision (`decisions.to_restore`) or how one
file is retracted (`recoverable.retract_file`).

Why this is safe. The `restored` record is written first, so nobody publishes these files any more except a
zombie in mid-compose. Sources are deleted before final objects: either the zombie's compose took effect
before, and its object is found, or it finds no sources. A final object is deleted, by generation, only if it
carries the checkpoint's own fingerprint. All of it is idempotent, and every trigger repeats it until one has
opened an attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from dstl_dagster.errors import ConflictError, NotFoundError
from dstl_dagster.keyed import load_manifest
from dstl_dagster.recoverable import is_own, retract_file
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import Generation, ObjectStore
from dstl_dagster.timeline import Completed, FinalFile, Retraction, Timeline, TimelineView

__all__ = ["retract_abandoned"]

log = logging.getLogger(__name__)


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
            _delete_own(store, final)
        return
    for file in manifest.files:
        if retract_file(store, file.recoverable, file.components, options=options, parallelism=threads):
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
