"""A checkpoint that holds bases and nothing else: step 1 to 6 around `keyed.bases`.

Owns that one checkpoint. Does not own when a log is due, nor writing a base (`keyed.bases`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from dstl_dagster.checkpoint.batch import Batch
from dstl_dagster.checkpoint.coordinator import CheckpointCoordinator
from dstl_dagster.checkpoint.reader import Checkpoint
from dstl_dagster.errors import ConflictError, ErrorKind, InternalError
from dstl_dagster.keyed import KeyedState, Manifest, due_operators, write_base
from dstl_dagster.storage import ObjectStore

__all__ = ["materialize"]

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def materialize(
    coordinator: CheckpointCoordinator,
    operators: Collection[str] | None = None,
    force: bool = False,
    *,
    progress: Progress | None = None,
) -> Checkpoint | None:
    """Make a checkpoint that holds bases of what is due, and nothing else; `None` where nothing is.

    Takes the public steps on top of the last checkpoint, with its positions. Any process may call it, and
    be killed in it; while another owner's attempt is open, the trigger refuses.

    Args:
        operators: only these; `None`: all.
        force: fold every log, however short.
        progress: of each operator, as `write_base` calls it.

    Raises: ConflictError (kind `attempt_open`, `parent_moved`), InvalidInputError (kind `no_operator`),
    NotFoundError, FormatError, UnavailableError; the attempt is given up then.
    """
    latest = coordinator.latest()
    if latest is None:
        return None
    store, manifest = coordinator.store, latest.manifest
    due = due_operators(store, manifest, coordinator.options, operators, force=force)
    if not due:
        return None

    def unmoved(parent: Checkpoint | None) -> None:
        if parent is None or parent.checkpoint_id != latest.checkpoint_id:
            raise ConflictError(
                f"job {coordinator.job!r} moved on from checkpoint {latest.checkpoint_id}: try again",
                kind=ErrorKind.PARENT_MOVED,
            )

    batch = Batch.open(coordinator, check=unmoved)
    with batch.aborted_on_error():
        for each in due:
            batch.add(write_base(store, batch.attempt, _state(store, manifest, each), progress=progress))
    checkpoint = batch.complete()
    log.info("checkpoint %d holds bases of %s", checkpoint.checkpoint_id, ", ".join(due))
    return checkpoint


def _state(store: ObjectStore, manifest: Manifest, operator: str) -> KeyedState:
    state = KeyedState.of(store, manifest, operator)
    if state is None:
        raise InternalError(f"operator {operator!r} has a log and no state")
    return state
