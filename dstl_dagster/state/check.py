"""Whether the changes of a log are keyed state that can be read back. Owns that scan, one batch at a time."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dstl_dagster.errors import FormatError
from dstl_dagster.format import META_KEY_GROUP
from dstl_dagster.state.changes import decode_change
from dstl_dagster.state.schema import StateSchema

__all__ = ["check_changes"]


def check_changes(log: Iterable[pa.RecordBatch], schema: StateSchema) -> int:
    """Decode every change of one handle, as `StateFold` would, and discard the rows.

    Args:
        log: record batches of (key_group: int32, change: binary or binary_view).
        schema: of the state; it must hold the rows of every schema in the log.

    Returns: the number of rows. Raises: FormatError.
    """
    described: StateSchema | None = None
    rows = 0
    for batch in log:
        changes = batch.column(1)
        for index, key_group in enumerate(batch.column(0).to_pylist()):
            change = changes[index].as_buffer()
            if key_group == META_KEY_GROUP:
                described = StateSchema.from_bytes(change.to_pybytes())
                if schema.covering(described) != schema:
                    raise FormatError(
                        f"the log holds columns {described.columns.names} that its checkpoint does not list"
                    )
            elif described is None:
                raise FormatError("the changes of keyed state begin without their schema")
            else:
                rows += decode_change(described, change).num_rows
    return rows
