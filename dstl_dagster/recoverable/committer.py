"""The two ways to commit one file without a checkpoint.

Owns how each maps an outcome to a result or an error, and the look-up of components that are known by id
alone. Does not own the commit itself (`commit`).

Source: Flink's `GSRecoverableWriterCommitter`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError
from dstl_dagster.recoverable.commit import CommitOutcome, CommitState, FileCommit
from dstl_dagster.recoverable.recoverables import (
    Component,
    GSBlobIdentifier,
    GSCommitRecoverable,
    temporary_blob_identifier,
)
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore

_logger = logging.getLogger(__name__)


class GSRecoverableWriterCommitter:
    """Publishes one recoverable. Safe from any thread and process, and alongside committers of the same file.

    Created by `GSRecoverableFsDataOutputStream.close_for_commit` and
    `GSRecoverableWriter.recover_for_commit`.
    """

    def __init__(
        self,
        store: ObjectStore,
        options: GSFileSystemOptions,
        recoverable: GSCommitRecoverable,
        components: Sequence[Component] | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._recoverable = recoverable
        self._components = None if components is None else tuple(components)

    @property
    def recoverable(self) -> GSCommitRecoverable:
        """The recoverable that this committer publishes; serialize it to commit in another process."""
        return self._recoverable

    @property
    def options(self) -> GSFileSystemOptions:
        """The options that locate the temporary objects."""
        return self._options

    @property
    def components(self) -> tuple[Component, ...]:
        """The components as written, in order.

        If only their ids are known, they are looked up (one request each, once). Raises: NotFoundError if
        one is gone, as all are after a commit.
        """
        if self._components is None:
            final = self._recoverable.final_blob_identifier
            self._components = tuple(
                look_up_component(self._store, final, object_id, self._options)
                for object_id in self._recoverable.component_object_ids
            )
        return self._components

    def commit(self) -> CommitOutcome:
        """Publish for the first time. An object already at the final name is an error, ours or not.

        Raises: ConflictError (the name is taken; kind `foreign_object`), NotFoundError (components are
        gone), UnavailableError (outcome unknown: call `commit_after_recovery`), FormatError.
        """
        final = self._recoverable.final_blob_identifier
        store = self._store.in_bucket(final.bucket_name)
        found = store.stat(final.object_name)
        if found is not None:
            raise ConflictError(
                f"{store.uri_of(final.object_name)!r} already exists during attempted commit (generation "
                f"{found.generation}); to repeat a commit, use commit_after_recovery",
                ErrorKind.FOREIGN_OBJECT,
            )
        outcome = self._run()
        if outcome.state is CommitState.TAKEN_AWAY:
            raise NotFoundError(
                f"components of {store.uri_of(final.object_name)!r} are gone, and it does not exist: "
                "it was published elsewhere and removed, or a lifecycle rule of the bucket deleted them",
                ErrorKind.NOT_WRITTEN,
            )
        return outcome

    def commit_after_recovery(self) -> CommitOutcome:
        """Publish, finish an interrupted commit, or find it already published. Idempotent.

        If both the components and the final object are gone, the file was published and removed since:
        nothing is recreated, and the outcome is `TAKEN_AWAY`.

        Raises: ConflictError (a foreign object has the name; nothing was touched), NotFoundError (some
        components are gone, and others are there), UnavailableError (call again), FormatError.
        """
        outcome = self._run()
        if outcome.state is CommitState.TAKEN_AWAY:
            _logger.warning(
                "nothing to commit: components and final object are gone",
                extra={"final_object": str(self._recoverable.final_blob_identifier)},
            )
        return outcome

    def _run(self) -> CommitOutcome:
        outcome = FileCommit(self._store, self._recoverable, self._components, options=self._options).commit()
        if outcome.state is CommitState.BLOCKED and outcome.foreign_generation is None:
            raise NotFoundError(
                f"some components of {self._recoverable.final_blob_identifier} are gone, and others are "
                "there: another program, or a lifecycle rule, deleted them. Write the object again",
                ErrorKind.NOT_WRITTEN,
            )
        if outcome.state is CommitState.BLOCKED:
            raise ConflictError(str(outcome.reason), ErrorKind.FOREIGN_OBJECT)
        return outcome


def look_up_component(
    store: ObjectStore, final: GSBlobIdentifier, object_id: uuid.UUID, options: GSFileSystemOptions
) -> Component:
    """The component as it is now, at the name these options give it. Raises: NotFoundError."""
    blob = temporary_blob_identifier(final, object_id, options)
    bucket = store.in_bucket(blob.bucket_name)
    stat = bucket.stat(blob.object_name)
    if stat is None:
        raise NotFoundError(
            f"component {bucket.uri_of(blob.object_name)!r} is gone: it was committed or deleted"
        )
    return Component.of(blob.bucket_name, stat)
