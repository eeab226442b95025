"""Arrow record batches as the bytes of a file, on any stream. Owns formats and encoders, not names or Spark.

Line formats (`jsonl`, `csv`, `text`) arrive as one text column, a line per row, written by Spark SQL, so
their bytes are Spark's own. They can be joined: two files concatenated are a file. `parquet` and `arrow`
are encoded by Arrow from the rows themselves, and cannot be joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstl_dagster.errors import InvalidInputError

__all__ = ["EXTENSIONS", "LINE_FORMATS", "Encoder", "checked_format", "encode_lines", "encoder_of"]

LINE_FORMATS: Final = ("jsonl", "csv", "text")
EXTENSIONS: Final = {
    "jsonl": ".jsonl",
    "csv": ".csv",
    "text": ".txt",
    "parquet": ".parquet",
    "arrow": ".arrow",
}

_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""Arrow bytes buffered for one Parquet row group, or one record batch of an Arrow file; approximate."""


class ByteStream(Protocol):
    """The part of a binary file object that an encoder needs."""

    def write(self, payload: Any, /) -> Any: ...


Encoder = Callable[[ByteStream, Iterator[pa.RecordBatch]], int]
"""Writes record batches to a stream and returns the number of rows."""


def checked_format(file_format: str) -> str:
    """The format, if it is one of `EXTENSIONS`. Raises: InvalidInputError."""
    if file_format not in EXTENSIONS:
        raise InvalidInputError(f"format {file_format!r} is not one of {', '.join(EXTENSIONS)}")
    return file_format


def encode_lines(stream: ByteStream, batches: Iterator[pa.RecordBatch]) -> int:
    """Write the first column, a line per value; null is an empty line."""
    rows = 0
    nothing, line_feed = pa.scalar("", pa.large_string()), pa.scalar("\n", pa.large_string())
    for batch in batches:
        if not batch.num_rows:
            continue
        texts = pc.fill_null(batch.column(0).cast(pa.large_string()), nothing)
        lines = pc.binary_join_element_wise(texts, nothing, line_feed)
        _, offsets, characters = lines.buffers()
        ends = np.frombuffer(offsets, np.int64)
        # Values of a column are contiguous: the bytes between its first and last offset are the file's
        # next bytes, and no row is looked at.
        stream.write(memoryview(characters)[ends[lines.offset] : ends[lines.offset + len(lines)]])
        rows += batch.num_rows
    return rows


def encoder_of(file_format: str, schema: pa.Schema, compression: str | None) -> Encoder:
    """An encoder of rows of `schema` as a Parquet or Arrow file.

    Raises: InvalidInputError for a compression that the format does not have.
    """
    opened = _parquet_writer if file_format == "parquet" else _arrow_writer
    try:
        opened(pa.MockOutputStream(), schema, compression).close()
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise InvalidInputError(
            f"cannot write {file_format} with compression {compression!r}: {error}"
        ) from error
    return _TableEncoder(opened, schema, compression)


class _TableEncoder:
    """Picklable: created on the driver, used in tasks."""

    def __init__(
        self,
        opened: Callable[[Any, pa.Schema, str | None], AbstractContextManager[Any]],
        schema: pa.Schema,
        compression: str | None,
    ) -> None:
        self._opened = opened
        self._schema = schema
        self._compression = compression

    def __call__(self, stream: ByteStream, batches: Iterator[pa.RecordBatch]) -> int:
        rows = 0
        with self._opened(stream, self._schema, self._compression) as writer:
            for table in _grouped(batches, self._schema):
                writer.write_table(table)
                rows += table.num_rows
        return rows


def _parquet_writer(stream: Any, schema: pa.Schema, compression: str | None) -> Any:
    import pyarrow.parquet as pq  # a fifth of what a task imports, and few write this format

    return pq.ParquetWriter(stream, schema, compression=compression or "snappy")


def _arrow_writer(stream: Any, schema: pa.Schema, compression: str | None) -> Any:
    return pa.ipc.new_file(stream, schema, options=pa.ipc.IpcWriteOptions(compression=compression))


def _grouped(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Join Spark's small record batches into tables with the file's names and types."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch.rename_columns(schema.names).cast(schema))
        waiting_bytes += batch.nbytes
        if waiting_bytes >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()
