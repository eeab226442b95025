"""Keyed state as changes of the log: rows to changes and back, and what many changes come to.

Owns the bytes of a change, the schema that stands before changes, and their meaning. Does not own the log
(`changelog`) or where rows come from (`spark`): pyarrow and numpy are all it needs.
"""

from __future__ import annotations

from dstl_dagster.state.changes import ChangeEncoder, EncodedChanges, decode_change, encode_changes
from dstl_dagster.state.check import check_changes
from dstl_dagster.state.fold import FoldedRun, StateFold
from dstl_dagster.state.hashing import key_group_of
from dstl_dagster.state.schema import DEFAULT_MAX_PARALLELISM, StateSchema

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
    "key_group_of",
]
