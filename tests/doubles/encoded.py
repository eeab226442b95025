"""Rows of keyed state as changes, in one go."""

from __future__ import annotations

from typing import Any

from dstl_dagster.state import ChangeEncoder, EncodedChanges, StateSchema


def encode_changes(
    schema: StateSchema, rows: Any, key_groups: Any, deleted: Any = None, *, slices: int = 1
) -> EncodedChanges:
    """All of them by one `ChangeEncoder`."""
    encoder = ChangeEncoder(schema, chunk_bytes=1 << 40, slices=slices)
    assert encoder.add(rows, key_groups, deleted) is None
    changes = encoder.finish()
    assert changes is not None
    return changes
