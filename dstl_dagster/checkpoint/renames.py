"""A checkpoint without a batch that drops or renames columns, operators or sources.

Owns steps 1 to 6 around the change. Does not own what a change means (`state.ColumnChanges`,
`keyed.NameChange`).
"""

from __future__ import annotations

from dstl_dagster.checkpoint.batch import Batch
from dstl_dagster.checkpoint.coordinator import CheckpointCoordinator
from dstl_dagster.checkpoint.job import Checkpoint
from dstl_dagster.keyed import NameChange, OperatorReport, StateAt
from dstl_dagster.state import ColumnChanges, StateSchema


def changed_schema(
    coordinator: CheckpointCoordinator, checkpoint: Checkpoint, operator: str, changes: ColumnChanges
) -> StateSchema:
    """The columns of `operator` at a checkpoint after `changes`. Writes nothing.

    Raises: NotFoundError (kind `no_state`), InvalidInputError,
    FormatError.
    """
    state = StateAt.existing(coordinator.store, checkpoint.manifest, operator)
    return changes.applied_to(state.schema)


def change_columns(
    coordinator: CheckpointCoordinator, parent: Checkpoint, operator: str, changes: ColumnChanges
) -> Checkpoint:
    """Create a checkpoint on `parent`, the last one, in which columns of `operator` are dropped or renamed.

    Writes a report and a manifest, and no row. Keeps the positions.

    Raises: ConflictError (kind `attempt_open`, `moved`); as `changed_schema`, before an attempt opens.
    """
    schema = changed_schema(coordinator, parent, operator, changes)
    batch = Batch.on(coordinator, parent)
    batch.add(
        OperatorReport(
            operator=operator,
            handles=(),
            key_columns=schema.key_columns,
            max_parallelism=schema.max_parallelism,
            schema=schema.arrow_message,
            column_ids=schema.column_ids,
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
