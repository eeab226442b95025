"""The door to the recoverable writer. Owns opening and recovering; the stream and the committer do the rest.

Source: Flink's `GSRecoverableWriter`; works on every `ObjectStore`.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Sequence

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.recoverable.committer import GSRecoverableWriterCommitter
from dstl_dagster.recoverable.identifiers import GSBlobIdentifier, new_component_id
from dstl_dagster.recoverable.recoverables import Component, GSCommitRecoverable, GSResumeRecoverable
from dstl_dagster.recoverable.serializers import GSCommitRecoverableSerializer, GSResumeRecoverableSerializer
from dstl_dagster.recoverable.stream import GSRecoverableFsDataOutputStream
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore

__all__ = ["GSRecoverableWriter"]


class GSRecoverableWriter:
    """Writes objects that appear whole, once, and can be gone on with after a crash. Any thread.

    Args:
        store: where objects lie; any bucket of it.
        options: temporary bucket, chunk size, entropy.
        attempt: whose components these are; its upper 64 bits stand in every component's UUID, so that
            clean-up can tell a dead attempt's. Without one, each writer is an attempt of its own.
        random_bits: `random_bits(k)` gives k random bits; injected for replays.
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
        """Whose components this writer makes."""
        return self._attempt

    @property
    def options(self) -> GSFileSystemOptions:
        """As given."""
        return self._options

    @property
    def requires_cleanup_of_recoverable_state(self) -> bool:
        """False: nothing of a state that is not used any more has to be cleaned up before a commit."""
        return False

    @property
    def supports_resume(self) -> bool:
        """True."""
        return True

    def open(self, path: str) -> GSRecoverableFsDataOutputStream:
        """A stream to the object of a URI that the store locates (`gs://bucket/object`). No request is made.

        Raises: InvalidInputError (no such URI, or it lies outside of the store).
        """
        final = GSBlobIdentifier(*self._store.locate(path))
        return GSRecoverableFsDataOutputStream(self._store, final, self._options, self._new_id)

    def recover(
        self, resumable: GSResumeRecoverable, components: Sequence[Component] | None = None
    ) -> GSRecoverableFsDataOutputStream:
        """A stream that goes on after `resumable`, in new components. No request is made.

        `components`: those of the state, where they are known; it saves looking them up later.

        Raises: InvalidInputError (no resume state, or components that are not its own).
        """
        if not isinstance(resumable, GSResumeRecoverable):
            raise InvalidInputError(f"{resumable!r} is no GSResumeRecoverable: a stream cannot go on from it")
        wanted = len(resumable.component_object_ids)
        if components is not None and len(components) != wanted:
            raise InvalidInputError(f"the state has {wanted} components, {len(components)} were given")
        return GSRecoverableFsDataOutputStream(
            self._store, resumable.final_blob_identifier, self._options, self._new_id, resumable, components
        )

    def recover_for_commit(
        self, commit_recoverable: GSCommitRecoverable, components: Sequence[Component] | None = None
    ) -> GSRecoverableWriterCommitter:
        """The committer of a state, also of a resume state. No request is made.

        Raises: InvalidInputError for another type.
        """
        if not isinstance(commit_recoverable, GSCommitRecoverable):
            raise InvalidInputError(f"{commit_recoverable!r} is no GSCommitRecoverable: nothing to commit")
        return GSRecoverableWriterCommitter(self._store, self._options, commit_recoverable, components)

    def cleanup_recoverable_state(self, resumable: GSResumeRecoverable) -> bool:
        """Does nothing, as upstream: another state may share the components. Always True.

        What is left of states that are never committed goes by `sweep`, or by the job's clean-up.
        """
        if not isinstance(resumable, GSResumeRecoverable):
            raise InvalidInputError(f"{resumable!r} is no GSResumeRecoverable")
        return True

    @property
    def commit_recoverable_serializer(self) -> GSCommitRecoverableSerializer:
        """For `committer.recoverable`."""
        return GSCommitRecoverableSerializer.INSTANCE

    @property
    def resume_recoverable_serializer(self) -> GSResumeRecoverableSerializer:
        """For what `persist` gave."""
        return GSResumeRecoverableSerializer.INSTANCE

    def _new_id(self) -> uuid.UUID:
        return new_component_id(self._attempt, self._random_bits(62))
