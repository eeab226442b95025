"""Upstream's way of committing, flaws included: the broken variant that our guarantees' tests must catch.

Owns a faithful copy of the *behaviour* of Flink's committer, to compare ours with in tests and benchmarks.
Never for use: it overwrites in a race, mistakes a foreign object for its own, deletes by prefix, and leaks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from dstl_dagster.errors import ConflictError
from dstl_dagster.recoverable.recoverables import (
    GSBlobIdentifier,
    GSCommitRecoverable,
    temporary_bucket_name,
    temporary_object_name,
    temporary_object_partial_name,
)
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ABSENT, ANY, Generation, ObjectStore, Precondition, Source

__all__ = ["UpstreamCommitter"]


class UpstreamCommitter:
    """Check, then compose; clean up by prefix; trust any object of the final name."""

    def __init__(
        self,
        store: ObjectStore,
        options: GSFileSystemOptions,
        recoverable: GSCommitRecoverable,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        max_sources: int = 32,
    ) -> None:
        final = recoverable.final_blob_identifier
        self._options = options
        self._recoverable = recoverable
        self._new_id = new_id
        self._max_sources = max_sources
        self._final_store = store.in_bucket(final.bucket_name)
        self._temporary_store = store.in_bucket(temporary_bucket_name(final, options))

    def commit(self) -> None:
        """An existing final object is an error."""
        if self._final_store.stat(self._recoverable.final_blob_identifier.object_name) is not None:
            raise ConflictError("Blob already exists during attempted commit")
        self._write_final()
        self._clean_up()

    def commit_after_recovery(self) -> None:
        """An existing final object counts as the result."""
        if self._final_store.stat(self._recoverable.final_blob_identifier.object_name) is None:
            self._write_final()
        self._clean_up()

    def _write_final(self) -> None:
        final = self._recoverable.final_blob_identifier
        blobs = self._recoverable.component_blob_ids(self._options)
        if not blobs:
            self._final_store.put(final.object_name, b"", precondition=ANY)
        elif self._temporary_store.bucket_name == final.bucket_name:
            self._compose([blob.object_name for blob in blobs], final.object_name)
        else:
            whole = temporary_object_name(final, self._new_id())
            self._compose([blob.object_name for blob in blobs], whole)
            self._temporary_store.copy(
                Source(whole), final.object_name, to=self._final_store, precondition=ANY
            )

    def _compose(self, names: list[str], target: str) -> None:
        first, rest = names[: self._max_sources], names[self._max_sources :]
        if not rest:
            self._compose_once(first, target)
            return
        final: GSBlobIdentifier = self._recoverable.final_blob_identifier
        cumulated = temporary_object_name(final, self._new_id())
        self._compose_once(first, cumulated)
        self._compose([cumulated, *rest], target)

    def _compose_once(self, names: list[str], target: str) -> None:
        # The precondition is read here, after the decision: an object that came meanwhile is overwritten.
        found = self._temporary_store.stat(target)
        precondition: Precondition = ABSENT if found is None else Generation(found.generation)
        self._temporary_store.compose([Source(name) for name in names], target, precondition=precondition)

    def _clean_up(self) -> None:
        prefix = temporary_object_partial_name(self._recoverable.final_blob_identifier)
        for stat in list(self._temporary_store.list(prefix)):
            self._temporary_store.delete(stat.name, precondition=ANY)
