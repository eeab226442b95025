"""Keyed state as changes in a log: rows to changes and back, and the state that many changes fold into.

Owns the bytes of a change, the schema that precedes changes, and their meaning. Does not own the log
(`changelog`) or where rows come from (`spark`). Needs only pyarrow and numpy.
"""

from __future__ import annotations

from dstl_dagster.state.changes import ChangeEncoder, EncodedChanges, decode_change, encode_changes
from dstl_dagster.state.check import check_changes
from dstl_dagster.state.collected import CollectedChanges
from dstl_dagster.state.column_changes import ColumnChanges
from dstl_dagster.state.equality import same_rows
from dstl_dagster.state.fold import FoldedRun, StateFold
from dstl_dagster.state.hashing import group_of_hashes, key_group_of, key_hashes
from dstl_dagster.state.names import refuse_alike, spelled
from dstl_dagster.state.partitioning import ranges_of_tasks
from dstl_dagster.state.schema import DEFAULT_MAX_PARALLELISM, StateSchema
from dstl_dagster.state.text import RawText, python_rows, refuse_raw_text, text_as_bytes
from dstl_dagster.state.ttl import (
    PROCESSING_TIME_TYPE,
    NewestTime,
    expired_rows,
    filled_column,
    time_column,
    ttl_to_write,
)
from dstl_dagster.state.types import wider_type

__all__ = [
    "DEFAULT_MAX_PARALLELISM",
    "PROCESSING_TIME_TYPE",
    "ChangeEncoder",
    "CollectedChanges",
    "ColumnChanges",
    "EncodedChanges",
    "FoldedRun",
    "NewestTime",
    "RawText",
    "StateFold",
    "StateSchema",
    "check_changes",
    "decode_change",
    "encode_changes",
    "expired_rows",
    "filled_column",
    "group_of_hashes",
    "key_group_of",
    "key_hashes",
    "python_rows",
    "ranges_of_tasks",
    "refuse_alike",
    "refuse_raw_text",
    "same_rows",
    "spelled",
    "text_as_bytes",
    "time_column",
    "ttl_to_write",
    "wider_type",
]
