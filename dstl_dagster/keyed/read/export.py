"""One operator's state at one checkpoint, exported as Parquet files.

Owns the names of an export's objects, and when it is complete. Does not own reading the state
(`keyed_state`).

    <uri>/<operator>/part-00000.parquet     the rows of the first range of key groups, and so on
    <uri>/<operator>/_SUCCESS               empty; written last, so its presence means the export is complete

The folder has to be empty, and an object is created only if its name is free: nothing is ever overwritten. An
export that was killed is begun again in another folder.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from dstl_dagster.changelog import ChangelogReader
from dstl_dagster.concurrency import Progress, passes_ahead
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.documents.manifest import Manifest
from dstl_dagster.keyed.read.keyed_state import KeyedState, StateAt, replayed
from dstl_dagster.settings import JobOptions, parse_names
from dstl_dagster.state import refuse_raw_text, text_as_bytes
from dstl_dagster.storage import ObjectStore, open_store, put_own

_SUCCESS = "_SUCCESS"
_NOT_IN_A_FOLDER = re.compile(r"[/%\x00\r\n]|\A\.\.?\Z")


@dataclass(frozen=True)
class Export:
    """The result of an export.

    Attributes:
        uris: of the Parquet files, in the order of the key groups.
        rows: total number of rows.
        size_bytes: total size.
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
    options: JobOptions | None = None,
) -> Export:
    """Export the state of `operator` at a checkpoint to below `uri`, a folder in any store.

    `options`: the job's, by which the state is read and the other store is opened.

    Raises: NotFoundError (kind `no_state`) if the operator has none; as `export_state`.
    """
    options = options or JobOptions()
    state = KeyedState(store, StateAt.existing(store, manifest, operator, options), passes_ahead())
    with closing(open_store(uri, options.files)) as target:
        return export_state(state, target, as_bytes=as_bytes, progress=progress)


def export_state(
    state: KeyedState,
    target: ObjectStore,
    *,
    as_bytes: Collection[str] = (),
    progress: Progress | None = None,
) -> Export:
    """Write one Parquet file for each of `state.ranges()` to `target`, holding one range at a time.

    Args:
        target: objects go into a folder named after the operator, which must hold nothing else. What
            cannot stand in a folder's name is percent-encoded.
        as_bytes: columns whose text is written as binary: Parquet requires UTF-8, keyed state does not.
        progress: called with (parts done, parts in total).

    Raises: ConflictError (kind `foreign_object`) before anything is written, or if another export wrote there
    meanwhile; InvalidInputError if `as_bytes` names an unknown column, or if another column has text
    that is not UTF-8; UnavailableError; as reading the state does.
    """
    as_bytes = parse_names("as_bytes", as_bytes)
    unknown = [name for name in as_bytes if name not in state.schema.columns.names]
    if unknown:
        raise InvalidInputError(
            f"operator {state.operator!r} has no column {unknown[0]!r} to export as bytes, "
            f"only {', '.join(state.schema.columns.names)}"
        )
    folder = f"{_folder_of(state.operator)}/"
    there = next(iter(target.list(folder)), None)
    if there is not None:
        raise ConflictError(
            f"{target.uri_of(there.name)} is there already, and nothing is overwritten: use an empty folder, "
            "or move away what is there",
            kind=ErrorKind.FOREIGN_OBJECT,
        )
    export_id, ranges = str(uuid.uuid4()), state.ranges()
    parts, rows = [], 0
    with state.reading(cached=len(ranges) > 1) as reader:
        for number, key_groups in enumerate(ranges):
            table = _rows(state, reader, key_groups, as_bytes)
            name = f"{folder}part-{number:05d}.parquet"
            parts.append(put_own(target, name, _parquet(table), writer_id=export_id))
            rows += table.num_rows
            if progress is not None:
                progress(number + 1, len(ranges))
    put_own(target, f"{folder}{_SUCCESS}", b"", writer_id=export_id)
    return Export(tuple(target.uri_of(part.name) for part in parts), rows, sum(part.size for part in parts))


def _folder_of(operator: str) -> str:
    """One folder for each operator: of `a/b` it is `a%2Fb`, of `a%2Fb` it is `a%252Fb`."""
    return _NOT_IN_A_FOLDER.sub(lambda found: "".join(f"%{ord(c):02X}" for c in found[0]), operator)


def _rows(
    state: KeyedState, reader: ChangelogReader, key_groups: KeyGroupRange, as_bytes: Collection[str]
) -> pa.Table:
    columns = state.schema.columns
    tables = list(replayed(reader, state.at, [key_groups]).tables())
    target = [f.with_type(text_as_bytes(f.type)) if f.name in as_bytes else f for f in columns]
    rows = pa.concat_tables([columns.empty_table(), *tables]).cast(pa.schema(target))
    refuse_raw_text(rows, "Parquet's text is UTF-8; export the column as bytes (`as_bytes`, `--as-bytes`)")
    return rows


def _parquet(rows: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    return memoryview(sink.getvalue())
