"""The two ways to commit one file by hand. Owns what each makes of an outcome; `commit` does the work.

Source: Flink's `GSRecoverableWriterCommitter`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError
from dstl_dagster.recoverable.commit import CommitOutcome, CommitState, commit_file
from dstl_dagster.recoverable.lookup import look_up_component
from dstl_dagster.recoverable.recoverables import Component, GSCommitRecoverable
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore

__all__ = ["GSRecoverableWriterCommitter"]

_logger = logging.getLogger(__name__)


class GSRecoverableWriterCommitter:
    """Publishes one recoverable. Safe to use from any thread, any process, and beside another of itself.

    Made by `GSRecoverableFsDataOutputStream.close_for_commit` and `GSRecoverableWriter.recover_for_commit`.
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
        """What is committed; serialize it to commit elsewhere."""
        return self._recoverable

    @property
    def options(self) -> GSFileSystemOptions:
        """The options by which temporary objects are found."""
        return self._options

    @property
    def components(self) -> tuple[Component, ...]:
        """The components as they were made, in order.

        Where only their ids are known they are looked up (a request each, once). Raises: NotFoundError if
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
        """Publish for the first time. An object that has the final name already is an error, ours or not.

        Raises: ConflictError (the name is taken; kind `already_exists`), NotFoundError (components are
        gone), UnavailableError (unknown: go on with `commit_after_recovery`), FormatError.
        """
        final = self._recoverable.final_blob_identifier
        store = self._store.in_bucket(final.bucket_name)
        there = store.stat(final.object_name)
        if there is not None:
            raise ConflictError(
                f"{store.uri_of(final.object_name)!r} already exists during attempted commit (generation "
                f"{there.generation}); if this is a repeat of a commit, use commit_after_recovery",
                ErrorKind.ALREADY_EXISTS,
            )
        outcome = self._run()
        if outcome.state is CommitState.TAKEN_AWAY:
            raise NotFoundError(
                f"components of {store.uri_of(final.object_name)!r} are gone, and it was not there before; "
                "they were committed elsewhere and the object taken away, or deleted by a rule of the bucket",
                ErrorKind.SOURCES_MISSING,
            )
        return outcome

    def commit_after_recovery(self) -> CommitOutcome:
        """Publish, or go on with a publishing that was cut off, or find it done. May be repeated.

        Where components and final object are gone the file was published and taken away: nothing is made
        again, and the outcome says so.

        Raises: ConflictError (the name is a foreign object's; nothing was touched), UnavailableError
        (call again), FormatError.
        """
        outcome = self._run()
        if outcome.state is CommitState.TAKEN_AWAY:
            _logger.warning(
                "nothing to commit: components and final object are gone",
                extra={"final_object": str(self._recoverable.final_blob_identifier)},
            )
        return outcome

    def _run(self) -> CommitOutcome:
        outcome = commit_file(self._store, self._recoverable, self._components, options=self._options)
        if outcome.state is CommitState.BLOCKED:
            raise ConflictError(str(outcome.reason), ErrorKind.FOREIGN_OBJECT)
        return outcome
