"""Values and bytes: positions, key groups, changes, their codec, handles, object names. Pure.

Owns the public names of the layer, each loaded on first use (the codec needs Arrow, a handle does not).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dstl_dagster.format.changes import META_KEY_GROUP, StateChange, StateChangeSet
    from dstl_dagster.format.compression import Compression
    from dstl_dagster.format.handles import (
        ChangelogStateHandle,
        LocalStateHandle,
        SnapshotResult,
        StreamStateHandle,
    )
    from dstl_dagster.format.key_groups import KeyGroupRange
    from dstl_dagster.format.sequence import SequenceNumber, SequenceNumberRange

__all__ = [
    "META_KEY_GROUP",
    "ChangelogStateHandle",
    "Compression",
    "KeyGroupRange",
    "LocalStateHandle",
    "SequenceNumber",
    "SequenceNumberRange",
    "SnapshotResult",
    "StateChange",
    "StateChangeSet",
    "StreamStateHandle",
]

_HOME = {
    "META_KEY_GROUP": "changes",
    "StateChange": "changes",
    "StateChangeSet": "changes",
    "Compression": "compression",
    "ChangelogStateHandle": "handles",
    "LocalStateHandle": "handles",
    "SnapshotResult": "handles",
    "StreamStateHandle": "handles",
    "KeyGroupRange": "key_groups",
    "SequenceNumber": "sequence",
    "SequenceNumberRange": "sequence",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
