"""Going back to an earlier checkpoint: the plan and the act.

Owns the plan, which changes nothing, the order of a restore, and finding what it left behind. Does not own
the rule (`decisions.to_restore`), or retracting the files of what goes (`steps.unfinished`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from dstl_dagster.checkpoint.inspect.verify import require_undamaged
from dstl_dagster.checkpoint.job import Checkpoint, Job
from dstl_dagster.checkpoint.steps.unfinished import finish_resolutions, retract, when_finished
from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format import counted, names_in_words, readable_bytes
from dstl_dagster.keyed import Manifest, load_manifest
from dstl_dagster.timeline import Completed, FinalFile, Opened, Restored, Timeline, decisions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestorePlan:
    """The plan of a restore: its effects and reads, as of one look at the timeline. Nothing was changed.

    Attributes:
        checkpoint_id: the checkpoint to resume from; 0: the job begins anew.
        last: the checkpoint that the job resumes from now.
        left_behind: the completed checkpoints that go, oldest first.
        manifests: what those of `left_behind` hold that can still be read, by id.
        positions: how far each source will have been read.
        open_attempt: the attempt that ends, if one is open.
        read_objects, read_bytes: the changelog files that the restore reads, to prove that none is damaged.
    """

    checkpoint_id: int
    last: int
    left_behind: tuple[Completed, ...]
    manifests: Mapping[int, Manifest] = field(repr=False)
    positions: Mapping[str, object] = field(repr=False)
    open_attempt: Opened | None
    read_objects: int
    read_bytes: int

    @property
    def batches(self) -> tuple[str, ...]:
        """The idempotency keys (partitions) of what goes, oldest first: these batches have to run again."""
        return tuple(key.key for completed in self.left_behind for key in completed.batches)

    @property
    def files(self) -> tuple[FinalFile, ...]:
        """The files that are retracted, each only if it is still its checkpoint's own."""
        return tuple(file for completed in self.left_behind for file in completed.files)

    @property
    def state_bytes(self) -> int:
        """Bytes of changelog that go, of the checkpoints in `manifests`."""
        return sum(manifest.state_bytes for manifest in self.manifests.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of files that go, of the checkpoints in `manifests`."""
        return sum(manifest.file_bytes for manifest in self.manifests.values())

    def in_words(self) -> str:
        """One line, for the person confirming the restore."""
        if self.checkpoint_id:
            said = f"A restore to checkpoint {self.checkpoint_id} "
        else:
            said = "A restore to before the first checkpoint, with which the job begins anew, "
        if not self.left_behind:
            said += "leaves no checkpoint behind"
        else:
            said += (
                f"leaves {counted(len(self.left_behind), 'checkpoint')} behind, up to {self.last} "
                f"({readable_bytes(self.state_bytes)} of changelog), "
                f"and retracts {counted(len(self.files), 'file')} ({readable_bytes(self.file_bytes)})"
            )
        if self.batches:
            said += f"; to run again: {names_in_words(*self.batches)}"
        if self.open_attempt is not None:
            said += f"; it ends the open attempt of {names_in_words(self.open_attempt.owner)!r}"
        if not self.checkpoint_id:
            return f"{said}. Until a checkpoint completes, readers see the state as it is"
        return f"{said}. It reads {counted(self.read_objects, 'object')} ({readable_bytes(self.read_bytes)})"


def plan_restore(job: Job, checkpoint_id: int) -> RestorePlan:
    """The plan of a restore to this checkpoint. Reads only.

    Raises: ConflictError (kind `abandoned`), NotFoundError, FormatError.
    """
    view = job.timeline.tail()
    target = job.checkpoint(view, checkpoint_id) if checkpoint_id else None
    decisions.require_target(view, checkpoint_id)
    after_slot = 0 if target is None else target.entry.completed.slot
    gone = _abandoned_between(job.timeline, after_slot, view.slot + 1)
    manifests = {}
    for completed in gone:
        kept = view.checkpoints.get(completed.checkpoint_id)
        if kept is not None and kept.subsumed is None:
            try:
                manifests[completed.checkpoint_id] = load_manifest(
                    job.store, completed.manifest, completed.manifest_crc32c
                )
            except (FormatError, NotFoundError) as error:
                # It may be why the job goes back.
                log.warning("what goes with checkpoint %d is not known: %s", completed.checkpoint_id, error)
    files = [] if target is None else target.manifest.changelog_files
    return RestorePlan(
        checkpoint_id=checkpoint_id,
        last=view.last_completed_id or 0,
        left_behind=gone,
        manifests=manifests,
        positions={} if target is None else target.positions,
        open_attempt=view.open_attempt,
        read_objects=len(files),
        read_bytes=sum(each.known_bytes for each in files),
    )


def restore(
    job: Job, checkpoint_id: int, owner: str, request_id: uuid.UUID | None, expected_last: int | None
) -> Checkpoint | None:
    """See `CheckpointCoordinator.restore`."""
    if checkpoint_id:
        _require_undamaged(job, checkpoint_id)

    def restore_now() -> None:
        finish_resolutions(job)
        job.timeline.decide(
            lambda view: decisions.to_restore(view, checkpoint_id, owner, expected_last),
            request_id=request_id,
        )

    when_finished(job, restore_now)
    retract(job)
    log.info("job %s resumes from checkpoint %d", job.name, checkpoint_id)
    return job.checkpoint(job.timeline.tail(), checkpoint_id) if checkpoint_id else None


def _require_undamaged(job: Job, checkpoint_id: int) -> None:
    manifest = job.checkpoint(job.timeline.tail(), checkpoint_id).manifest
    try:
        require_undamaged(job, manifest)
    except FormatError:
        # Subsumed meanwhile: gone, not damaged.
        decisions.refuse_gone(job.checkpoint(job.timeline.tail(), checkpoint_id).entry)
        raise


def left_behind(timeline: Timeline, restored: Restored) -> tuple[Completed, ...]:
    """The completed checkpoints that this restore abandoned, oldest first. Once its own is gone it reads the
    timeline from the beginning.
    """
    entry = timeline.tail().checkpoints.get(restored.checkpoint_id)
    found = _abandoned_between(timeline, 0 if entry is None else entry.completed.slot, restored.slot)
    return tuple(each for each in found if each.checkpoint_id > restored.checkpoint_id)


def _abandoned_between(timeline: Timeline, after_slot: int, before_slot: int) -> tuple[Completed, ...]:
    """Those completed between these slots, both exclusive, that no restore in between abandoned."""
    found: dict[int, Completed] = {}
    for record in timeline.records(after_slot):
        if record.slot >= before_slot:
            break
        if isinstance(record, Completed):
            found[record.checkpoint_id] = record
        elif isinstance(record, Restored):
            found = {each: kept for each, kept in found.items() if each <= record.checkpoint_id}
    return tuple(found.values())
