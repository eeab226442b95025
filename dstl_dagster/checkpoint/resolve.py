"""Finishing a person's word on blocked files: keep the foreign object, or replace it.

Owns the order of requests. Does not own whether a word may be given (`decisions.to_resolve`).

Why this is safe. The `resolved` record is there before anything is touched, names the foreign object by
its generation, and stands until a later `committed` record takes it up; so anybody may finish it, and a
foreign object that came afterwards is not the one that a person gave up.
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
    """Do what was said, and say how all files of the checkpoint stand afterwards. May be repeated."""
    published = list(committed.published)
    blocked = []
    words = {resolved.name: resolved for resolved in resolutions}
    files = {file.object_name: file for file in manifest.files}
    for waiting in committed.blocked:
        word = words.get(waiting.name)
        if word is None:
            blocked.append(waiting)
            continue
        file = files[waiting.name]
        if word.resolution is Resolution.KEEP:
            discard_file(store, file.recoverable, file.components, options=options, parallelism=threads)
            log.info("file %s is given up: the foreign object stays", waiting.name)
            continue
        again = _replace(store, file, word, options, threads)
        if again is None:
            published.append(waiting.name)
        else:
            blocked.append(again)
    return Publication(tuple(published), tuple(blocked))


def _replace(
    store: ObjectStore, file: FileReport, word: Resolved, options: GSFileSystemOptions, threads: int
) -> BlockedFile | None:
    final = file.recoverable.final_blob_identifier
    if word.foreign_generation is not None:
        try:
            store.in_bucket(final.bucket_name).delete(
                final.object_name, precondition=Generation(word.foreign_generation)
            )
        except ConflictError:
            # Another object has the name by now: ours (a rival was faster), or one nobody spoke of.
            log.info("the object in the way of %s is another one by now", file.object_name)
    outcome = commit_or_block(store, file, options, threads=threads)
    if outcome.state == "blocked":
        return BlockedFile(file.object_name, outcome.reason or "", outcome.foreign_generation)
    return None
