"""Step 5, the commit point: from here on the checkpoint exists, and there is no way back.

Owns what the `completed` record says of the manifest. Does not own whether it may come next
(`decisions.to_complete`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from dstl_dagster.checkpoint.job import Checkpoint, Job
from dstl_dagster.keyed import FileReport, Manifest
from dstl_dagster.recoverable import recoverable_hash
from dstl_dagster.storage import Origin, cost_note
from dstl_dagster.timeline import Attempt, BatchKey, Completed, FinalFile, TimelineView, decisions

log = logging.getLogger(__name__)


def confirm(
    job: Job, attempt: Attempt, manifest: Manifest | None, applied: Sequence[BatchKey] = ()
) -> Checkpoint:
    """See `CheckpointCoordinator.confirm`. `applied`: the batches of a state that it takes over (`adopt`)."""
    cost = job.running_cost()
    manifest = manifest or job.recorded_by(attempt.attempt) or job.manifest_with_tail(attempt)
    files = _final_files(manifest.files)
    name = job.names.manifest(attempt.checkpoint_id, attempt.attempt)
    generation = manifest.generation
    if generation is None and job.store.capabilities.is_local:
        stored = job.store.stat(name)
        generation = None if stored is None else stored.generation

    def complete(view: TimelineView) -> Completed | None:
        return decisions.to_complete(
            view,
            attempt,
            manifest=name,
            manifest_crc32c=manifest.crc32c,
            manifest_generation=generation,
            home=Origin.home_of(job.store),
            files=files,
            seconds=cost.so_far().seconds,
            applied=applied,
        )

    def note() -> Mapping[str, str]:
        return cost_note(cost.so_far())

    if job.timeline.decide(complete, from_seen=True, note=note) is None:
        # It was complete when last seen: a restore may have abandoned it since.
        job.timeline.decide(complete, note=note)
    said = cost.in_words()
    log.info("step 5 confirm: checkpoint %d of job %s is complete, %s", attempt.checkpoint_id, job.name, said)
    return job.checkpoint(job.timeline.seen(), attempt.checkpoint_id, manifest)


def _final_files(files: Iterable[FileReport]) -> tuple[FinalFile, ...]:
    """The files as the `completed` record names them, which outlives the manifest."""
    return tuple(
        FinalFile(
            file.recoverable.final_blob_identifier.bucket_name,
            file.object_name,
            recoverable_hash(file.recoverable),
        )
        for file in files
    )
