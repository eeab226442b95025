"""The rows of a task by the folders that they go to, which Hive and Spark name `day=2001-01-01/carrier=AA`.

Owns the names of the folders, and the order of the rows: folder by folder, and within one as they came. Does
not own the files in them (`file_tasks`).

A task writes one file at a time, so it sorts its rows. Like Spark it sorts what does not fit into memory in
parts, which wait in temporary files without a name: a task that is killed leaves none.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstl_dagster.errors import InvalidInputError

Values = tuple[str, ...]
"""Of the columns that name a folder, as text."""
_Found = defaultdict[Values, list[Iterable[pa.RecordBatch]]]

_NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"
"""The value of the folder of rows that have none there, or an empty text."""
_ESCAPED: Final = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Arrow bytes that are sorted in memory at a time; approximate."""


def folders_of(columns: Sequence[str], values: Values) -> str:
    """Relative, with slashes; escaped as by Spark, which reads it back."""
    return "/".join(
        f"{_escaped(column)}={_escaped(value)}" for column, value in zip(columns, values, strict=True)
    )


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def by_folder(batches: Iterable[pa.RecordBatch], columns: int) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The rows in the order of their folders, without the last columns, as many as name the folder.

    Those become text as Arrow casts them. Without such columns the rows come as they are.
    """
    if not columns:
        yield from (((), batch) for batch in batches if batch.num_rows)
        return
    found: _Found = defaultdict(list)
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    with ExitStack() as files:
        for batch in batches:
            waiting.append(batch)
            waiting_bytes += batch.nbytes
            if waiting_bytes >= _MOST_BYTES:
                _spill(_sorted(waiting, columns), found, files)
                waiting, waiting_bytes = [], 0
        for values, rows in _sorted(waiting, columns):
            found[values].append([rows])
        for values in sorted(found):
            for part in found.pop(values):
                for rows in part:
                    yield values, rows


def _sorted(batches: Sequence[pa.RecordBatch], columns: int) -> Iterator[tuple[Values, pa.RecordBatch]]:
    if not batches:
        return
    table = pa.Table.from_batches(batches)
    texts = {f"c{place}": _text(column) for place, column in enumerate(table.columns[-columns:])}
    names = pa.table(texts)
    order = pc.sort_indices(names, sort_keys=[(each, "ascending") for each in texts])  # which is stable
    names, rows = names.take(order), table.select([*range(table.num_columns - columns)]).take(order)
    begins = np.zeros(len(names), np.bool_)
    begins[:1] = True
    for column in names.columns:
        begins[1:] |= pc.not_equal(column.slice(1), column.slice(0, len(names) - 1)).to_numpy()
    for begin, end in pairwise([*np.flatnonzero(begins).tolist(), len(names)]):
        values = tuple(_decoded(column[begin]) for column in names.columns)
        for batch in rows.slice(begin, end - begin).to_batches():
            yield values, batch


def _decoded(value: pa.StringScalar) -> str:
    try:
        return str(value.as_py())
    except UnicodeDecodeError as error:  # text of Spark may hold any bytes
        raise InvalidInputError(
            f"partition_by has a value that is not UTF-8, {value.as_buffer().to_pybytes()!r}: name folders "
            "by its base64 or hex"
        ) from error


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = pc.fill_null(column.cast(pa.string()), "")
    return pc.if_else(pc.equal(text, ""), _NOTHING, text)


def _spill(rows: Iterator[tuple[Values, pa.RecordBatch]], found: _Found, files: ExitStack) -> None:
    """Write the rows to a temporary file of Spark's own folder, and leave in `found` how they are read."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
    file = files.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - `files` closes it
    placed: list[Values] = []
    writer = None
    for values, batch in rows:
        writer = writer or pa.ipc.new_file(file, batch.schema)
        writer.write_batch(batch)
        placed.append(values)
    if writer is not None:
        writer.close()
        reader = pa.ipc.open_file(file)
        for place, values in enumerate(placed):
            found[values].append(map(reader.get_batch, [place]))  # once it is asked for
