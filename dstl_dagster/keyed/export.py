"""One operator's state at one checkpoint, as Parquet files for whoever reads those.

Owns the names and the life of an export. Does not own reading the state (`keyed_state`).

    <uri>/<operator>/part-00000.parquet     the rows of the first range of key groups, and so on
    <uri>/<operator>/_SUCCESS               empty; written last, so an export that has it is whole

Each object bears the export's fingerprint: what was exported and into how many parts. Names and
fingerprint follow from the checkpoint, and an object is created only where its name is free. So an export
that was killed is finished by calling it again, also by two at once, and nothing else is ever written over.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from dstl_dagster.changelog import ChangelogReader
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.keyed_state import KeyedState, folded
from dstl_dagster.keyed.manifest import Manifest
from dstl_dagster.state import refuse_raw_text, text_as_bytes
from dstl_dagster.storage import ABSENT, ObjectStat, ObjectStore, open_store

__all__ = ["Export", "export_checkpoint", "export_state"]

_EXPORT_KEY = "dstl-export"
_ROWS_KEY = "dstl-rows"
_SUCCESS = "_SUCCESS"
_LAYOUT_VERSION = 1
_FOLDER = re.compile(r"[^/\x00\r\n]+")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Export:
    """What an export left.

    Attributes:
        uris: of the Parquet files, in the order of the key groups.
        rows: in all of them.
        size_bytes: of all of them.
    """

    uris: tuple[str, ...]
    rows: int
    size_bytes: int


def export_checkpoint(
    store: ObjectStore,
    manifest: Manifest,
    operator: str,
    uri: str,
    *,
    as_bytes: Collection[str] = (),
    progress: Progress | None = None,
) -> Export:
    """Export the state of `operator` at a checkpoint below `uri`, a folder of any store.

    Raises: NotFoundError (kind `no_state`) where the operator has none; as `export_state`.
    """
    state = KeyedState.of(store, manifest, operator)
    if state is None:
        raise NotFoundError(
            f"operator {operator!r} has no state at checkpoint {manifest.checkpoint_id} of job "
            f"{manifest.job!r}: nothing to export",
            kind=ErrorKind.NO_STATE,
        )
    with closing(open_store(uri)) as target:
        return export_state(
            state, target, export_id=str(manifest.attempt), as_bytes=as_bytes, progress=progress
        )


def export_state(
    state: KeyedState,
    target: ObjectStore,
    *,
    export_id: str,
    as_bytes: Collection[str] = (),
    progress: Progress | None = None,
) -> Export:
    """Write one Parquet file for each of `state.ranges()` to `target`, a range at a time in memory.

    What an earlier call of the same export wrote is left as it is and not written again.

    Args:
        target: names begin with the operator's; nothing else may lie there.
        export_id: what makes this checkpoint differ from another one of the same number.
        as_bytes: columns whose text is written as binary. Parquet's text is UTF-8, and a state's need not be.
        progress: called with (parts done, parts in all).

    Raises: ConflictError (kind `target_not_empty`) before anything is written, or where another export
    wrote meanwhile; InvalidInputError where the operator's name is no folder's, or `as_bytes` no column's,
    and (kind `not_utf8`) where a part has text that is not UTF-8 in another column; UnavailableError (call
    again); as the state's reading raises.
    """
    if not _FOLDER.fullmatch(state.operator) or state.operator in (".", ".."):
        raise InvalidInputError(f"operator {state.operator!r} cannot name a folder of an export")
    unknown = [name for name in as_bytes if name not in state.schema.columns.names]
    if unknown:
        raise InvalidInputError(
            f"operator {state.operator!r} has no column {unknown[0]!r} to export as bytes, "
            f"only {', '.join(state.schema.columns.names)}"
        )
    export = _Target(state, target, export_id, as_bytes)
    done = export.found()
    ranges = state.ranges()
    parts = []
    with state.reading(cached=len(ranges) > 1) as reader:
        for number, key_groups in enumerate(ranges):
            name = export.part(number)
            parts.append(done.get(name) or export.create(name, _rows(state, reader, key_groups, as_bytes)))
            if progress is not None:
                progress(number + 1, len(ranges))
    if export.success not in done:
        export.create(export.success, None)
    return Export(
        uris=tuple(target.uri_of(part.name) for part in parts),
        rows=sum(int(part.metadata[_ROWS_KEY]) for part in parts),
        size_bytes=sum(part.size for part in parts),
    )


class _Target:
    """The objects of one export."""

    def __init__(
        self, state: KeyedState, store: ObjectStore, export_id: str, as_bytes: Collection[str]
    ) -> None:
        self._store = store
        self._folder = f"{state.operator}/"
        self._what = f"checkpoint {state.checkpoint_id} of job {state.job!r}"
        parts = len(state.ranges())
        said: list[object] = [
            _LAYOUT_VERSION,
            state.job,
            state.checkpoint_id,
            export_id,
            state.operator,
            parts,
        ]
        said += [sorted(set(as_bytes))] if as_bytes else []
        self._fingerprint = hashlib.sha256(json.dumps(said).encode()).hexdigest()
        self.success = f"{self._folder}{_SUCCESS}"

    def part(self, number: int) -> str:
        return f"{self._folder}part-{number:05d}.parquet"

    def found(self) -> dict[str, ObjectStat]:
        """What this export wrote already, by name. Raises: ConflictError where anything else is there."""
        there = {}
        for listed in self._store.list(self._folder):
            stat = self._store.stat(listed.name)
            if stat is not None:
                there[stat.name] = self._own(stat)
        return there

    def create(self, name: str, rows: pa.Table | None) -> ObjectStat:
        """Create one object; `None`: the empty one that ends the export."""
        payload = b"" if rows is None else _parquet(rows)
        metadata = {_EXPORT_KEY: self._fingerprint, _ROWS_KEY: str(0 if rows is None else rows.num_rows)}
        try:
            return self._store.put(name, payload, precondition=ABSENT, metadata=metadata)
        except (ConflictError, UnavailableError):
            # Ours after all (the answer was lost, or the same export runs beside), or somebody else's.
            stat = self._store.stat(name)
            if stat is None:
                raise
            return self._own(stat)

    def _own(self, stat: ObjectStat) -> ObjectStat:
        if stat.metadata.get(_EXPORT_KEY) != self._fingerprint:
            raise ConflictError(
                f"{self._store.uri_of(stat.name)} is not of this export ({self._what}), and is not written "
                "over: take an empty folder, or move away what is there",
                kind=ErrorKind.TARGET_NOT_EMPTY,
            )
        return stat


def _rows(
    state: KeyedState, reader: ChangelogReader, key_groups: KeyGroupRange, as_bytes: Collection[str]
) -> pa.Table:
    columns = state.schema.columns
    tables = list(folded(reader, state.handles, state.schema, key_groups).tables())
    target = [f.with_type(text_as_bytes(f.type)) if f.name in as_bytes else f for f in columns]
    rows = pa.concat_tables([columns.empty_table(), *tables]).cast(pa.schema(target))
    refuse_raw_text(rows, "Parquet's text is UTF-8; export the column as bytes (`as_bytes`, `--as-bytes`)")
    return rows


def _parquet(rows: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    return memoryview(sink.getvalue())
