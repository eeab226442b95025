"""A checkpoint without a batch that merges state.

Owns steps 1 to 6 around the merges. Does not own when runs are due, or merging them (`keyed.merge`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from dstl_dagster.checkpoint.batch import Batch
from dstl_dagster.checkpoint.coordinator import CheckpointCoordinator
from dstl_dagster.checkpoint.job import Checkpoint
from dstl_dagster.keyed import due_operators, merge_of_all

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def materialize(
    coordinator: CheckpointCoordinator,
    operators: Collection[str] | None = None,
    force: bool = False,
    *,
    progress: Progress | None = None,
) -> Checkpoint | None:
    """Create a checkpoint in which every state with runs that are due is one run; `None` if there is none.

    Runs the public steps on top of the last checkpoint and keeps its positions. Any process may call it, and
    be killed doing so; it is refused while another owner's attempt is open.

    Args:
        operators: only these; `None`: all.
        force: merge every state that is not one run.
        progress: called for each operator as `merge_of_all` does.

    Raises: ConflictError (kind `attempt_open`, `moved`), InvalidInputError (kind `no_state`),
    NotFoundError, FormatError, UnavailableError; the attempt is aborted then.
    """
    latest = coordinator.latest()
    if latest is None:
        return None
    store, manifest = coordinator.store, latest.manifest
    due = due_operators(manifest, coordinator.options, operators, force=force)
    if not due:
        return None
    batch = Batch.on(coordinator, latest)
    with batch.aborted_on_error():
        for each in due:
            report = merge_of_all(
                store,
                batch.attempt,
                manifest,
                each,
                coordinator.job_options,
                progress=progress,
                shared=batch.shared_files,
            )
            batch.add(report)
    checkpoint = batch.complete()
    log.info("checkpoint %d merged the state of %s", checkpoint.checkpoint_id, ", ".join(due))
    return checkpoint
