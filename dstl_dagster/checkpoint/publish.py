"""Finishing what earlier decisions started: step 6, resolutions of blocked files, retraction after a restore.

Owns when each of these is due, and the `committed` record. Does not own the work itself (`compose_commit`,
`rollback`), or the rules (`timeline.decisions`). Anybody may finish anything, any number of times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import TypeVar

from dstl_dagster.checkpoint.compose_commit import finish_resolutions, publish_files
from dstl_dagster.checkpoint.reader import Checkpoint, CheckpointReader
from dstl_dagster.checkpoint.rollback import retract_abandoned
from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError, UnavailableError
from dstl_dagster.keyed import Manifest
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import RunningCost, cost_note
from dstl_dagster.timeline import Attempt, TimelineView, decisions, refuse_renamed

__all__ = ["CheckpointPublisher"]

log = logging.getLogger(__name__)
_MAX_ROUNDS = 100
R = TypeVar("R")


class CheckpointPublisher(CheckpointReader):
    """Step 6 of a job's checkpoints. Arguments as for `CheckpointCoordinator`."""

    @property
    def file_options(self) -> GSFileSystemOptions:
        """How components of the job's files are named; their writers must use the same options."""
        return self._job_options.files

    def compose_commit(
        self,
        checkpoint_id: int | None = None,
        *,
        attempt: Attempt | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Checkpoint]:
        """Step 6: publish the files of this checkpoint, or of every one that is not published yet.

        Also carries out resolutions of blocked files. Returns the checkpoints it covered, as they are
        afterwards. A file whose name is held by a foreign object is listed in `blocked` and stops no other.
        Idempotent: a published file that a consumer has moved away is not published again.

        `attempt`: the one that made the checkpoint, if the caller has it: that spares a round trip.

        Raises: NotFoundError, UnavailableError (run it again), ConflictError (kind `abandoned`).
        """
        cost = self.running_cost()
        if checkpoint_id is None:
            return [self._publish(each, progress) for each in _unfinished(self.timeline.tail())]
        if not self.timeline.was_read:
            manifest = None if attempt is None else self._read_with_tail(attempt)
            return [self._publish(checkpoint_id, progress, manifest, cost)]
        entry = self.timeline.seen().checkpoints.get(checkpoint_id)
        if entry is not None and entry.committed is None:
            try:
                return [self._publish(checkpoint_id, progress)]
            except NotFoundError as error:
                log.info("looking again: %s", error)  # it may have been subsumed since
        self.timeline.tail()
        return [self._publish(checkpoint_id, progress, cost=cost)]

    def _publish(
        self,
        checkpoint_id: int,
        progress: Callable[[int, int], None] | None,
        manifest: Manifest | None = None,
        cost: RunningCost | None = None,
    ) -> Checkpoint:
        cost = cost or self.running_cost()
        view = self.timeline.seen()
        checkpoint = self._get(view, checkpoint_id, manifest or self._own_manifest(view, checkpoint_id))
        committed, resolutions = checkpoint.entry.committed, checkpoint.entry.unfinished_resolutions
        if committed is not None and not resolutions:
            return checkpoint
        if checkpoint.abandoned:
            raise ConflictError(
                f"checkpoint {checkpoint_id} was abandoned by a restore: its files are not published",
                kind=ErrorKind.ABANDONED,
            )
        threads, origin = self._options.commit_threads, checkpoint.entry.completed.origin
        if committed is None:
            publication = publish_files(
                origin.located(self._store),
                checkpoint.manifest,
                self.file_options,
                copied=cache(partial(origin.is_copied, self._store)),
                threads=threads,
                clock=self._clock,
                progress=progress,
            )
        else:
            publication = finish_resolutions(
                origin.located(self._store),
                checkpoint.manifest,
                committed,
                resolutions,
                self.file_options,
                threads=threads,
                clock=self._clock,
            )
        self.timeline.decide(
            lambda view: decisions.to_commit(
                view,
                checkpoint_id,
                published=publication.published,
                blocked=publication.blocked,
                seconds=cost.so_far().seconds,
                resolved_slot=max((each.slot for each in resolutions), default=0),
            ),
            from_seen=True,
            note=lambda: cost_note(cost.so_far()),
        )
        log.info("step 6 compose-commit: checkpoint %d of job %s", checkpoint_id, self.job)
        log.info("step 6 compose-commit: %s", cost.in_words())
        return self._get(self.timeline.seen(), checkpoint_id, checkpoint.manifest)

    def _finish(self) -> int:
        """Finish what earlier decisions started, as last seen; returns the slot of the newest restore now
        retracted.
        """
        view = self.timeline.seen()
        if view.last_completed is not None:
            refuse_renamed(self._store, self.job, view.last_completed.completed.manifest)
        for each in _unfinished(view):
            self._publish(each, None)
        return self._retract()

    def _finish_resolutions(self) -> None:
        for resolved in self.timeline.tail().unfinished_resolutions:
            self._publish(resolved.checkpoint_id, None)

    def _retract(self) -> int:
        return retract_abandoned(
            self._store,
            self.timeline,
            self.timeline.seen(),
            self.file_options,
            threads=self._options.commit_threads,
        )

    def _when_finished(self, decide: Callable[[], R], *, from_seen: bool = False) -> R:
        """Call `decide`, again as long as a rival's decision in between left something to finish first.

        With `from_seen` it begins with what this object saw last, and what it raises then counts only once
        the tail was read: `decide` is called again.
        """
        from_seen = from_seen and self.timeline.was_read
        for _ in range(_MAX_ROUNDS):
            try:
                return decide()
            except UnavailableError:
                raise
            except Exception as error:
                unfinished = isinstance(error, ConflictError) and error.kind in decisions.UNFINISHED
                if not (unfinished or from_seen):
                    raise
                log.info("trying again: %s", error)
            from_seen = False
            self.timeline.tail()
        raise UnavailableError(
            f"job {self.job!r}: another writer's decision got in between {_MAX_ROUNDS} times; find out who "
            "writes so often (`dstl checkpoints timeline`), then try again",
            kind=ErrorKind.CONTENTION,
        )


def _unfinished(view: TimelineView) -> list[int]:
    """The checkpoints that step 6 has something to do for, ascending."""
    resolved = {each.checkpoint_id for each in view.unfinished_resolutions}
    return sorted(resolved | {entry.checkpoint_id for entry in view.uncommitted})
