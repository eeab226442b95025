"""Carrying out a person's resolution of blocked files: keep the foreign object, or replace it.

Owns the order of requests. Does not own whether a file may be resolved (`decisions.to_resolve`).

Why this is safe. The `resolved` record is written before anything is touched, pins the foreign object's
generation, and stays in force until a later `committed` record includes it. So anyone may carry it out, and a
foreign object that arrived later is not the one that the person agreed to delete.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dstl_dagster.checkpoint.compose_commit import Publication, commit_or_block
from dstl_dagster.errors import ConflictError
from dstl_dagster.keyed import FileReport, Manifest
from dstl_dagster.recoverable import discard_file
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import Generation, ObjectStore
from dstl_dagster.timeline import BlockedFile, Committed, Resolution, Resolved

__all__ = ["finish_resolutions"]

log = logging.getLogger(__name__)


def finish_resolutions(
    store: ObjectStore,
    manifest: Manifest,
    committed: Committed,
    resolutions: Sequence[Resolved],
    options: GSFileSystemOptions,
    *,
    threads: int,
) -> Publication:
    """Carry out the resolutions, and return the outcome for all files of the checkpoint. Idempotent."""
    published = list(committed.published)
    blocked = []
    by_name = {resolved.name: resolved for resolved in resolutions}
    files = {file.object_name: file for file in manifest.files}
    for waiting in committed.blocked:
        resolved = by_name.get(waiting.name)
        if resolved is None:
            blocked.append(waiting)
            continue
        file = files[waiting.name]
        if resolved.resolution is Resolution.KEEP:
            discard_file(store, file.recoverable, file.components, options=options, parallelism=threads)
            log.info("file %s is discarded: the foreign object stays", waiting.name)
            continue
        still_blocked = _replace(store, file, resolved, options, threads)
        if still_blocked is None:
            published.append(waiting.name)
        else:
            blocked.append(still_blocked)
    return Publication(tuple(published), tuple(blocked))


def _replace(
    store: ObjectStore, file: FileReport, resolved: Resolved, options: GSFileSystemOptions, threads: int
) -> BlockedFile | None:
    final = file.recoverable.final_blob_identifier
    if resolved.foreign_generation is not None:
        try:
            store.in_bucket(final.bucket_name).delete(
                final.object_name, precondition=Generation(resolved.foreign_generation)
            )
        except ConflictError:
            # The name holds another generation by now: our file (published by a rival), or a foreign object
            # that the resolution does not cover.
            log.info("the object at %s is no longer the one that was resolved", file.object_name)
    outcome = commit_or_block(store, file, options, threads=threads)
    if outcome.state == "blocked":
        return BlockedFile(file.object_name, outcome.reason or "", outcome.foreign_generation)
    return None
