"""Keyed state as changes in a log: rows to changes and back, and the state that many changes fold into.

Owns the bytes of a change, the schema that precedes changes, and their meaning. Does not own the log
(`changelog`) or where rows come from (`spark`). Needs only pyarrow and numpy.
"""

from __future__ import annotations

from dstl_dagster.state.changes import ChangeEncoder, EncodedChanges, decode_change, encode_changes
from dstl_dagster.state.check import check_changes
from dstl_dagster.state.equality import same_rows
from dstl_dagster.state.fold import FoldedRun, StateFold
from dstl_dagster.state.hashing import group_of_hashes, key_group_of, key_hashes
from dstl_dagster.state.partitioning import ranges_of_tasks
from dstl_dagster.state.schema import DEFAULT_MAX_PARALLELISM, StateSchema
from dstl_dagster.state.types import wider_type

__all__ = [
    "DEFAULT_MAX_PARALLELISM",
    "ChangeEncoder",
    "EncodedChanges",
    "FoldedRun",
    "StateFold",
    "StateSchema",
    "check_changes",
    "decode_change",
    "encode_changes",
    "group_of_hashes",
    "key_group_of",
    "key_hashes",
    "ranges_of_tasks",
    "same_rows",
    "wider_type",
]
