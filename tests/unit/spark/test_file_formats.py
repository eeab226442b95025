"""Bytes of files from record batches, without Spark."""

from __future__ import annotations

import gzip
import io
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark.dataframes import file_formats
from dstl_dagster.spark.dataframes.file_formats import (
    check_name,
    checked_compression,
    checked_format,
    compressed,
    encode_lines,
    encoder_of,
    extension_of,
)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_lines_are_texts_and_line_feeds(kind: pa.DataType) -> None:
    """Slices, nulls, empty batches and wide characters come out as lines, in any text type."""
    column = pa.array(["not this", "a", None, "", "\N{SNOWMAN}", "nor this"], kind).slice(1, 4)
    batches = [pa.record_batch([part], ["line"]) for part in (column, column.slice(0, 0), column.slice(3, 1))]
    stream = io.BytesIO()
    assert encode_lines(stream, iter(batches)) == 5
    assert stream.getvalue().decode() == "a\n\n\n\N{SNOWMAN}\n\N{SNOWMAN}\n"


def test_small_batches_make_one_row_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group is as large as its limit, not as small as the record batches from Spark."""
    schema = pa.schema({"a.b": pa.int64()})
    batch = pa.record_batch([pa.array(range(1000))], ["c0"])
    for limit, groups in ((2**30, 1), (2 * batch.nbytes, 5)):
        monkeypatch.setattr(file_formats, "_ROW_GROUP_BYTES", limit)
        stream = io.BytesIO()
        assert encoder_of("parquet", schema, "snappy")(stream, iter([batch] * 10)) == 10_000
        read = pq.ParquetFile(io.BytesIO(stream.getvalue()))
        assert (read.num_row_groups, read.schema_arrow.names) == (groups, ["a.b"])


def test_encoders_travel_to_tasks() -> None:
    """An encoder that was pickled on the driver writes the same bytes in a task."""
    schema = pa.schema({"x": pa.int64()})
    encoder = encoder_of("arrow", schema, "zstd")
    there = pickle.loads(pickle.dumps(encoder))
    written = []
    for each in (encoder, there):
        stream = io.BytesIO()
        each(stream, iter([pa.record_batch([pa.array([1, 2])], ["c0"])]))
        written.append(stream.getvalue())
    assert written[0] == written[1]


def test_what_cannot_be_written_is_named() -> None:
    """Unknown formats and compressions are errors before any task runs."""
    with pytest.raises(InvalidInputError, match="'orc' is not one of jsonl, csv, text, parquet, arrow"):
        checked_format("orc")
    for file_format, codec in (("parquet", "lzo"), ("jsonl", "bzip2"), ("arrow", "snappy")):
        with pytest.raises(InvalidInputError, match=f"cannot write {file_format} with compression '{codec}'"):
            checked_compression(file_format, codec)
    assert checked_compression("parquet", None) == "snappy"
    assert {checked_compression("csv", each) for each in (None, "NONE", "uncompressed")} == {"none"}


@pytest.mark.parametrize(("codec", "suffix"), [("gzip", ".gz"), ("zstd", ".zst")])
def test_compressed_lines_can_be_joined(codec: str, suffix: str) -> None:
    """Parts of one file, one after another, as gzip itself and Arrow read them; the same bytes each time."""
    made = []
    for _ in range(2):
        joined = io.BytesIO()
        for header, texts in ((b"name\n", []), (b"", ["a", "b"]), (b"", ["c"])):
            with compressed(joined, "csv", codec) as stream:
                stream.write(header)
                encode_lines(stream, iter([pa.record_batch([pa.array(texts, pa.string())], ["line"])]))
        made.append(joined.getvalue())
    assert made[0] == made[1]
    assert pa.CompressedInputStream(pa.BufferReader(made[0]), codec).read() == b"name\na\nb\nc\n"
    if codec == "gzip":
        assert gzip.decompress(made[0]) == b"name\na\nb\nc\n"
    assert extension_of("csv", codec) == f".csv{suffix}"
    check_name(f"x.csv{suffix}", "csv", codec)
    for name, compression in (("x.csv", codec), (f"x.csv{suffix}", "none")):
        with pytest.raises(InvalidInputError, match="by its name"):
            check_name(name, "csv", compression)
