"""Arrow record batches as the bytes of a file, on any stream, and the layout of rows in files.

Owns formats, encoders, and what of a layout goes together. Does not own names or Spark.

Line formats (`jsonl`, `csv`, `text`) arrive as one text column, a line per row, written by Spark SQL, so
their bytes are Spark's own. They can be joined: two files concatenated are a file, compressed ones too.
`parquet` and `arrow` are encoded by Arrow from the rows themselves, and cannot be joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstl_dagster.errors import InvalidInputError

FileMode = Literal["error", "append"]
"""What happens if a folder of parts holds files already."""

LINE_FORMATS: Final = ("jsonl", "csv", "text")
EXTENSIONS: Final = {
    "jsonl": ".jsonl",
    "csv": ".csv",
    "text": ".txt",
    "parquet": ".parquet",
    "arrow": ".arrow",
}

_LINE_CODECS: Final = ("gzip", "zstd")
_CODECS: Final = {
    **dict.fromkeys(LINE_FORMATS, _LINE_CODECS),
    "parquet": ("snappy", "gzip", "brotli", "lz4", "zstd"),
    "arrow": ("lz4", "zstd"),
}
_NO_CODEC: Final = ("none", "uncompressed")
_SUFFIXES: Final = {"gzip": ".gz", "zstd": ".zst"}
"""As Spark names compressed files of lines, and finds out how to read them."""

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


@dataclass(frozen=True)
class FileLayout:
    """How the rows of one write become files.

    Attributes:
        file_format: one of `EXTENSIONS`.
        compression: a codec of the format; `none`: not compressed.
        one_file: the tasks write parts of one file, or of one in each folder of values.
        partition_by: the columns whose values name folders.
        most_rows: of a file; `None`: any number.
        mode: what happens if a folder of parts holds files already.
        success: the folder gets an empty `_SUCCESS`.
    """

    file_format: str
    compression: str
    one_file: bool
    partition_by: tuple[str, ...] = ()
    most_rows: int | None = None
    mode: str = "error"
    success: bool = False

    @classmethod
    def of(
        cls,
        file_format: str,
        compression: str | None,
        single_file: bool | None,
        partition_by: tuple[str, ...],
        most_rows: int | None,
        mode: str,
        success: bool,
    ) -> FileLayout:
        """Arguments as of `write_files`. Raises: InvalidInputError for what does not go together."""
        joins = checked_format(file_format) in LINE_FORMATS
        if single_file and not joins:
            raise InvalidInputError(
                f"{file_format} files cannot be joined from parts: leave out single_file, or write one of "
                f"{', '.join(LINE_FORMATS)}"
            )
        joined = joins if single_file is None else single_file
        if mode not in ("error", "append"):
            raise InvalidInputError(
                f"mode is error or append, not {mode!r}: a published file is never overwritten"
            )
        if most_rows is not None and (joined or most_rows < 1):
            raise InvalidInputError(
                f"max_records_per_file is of files that are not joined, 1 or more, not {most_rows}: set "
                "single_file to false with it"
            )
        if joined and not partition_by and (success or mode == "append"):
            what = "success=True" if success else 'mode="append"'
            raise InvalidInputError(f"{what} is of a folder of parts, and this is one file: leave it out")
        if success and mode == "append":
            raise InvalidInputError(
                "a folder that is appended to may have its _SUCCESS already: leave out success"
            )
        codec = checked_compression(file_format, compression)
        return cls(file_format, codec, joined, partition_by, most_rows, mode, success)


def checked_compression(file_format: str, compression: str | None) -> str:
    """The codec in lower case; `none`: not compressed. By default as in Spark: Parquet has `snappy`.

    Raises: InvalidInputError naming those that the format has.
    """
    given = (compression or ("snappy" if file_format == "parquet" else "none")).lower()
    if given not in (*_NO_CODEC, *_CODECS[file_format]):
        raise InvalidInputError(
            f"cannot write {file_format} with compression {compression!r}: use none, "
            f"{', '.join(_CODECS[file_format])}"
        )
    return "none" if given in _NO_CODEC else given


def extension_of(file_format: str, compression: str) -> str:
    """Of a file of this format, with its dot."""
    joined = _SUFFIXES.get(compression, "") if file_format in LINE_FORMATS else ""
    return EXTENSIONS[file_format] + joined


def check_name(name: str, file_format: str, compression: str) -> None:
    """Pass if the name of a file of lines says how it is compressed, since readers go by it.

    Raises: InvalidInputError.
    """
    says = next((codec for codec, suffix in _SUFFIXES.items() if name.endswith(suffix)), "none")
    if says != compression:
        way = f"end it with {_SUFFIXES.get(compression)}" if compression != "none" else f"set {says}"
        raise InvalidInputError(
            f"by its name, {name!r} has compression {says}, and this {file_format} file has {compression}: "
            f"{way}"
        )


@contextmanager
def compressed(stream: ByteStream, file_format: str, compression: str) -> Iterator[ByteStream]:
    """The stream to write a file to, which is not closed. Parquet and Arrow compress by themselves."""
    if file_format not in LINE_FORMATS or compression == "none":
        yield stream
        return
    with pa.CompressedOutputStream(pa.PythonFile(_Unclosed(stream), mode="w"), compression) as compressing:
        yield compressing


class _Unclosed:
    """A stream that is closed by its owner."""

    closed = False

    def __init__(self, stream: ByteStream) -> None:
        self.write = stream.write

    def flush(self) -> None:
        """Nothing is held here."""

    close = flush


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


def encoder_of(file_format: str, schema: pa.Schema, compression: str) -> Encoder:
    """An encoder of rows of `schema` as a Parquet or Arrow file. `compression`: a checked one.

    Raises: InvalidInputError for a codec that this Arrow was built without.
    """
    opened = _parquet_writer if file_format == "parquet" else _arrow_writer
    try:
        opened(pa.MockOutputStream(), schema, compression).close()
    except (pa.ArrowException, OSError) as error:
        raise InvalidInputError(f"cannot write {file_format} with {compression} here: {error}") from error
    return _TableEncoder(opened, schema, compression)


class _TableEncoder:
    """Picklable: created on the driver, used in tasks."""

    def __init__(
        self,
        opened: Callable[[Any, pa.Schema, str], AbstractContextManager[Any]],
        schema: pa.Schema,
        compression: str,
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


def _parquet_writer(stream: Any, schema: pa.Schema, compression: str) -> Any:
    import pyarrow.parquet as pq  # a fifth of what a task imports, and few write this format

    return pq.ParquetWriter(stream, schema, compression=compression)


def _arrow_writer(stream: Any, schema: pa.Schema, compression: str) -> Any:
    codec = None if compression == "none" else compression
    return pa.ipc.new_file(stream, schema, options=pa.ipc.IpcWriteOptions(compression=codec))


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
