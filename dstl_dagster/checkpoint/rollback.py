"""After a restore: take back the files of the checkpoints that it left behind.

Owns finding these files and retracting them. Does not own the decision (`decisions.to_restore`) nor how one
file is retracted (`recoverable.retract_file`).

Why this is safe. The `restored` record stands first, so nobody publishes these files any more except a
zombie in mid-compose. Sources go before final objects: a zombie's compose either came before, and then its
object is seen, or finds no sources. A final object goes only if it bears the checkpoint's own fingerprint,
by generation. All of it may be repeated, and every trigger does until one has opened an attempt.
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
    """Retract the files of all that the view's unfinished restores left behind.

    Returns: the slot of the newest of these restores; 0 where there is none.
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
        manifest = load_manifest(store, completed.manifest)
    except NotFoundError:
        # It was given up long ago: all was published, so no source is left, and the record knows the rest.
        for final in completed.files:
            _delete_own(store, final)
        return
    for file in manifest.files:
        if retract_file(store, file.recoverable, file.components, options=options, parallelism=threads):
            log.info("retracted %s of checkpoint %d", file.object_name, completed.checkpoint_id)


def _delete_own(store: ObjectStore, file: FinalFile) -> None:
    if not file.fingerprint:
        log.warning("cannot tell whether %s is still the object of its checkpoint: left alone", file.name)
        return
    home = store.in_bucket(file.bucket)
    found = home.stat(file.name)
    if found is None or not is_own(found, file.fingerprint):
        return
    try:
        home.delete(file.name, precondition=Generation(found.generation))
    except ConflictError:
        log.info("%s was replaced meanwhile: left alone", file.name)
