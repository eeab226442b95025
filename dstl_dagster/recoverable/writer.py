"""The entry point of the recoverable writer.

Owns opening and recovering. Does not own writing (`stream`) or committing (`committer`).

Source: Flink's `GSRecoverableWriter`; works on every `ObjectStore`.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Sequence

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.recoverable.committer import GSRecoverableWriterCommitter
from dstl_dagster.recoverable.recoverables import (
    Component,
    GSBlobIdentifier,
    GSCommitRecoverable,
    GSResumeRecoverable,
    new_component_id,
)
from dstl_dagster.recoverable.serializers import GSCommitRecoverableSerializer, GSResumeRecoverableSerializer
from dstl_dagster.recoverable.stream import GSRecoverableFsDataOutputStream
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore


class GSRecoverableWriter:
    """Writes objects that appear whole, exactly once, and whose writing can resume after a crash. Any thread.

    Args:
        store: holds the objects; any of its buckets.
        options: temporary bucket, chunk size, entropy.
        attempt: the owner of the components; every component's UUID carries its upper 64 bits, so that
            clean-up can recognize those of a dead attempt. By default each writer is its own attempt.
        random_bits: `random_bits(k)` returns k random bits; injected for replays.
    """

    def __init__(
        self,
        store: ObjectStore,
        options: GSFileSystemOptions | None = None,
        *,
        attempt: uuid.UUID | None = None,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._store = store
        self._options = options or GSFileSystemOptions()
        self._random_bits = random_bits
        self._attempt = attempt or uuid.UUID(int=random_bits(128), version=4)

    @property
    def attempt(self) -> uuid.UUID:
        """The attempt that owns this writer's components."""
        return self._attempt

    @property
    def options(self) -> GSFileSystemOptions:
        """The options passed to the constructor."""
        return self._options

    @property
    def requires_cleanup_of_recoverable_state(self) -> bool:
        """False: a state that is no longer used needs no clean-up before a commit."""
        return False

    @property
    def supports_resume(self) -> bool:
        """True."""
        return True

    def open(self, path: str) -> GSRecoverableFsDataOutputStream:
        """A stream to the object at a URI of the store (`gs://bucket/object`). Sends no request.

        Raises: InvalidInputError (not a URI, or one outside the store).
        """
        final = GSBlobIdentifier(*self._store.locate(path))
        return GSRecoverableFsDataOutputStream(self._store, final, self._options, self._new_id)

    def recover(
        self, resumable: GSResumeRecoverable, components: Sequence[Component] | None = None
    ) -> GSRecoverableFsDataOutputStream:
        """A stream that resumes after `resumable`, in new components. Sends no request.

        `components`: those of the state, if known; this saves looking them up later.

        Raises: InvalidInputError (not a resume state, or not its components).
        """
        if not isinstance(resumable, GSResumeRecoverable):
            raise InvalidInputError(
                f"{resumable!r} is not a GSResumeRecoverable: no stream can resume from it"
            )
        wanted = len(resumable.component_object_ids)
        if components is not None and len(components) != wanted:
            raise InvalidInputError(f"the state has {wanted} components, not {len(components)}")
        return GSRecoverableFsDataOutputStream(
            self._store, resumable.final_blob_identifier, self._options, self._new_id, resumable, components
        )

    def recover_for_commit(
        self, commit_recoverable: GSCommitRecoverable, components: Sequence[Component] | None = None
    ) -> GSRecoverableWriterCommitter:
        """The committer of a state, which may be a resume state. Sends no request.

        Raises: InvalidInputError for another type.
        """
        if not isinstance(commit_recoverable, GSCommitRecoverable):
            raise InvalidInputError(f"{commit_recoverable!r} is not a GSCommitRecoverable: nothing to commit")
        return GSRecoverableWriterCommitter(self._store, self._options, commit_recoverable, components)

    def cleanup_recoverable_state(self, resumable: GSResumeRecoverable) -> bool:
        """Does nothing, like upstream: another state may share the components. Always True.

        `sweep`, or the job's clean-up, deletes what is left of states that are never committed.
        """
        if not isinstance(resumable, GSResumeRecoverable):
            raise InvalidInputError(f"{resumable!r} is not a GSResumeRecoverable")
        return True

    @property
    def commit_recoverable_serializer(self) -> GSCommitRecoverableSerializer:
        """For `committer.recoverable`."""
        return GSCommitRecoverableSerializer.INSTANCE

    @property
    def resume_recoverable_serializer(self) -> GSResumeRecoverableSerializer:
        """For what `persist` returns."""
        return GSResumeRecoverableSerializer.INSTANCE

    def _new_id(self) -> uuid.UUID:
        return new_component_id(self._attempt, self._random_bits(62))
