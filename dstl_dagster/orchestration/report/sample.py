"""A few rows that a checkpoint changed, old and new, for the page of their operator.

Owns which rows, and how they read. Does not own the comparison (`keyed`), or how many are asked for (`keys`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint
from dstl_dagster.errors import DstlError
from dstl_dagster.format import breakable
from dstl_dagster.keyed import StateDiff, diff_checkpoints, load_manifest
from dstl_dagster.orchestration.report.links import NEW_LINE
from dstl_dagster.state import python_rows
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Completed

Row = Mapping[str, Any] | None
_CHARACTERS = 22
"""Of one value."""


def sample_metadata(
    store: ObjectStore, checkpoint: Checkpoint, parent: Completed | None, operator: str, count: int
) -> dict[str, dg.MetadataValue]:
    """At most `count` rows, in the order of their key groups. A state that cannot be read says so.

    `parent`: the record of the checkpoint before; `None` for the first.
    """
    keys = checkpoint.manifest.operators[operator].report.key_columns
    newer = checkpoint.manifest
    try:
        older = (
            replace(newer, operators={})
            if parent is None
            else load_manifest(store, parent.manifest, parent.manifest_crc32c)
        )
        found = diff_checkpoints(store, older, newer, operator)
        changed = itertools.chain.from_iterable(_changed(each, count) for each in found)
        lines = [_line(keys, old, new) for old, new in itertools.islice(changed, count)]
    except DstlError as error:
        return {"sample": dg.MetadataValue.text(f"cannot be shown: {error}")}
    return {"sample": dg.MetadataValue.md(NEW_LINE.join(lines))} if lines else {}


def _changed(found: StateDiff, count: int) -> Iterator[tuple[Row, Row]]:
    """Changed rows first: of those there is an old and a new one."""
    before, after, added, removed = (
        python_rows(each.slice(0, count)) for each in (found.before, found.after, found.added, found.removed)
    )
    yield from zip(before, after, strict=True)
    yield from ((None, row) for row in added)
    yield from ((row, None) for row in removed)


def _line(keys: Sequence[str], old: Row, new: Row) -> str:
    """Of a changed row the values that differ alone: the page gives it 25 characters before a break."""
    row = new or old or {}
    which = ", ".join(f"{breakable(name)} {_code(row[name])}" for name in keys)
    values = [name for name in row if name not in keys]
    if old is not None and new is not None:
        differ = [name for name in values if str(old[name]) != str(new[name])]  # by text a NaN equals another
        changes = ", ".join(f"{breakable(name)} {_code(old[name])} → {_code(new[name])}" for name in differ)
        return f"{which}: {changes}"
    said = ", ".join(f"{breakable(name)} {_code(row[name])}" for name in values)
    return f"{which} is {'new' if old is None else 'gone'}: {said}"


def _code(value: Any) -> str:
    text = " ".join(str(value).replace("`", "'").split())
    return f"`{text if len(text) <= _CHARACTERS else f'{text[:_CHARACTERS]}…'}`"
