"""The file of an upload result: used by a checkpoint, handed over to one, or released, late results too.

A released file is deleted once no writer needs it: it may hold other writers' change sets. Owns which of both
registries hears of which copy. Does not own the count (`registry`), or the result of an attempt that lost
against another one (`upload.racing`).
"""

from __future__ import annotations

from dstl_dagster.changelog.writer.results import Arrival
from dstl_dagster.registry import LocalChangelogRegistry, TaskChangelogRegistry
from dstl_dagster.upload import UploadResult


class OwnedFiles:
    """Both registries, by upload result. Any thread."""

    def __init__(self, registry: TaskChangelogRegistry, local_registry: LocalChangelogRegistry) -> None:
        self._registry = registry
        self._local_registry = local_registry

    def register_local(self, result: UploadResult, checkpoint_id: int) -> None:
        """This checkpoint uses the local copy, if there is one."""
        if result.local_handle is not None:
            self._local_registry.register(result.local_handle, checkpoint_id)

    def discard_local_up_to(self, checkpoint_id: int) -> None:
        """Local copies that only earlier checkpoints used go."""
        self._local_registry.discard_up_to_checkpoint(checkpoint_id)

    def hand_over(self, result: UploadResult) -> None:
        """A checkpoint owns the file now: it is never deleted from here."""
        self._registry.stop_tracking(result.stream_state_handle)
        if result.local_handle is not None:
            self._registry.stop_tracking(result.local_handle)

    def release(self, result: UploadResult) -> None:
        """This writer no longer needs the file; it is deleted once no writer does."""
        self._registry.release(result.stream_state_handle)
        if result.local_handle is not None:
            self._registry.release(result.local_handle)

    def release_late(self, arrival: Arrival) -> None:
        """Of a writer that is closed: no handle refers to these sets."""
        results = arrival[1]
        if isinstance(results, list):
            for result in results:
                self.release(result)
