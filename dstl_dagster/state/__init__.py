"""Keyed state as changes in a log: rows to changes and back, and the state that many changes fold into.

Owns the bytes of a change, the schema that precedes changes, and their meaning. Does not own the log
(`changelog`) or where rows come from (`spark`). Needs only pyarrow and numpy; its rules need DuckDB.

What takes rows of other libraries is imported on first use: no task of Spark's needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face
from dstl_dagster.state.changes import (
    ChangeEncoder,
    EncodedChanges,
    check_changes,
    decode_change,
    encode_changes,
    encoded_pieces,
)
from dstl_dagster.state.column_changes import ColumnChanges
from dstl_dagster.state.equality import same_rows
from dstl_dagster.state.fold import FoldedRun, StateFold
from dstl_dagster.state.hashing import group_of_hashes, key_group_of, key_hashes
from dstl_dagster.state.keys import refuse_repeated_keys
from dstl_dagster.state.partitioning import ranges_of_tasks
from dstl_dagster.state.schema import (
    DEFAULT_MAX_PARALLELISM,
    StateSchema,
    as_spelled,
    refuse_alike,
    schema_to_write,
    spelled,
    update_by_name,
)
from dstl_dagster.state.slices import Axis, ExactValues, Slice, TimeSpans
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

if TYPE_CHECKING:
    from dstl_dagster.state.fitting import fitted_column, fitted_rows, stored_rows
    from dstl_dagster.state.frames import as_table
    from dstl_dagster.state.rules import (
        Rule,
        declared_columns,
        evaluated_rules,
        is_deterministic,
        require_rules,
    )

__all__ = [
    "DEFAULT_MAX_PARALLELISM",
    "PROCESSING_TIME_TYPE",
    "Axis",
    "ChangeEncoder",
    "ColumnChanges",
    "EncodedChanges",
    "ExactValues",
    "FoldedRun",
    "NewestTime",
    "RawText",
    "Rule",
    "Slice",
    "StateFold",
    "StateSchema",
    "TimeSpans",
    "as_spelled",
    "as_table",
    "check_changes",
    "declared_columns",
    "decode_change",
    "encode_changes",
    "encoded_pieces",
    "evaluated_rules",
    "expired_rows",
    "filled_column",
    "fitted_column",
    "fitted_rows",
    "group_of_hashes",
    "is_deterministic",
    "key_group_of",
    "key_hashes",
    "python_rows",
    "ranges_of_tasks",
    "refuse_alike",
    "refuse_raw_text",
    "refuse_repeated_keys",
    "require_rules",
    "same_rows",
    "schema_to_write",
    "spelled",
    "stored_rows",
    "text_as_bytes",
    "time_column",
    "ttl_to_write",
    "update_by_name",
    "wider_type",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "fitting": ["fitted_column", "fitted_rows", "stored_rows"],
        "frames": ["as_table"],
        "rules": ["Rule", "declared_columns", "evaluated_rules", "is_deterministic", "require_rules"],
    },
)
