"""A checkpoint that drops or renames columns and holds nothing else: steps 1 to 6 around one report.

Owns that one checkpoint. Does not own what a change means (`state.ColumnChanges`), or changes that come with
a batch's rows.
"""

from __future__ import annotations

from dstl_dagster.checkpoint.batch import Batch
from dstl_dagster.checkpoint.coordinator import CheckpointCoordinator
from dstl_dagster.checkpoint.reader import Checkpoint
from dstl_dagster.errors import ErrorKind, NotFoundError
from dstl_dagster.keyed import OperatorReport, StateAt
from dstl_dagster.state import ColumnChanges, StateSchema

__all__ = ["change_columns", "changed_schema"]


def changed_schema(
    coordinator: CheckpointCoordinator, checkpoint: Checkpoint, operator: str, changes: ColumnChanges
) -> StateSchema:
    """The columns of `operator` at a checkpoint after `changes`. Writes nothing.

    Raises: NotFoundError (kind `no_state`), InvalidInputError (kind `schema_change`, `not_keyed`),
    FormatError.
    """
    state = StateAt.of(coordinator.store, checkpoint.manifest, operator)
    if state is None:
        raise NotFoundError(
            f"operator {operator!r} has no state at checkpoint {checkpoint.checkpoint_id} of job "
            f"{checkpoint.manifest.job!r}",
            kind=ErrorKind.NO_STATE,
        )
    return changes.applied_to(state.schema, strict=True)


def change_columns(
    coordinator: CheckpointCoordinator, parent: Checkpoint, operator: str, changes: ColumnChanges
) -> Checkpoint:
    """Create a checkpoint on `parent`, the last one, in which columns of `operator` are dropped or renamed.

    Writes a report and a manifest, and no row. Keeps the positions. Unlike a batch's own changes, a column
    that is not there is an error.

    Raises: ConflictError (kind `attempt_open`, `parent_moved`); as `changed_schema`, before an attempt opens.
    """
    schema = changed_schema(coordinator, parent, operator, changes)
    batch = Batch(coordinator, coordinator.trigger(expected_parent=parent.checkpoint_id), parent)
    batch.add(
        OperatorReport(
            operator=operator,
            handles=(),
            key_columns=schema.key_columns,
            max_parallelism=schema.max_parallelism,
            schema=schema.arrow_message,
            column_ids=schema.column_ids,
        )
    )
    return batch.complete()
