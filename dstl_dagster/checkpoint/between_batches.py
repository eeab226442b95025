"""A checkpoint without a batch: it merges state, or drops or renames columns, operators or sources.

Owns steps 1 to 6 around the change. Does not own when runs are due or merging them (`keyed.merge`), or what a
change means (`state.ColumnChanges`, `keyed.NameChange`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from dstl_dagster.checkpoint.batch import Batch
from dstl_dagster.checkpoint.coordinator import CheckpointCoordinator
from dstl_dagster.checkpoint.job import Checkpoint
from dstl_dagster.concurrency import Progress
from dstl_dagster.keyed import DueMerge, NameChange, OperatorReport, StateAt, due_operators, with_merge
from dstl_dagster.state import ColumnChanges, StateSchema

log = logging.getLogger(__name__)


def changed_schema(
    coordinator: CheckpointCoordinator, checkpoint: Checkpoint, operator: str, changes: ColumnChanges
) -> StateSchema:
    """The columns of `operator` at a checkpoint after `changes`. Writes nothing.

    Raises: NotFoundError (kind `no_state`), InvalidInputError, FormatError.
    """
    state = StateAt.existing(coordinator.store, checkpoint.manifest, operator)
    return changes.applied_to(state.schema, strict=True)


def change_columns(
    coordinator: CheckpointCoordinator, parent: Checkpoint, operator: str, changes: ColumnChanges
) -> Checkpoint:
    """Create a checkpoint on `parent`, the last one, in which columns of `operator` are dropped or renamed.

    Writes a report and a manifest, and no row. Keeps the positions. Unlike a batch's own changes, a column
    that is not there is an error.

    Raises: ConflictError (kind `attempt_open`, `moved`); as `changed_schema`, before an attempt opens.
    """
    schema = changed_schema(coordinator, parent, operator, changes)
    batch = Batch.on(coordinator, parent)
    batch.add(
        OperatorReport(
            operator=operator,
            handles=(),
            **schema.reported,
            ttl=batch.ttl_to_write(operator, schema),
        )
    )
    return batch.complete()


def change_names(coordinator: CheckpointCoordinator, parent: Checkpoint, names: NameChange) -> Checkpoint:
    """Create a checkpoint on `parent`, the last one, with new names of operators and sources.

    Writes a report and a manifest, and no row. State that goes is there in older checkpoints, until they are
    cleaned up.

    Raises: NotFoundError (kind `no_state`), InvalidInputError, before an attempt opens; ConflictError (kind
    `attempt_open`, `moved`).
    """
    manifest = parent.manifest
    names.require_known(manifest.operators, manifest.sources, manifest.job)
    batch = Batch.on(coordinator, parent)
    batch.change_names(names)
    return batch.complete()


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
        progress: called for each operator as `with_merge` does.

    Raises: ConflictError (kind `attempt_open`, `moved`), InvalidInputError (kind `no_state`),
    NotFoundError, FormatError, UnavailableError; the attempt is aborted then.
    """
    latest = coordinator.latest()
    if latest is None:
        return None
    manifest = latest.manifest
    due = due_operators(manifest, coordinator.options, operators, force=force)
    if not due:
        return None
    batch = Batch.on(coordinator, latest)
    with batch.aborted_on_error():
        for each in due:
            entry = manifest.operators[each].report
            report = with_merge(
                entry.unchanged(),
                manifest,
                DueMerge.of_all(entry.max_parallelism),
                batch.shared_files,
                coordinator.job_options,
                progress=progress,
            )
            batch.add(report)
    checkpoint = batch.complete()
    log.info("checkpoint %d merged the state of %s", checkpoint.checkpoint_id, ", ".join(due))
    return checkpoint
