"""Values and bytes: positions, key groups, changes, their codec, handles, object names. Pure.

Owns the public names of the layer, each loaded on first use (the codec needs Arrow, a handle does not).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.format.changelog_file import ChangelogFileReader
    from dstl_dagster.format.changes import META_KEY_GROUP, StateChange, StateChangeSet
    from dstl_dagster.format.column_ids import ColumnIds
    from dstl_dagster.format.compression import Compression
    from dstl_dagster.format.handles import (
        ChangelogStateHandle,
        LocalStateHandle,
        SnapshotResult,
        StreamStateHandle,
    )
    from dstl_dagster.format.key_groups import KeyGroupRange
    from dstl_dagster.format.names import (
        COMPONENTS_PREFIX,
        JOBS_PREFIX,
        JobNames,
        attempt_half,
        attempt_of_component,
        validated_job,
        validated_savepoint,
    )
    from dstl_dagster.format.readable import counted, nearest, readable_bytes
    from dstl_dagster.format.sequence import SequenceNumber, SequenceNumberRange
    from dstl_dagster.format.state_ttl import StateTtl

__all__ = [
    "COMPONENTS_PREFIX",
    "JOBS_PREFIX",
    "META_KEY_GROUP",
    "ChangelogFileReader",
    "ChangelogStateHandle",
    "ColumnIds",
    "Compression",
    "JobNames",
    "KeyGroupRange",
    "LocalStateHandle",
    "SequenceNumber",
    "SequenceNumberRange",
    "SnapshotResult",
    "StateChange",
    "StateChangeSet",
    "StateTtl",
    "StreamStateHandle",
    "attempt_half",
    "attempt_of_component",
    "counted",
    "nearest",
    "readable_bytes",
    "validated_job",
    "validated_savepoint",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "changelog_file": ["ChangelogFileReader"],
        "changes": ["META_KEY_GROUP", "StateChange", "StateChangeSet"],
        "compression": ["Compression"],
        "column_ids": ["ColumnIds"],
        "handles": ["ChangelogStateHandle", "LocalStateHandle", "SnapshotResult", "StreamStateHandle"],
        "key_groups": ["KeyGroupRange"],
        "names": [
            "COMPONENTS_PREFIX",
            "JOBS_PREFIX",
            "JobNames",
            "attempt_half",
            "attempt_of_component",
            "validated_job",
            "validated_savepoint",
        ],
        "readable": ["counted", "nearest", "readable_bytes"],
        "sequence": ["SequenceNumber", "SequenceNumberRange"],
        "state_ttl": ["StateTtl"],
    },
)
