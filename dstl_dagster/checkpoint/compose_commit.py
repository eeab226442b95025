"""Step 6: compose every file of a completed checkpoint to its final name.

Owns publishing the files of one checkpoint concurrently, and summarizing their outcomes. Does not own how
one file is composed, resumed or recognised (`recoverable`), or the `committed` record (`steps`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.keyed import FileReport, Manifest
from dstl_dagster.recoverable import CommitOutcome, CommitState, commit_file
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import BlockedFile

__all__ = ["Publication", "commit_or_block", "publish_files"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Publication:
    """The outcome for the files of one checkpoint, by final object name."""

    published: tuple[str, ...]
    blocked: tuple[BlockedFile, ...]


def publish_files(
    store: ObjectStore,
    manifest: Manifest,
    options: GSFileSystemOptions,
    *,
    threads: int,
    progress: Callable[[int, int], None] | None = None,
) -> Publication:
    """Publish what is not published yet. Any number of processes may do this concurrently.

    `threads` bounds both the files composed concurrently and the concurrent requests for each of them.
    `progress` is called with (files done, files in total) from the calling thread.

    A file that cannot be published as things are (a foreign object has its name, the store refuses the name)
    does not stop the others, and neither does an error.

    Raises: the first error, after all files were tried; after an UnavailableError run the step again.
    """

    def publish(file: FileReport) -> CommitOutcome:
        return commit_or_block(store, file, options, threads=threads)

    outcomes: list[CommitOutcome] = []
    failure: Exception | None = None
    with contextlib.ExitStack() as stack:
        outcome_of = _started(stack, publish, manifest.files, threads)
        for file in manifest.files:
            try:
                outcomes.append(outcome_of(file))
            except Exception as error:  # noqa: BLE001 - raised below, after the other files were tried
                failure = failure or error
            if progress is not None:
                progress(len(outcomes), len(manifest.files))
    if failure is not None:
        raise failure
    return _summarized(manifest.files, outcomes)


def commit_or_block(
    store: ObjectStore, file: FileReport, options: GSFileSystemOptions, *, threads: int
) -> CommitOutcome:
    """Publish one file. A permanent refusal by the store is an outcome, not an error.

    After the commit point an error would recur with every trigger. So such a file is blocked, without a
    foreign generation, until a person resolves it. Missing permissions do not count as a permanent refusal:
    granting them lets the step succeed.

    Raises: as `commit_file`, except for those refusals.
    """
    try:
        return commit_file(store, file.recoverable, file.components, options=options, parallelism=threads)
    except InvalidInputError as refusal:
        if refusal.kind == ErrorKind.NO_PERMISSION:
            raise
        return CommitOutcome(
            CommitState.BLOCKED, reason=f"{file.object_name!r} cannot be made: {refusal.message}"
        )


def _started(
    stack: contextlib.ExitStack,
    publish: Callable[[FileReport], CommitOutcome],
    files: Sequence[FileReport],
    threads: int,
) -> Callable[[FileReport], CommitOutcome]:
    """Start all files and return how to await one. With a single thread a file is published when awaited."""
    if threads == 1:
        return publish
    pool = stack.enter_context(ThreadPoolExecutor(max_workers=threads, thread_name_prefix="dstl-compose"))
    futures = {file.object_name: pool.submit(publish, file) for file in files}
    return lambda file: futures[file.object_name].result()


def _summarized(files: Sequence[FileReport], outcomes: Sequence[CommitOutcome]) -> Publication:
    published: list[str] = []
    blocked: list[BlockedFile] = []
    for file, outcome in zip(files, outcomes, strict=True):
        if outcome.state == "blocked":
            blocked.append(BlockedFile(file.object_name, outcome.reason or "", outcome.foreign_generation))
            log.warning("file %s is blocked: %s", file.object_name, outcome.reason)
        else:
            published.append(file.object_name)
    return Publication(tuple(published), tuple(blocked))
