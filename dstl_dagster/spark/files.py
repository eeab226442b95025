"""Files from DataFrames, published with a checkpoint: one file from many tasks, or one per task.

Owns the plan on the driver: lines as Spark SQL expressions, names, the one action, the order of the parts.
Does not own the work inside a task (`file_tasks`), bytes (`file_formats`), or publishing (`checkpoint`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as st

from dstl_dagster.checkpoint import Attempt, Batch, FileReport
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.recoverable import GSBlobIdentifier, GSCommitRecoverable
from dstl_dagster.settings import JobOptions, Options
from dstl_dagster.spark.file_formats import (
    EXTENSIONS,
    LINE_FORMATS,
    Encoder,
    checked_format,
    encode_lines,
    encoder_of,
)
from dstl_dagster.spark.file_tasks import FileJob, FileNames, WriteFileTask
from dstl_dagster.spark.outcomes import run_tasks
from dstl_dagster.spark.progress import Progress
from dstl_dagster.spark.spending import traffic_of
from dstl_dagster.spark.stores import open_shared_store
from dstl_dagster.spark.types import arrow_schema, exact_column
from dstl_dagster.storage import TrafficMeter

__all__ = ["absolute_uri", "joined", "lines", "write_files"]


def write_files(
    df: DataFrame,
    uri: str,
    *,
    attempt: Attempt | Batch,
    format: str = "jsonl",  # noqa: A002 - Spark's own word
    single_file: bool | None = None,
    options: Mapping[str, str] | None = None,
    job_options: Options | None = None,
    progress: Progress | None = None,
) -> tuple[FileReport, ...]:
    """Write the rows of `df` durably and invisibly: steps 2 and 3 for files.

    Runs one action on `df`. With `single_file` every task writes a part, and the parts become *one* object
    at `uri`, in partition order, without passing through one machine. Otherwise each partition becomes
    `<uri>/part-<number><extension>`. An empty partition writes nothing; a DataFrame without rows writes
    one file without rows. The same rows in the same partitions give the same bytes.

    Args:
        df: in the order of the file, within and across partitions.
        uri: absolute (`gs://bucket/name`, `file:///folder/name`), or a name in the job's store.
        attempt: from step 1; or the batch that holds it, which then counts what is requested.
        format: `jsonl`, `csv` (with a header), `text` (one text column), `parquet` or `arrow`.
        single_file: `None`: true for `jsonl`, `csv` and `text`; the others cannot be joined.
        options: of Spark's `to_json` or `to_csv` (so null fields are left out of JSON unless
            `ignoreNullFields` is `false`); for `csv` also `header`; for `parquet` and `arrow` only
            `compression` (default: `snappy` for `parquet`, none for `arrow`).
        job_options: of the job, the same as the coordinator's: temporary objects, chunk size, requests.
        progress: called with (finished tasks, known tasks) while they run.

    Raises: InvalidInputError (kind `unsupported_type` naming the column, or a kind that says what else is
    wrong with the call), UnavailableError.
    """
    meter = TrafficMeter()
    if isinstance(attempt, Batch):
        meter = attempt.meter
        attempt = attempt.attempt
    checked_format(format)
    one_file = format in LINE_FORMATS if single_file is None else single_file
    if one_file and format not in LINE_FORMATS:
        raise InvalidInputError(
            f"{format} files cannot be joined from parts: leave out single_file, or write one of "
            f"{', '.join(LINE_FORMATS)}"
        )
    given = dict(options or {})
    header = _header(df, given) if format == "csv" else b""
    rows, encoder = _rows_and_encoder(df, format, given)
    wanted = JobOptions.of(job_options)
    target = absolute_uri(uri, attempt.store_uri, wanted)
    names = FileNames.one_file(target) if one_file else FileNames.numbered(target, EXTENSIONS[format])
    job = FileJob(attempt, format, encoder, b"" if one_file else header, wanted)
    found = run_tasks(rows, WriteFileTask(job, names), progress)
    meter.add(traffic_of(found))
    found.sort(key=lambda outcome: int(outcome["partition"]))
    reports = [FileReport.from_json(outcome["report"]) for outcome in found]
    if one_file:
        heading = FileJob(attempt, format, encoder, header, wanted).write(target, iter(()), meter)
        return (joined([heading, *reports]),)
    return tuple(reports) or (job.write(names.uri(0), iter(()), meter),)


def lines(
    df: DataFrame,
    format: str,  # noqa: A002 - Spark's own word
    *,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows as lines of a `jsonl`, `csv` or `text` file, in one column `value`.

    The input of a sink that writes such files: a data source cannot call Spark's `to_json` and `to_csv`
    itself. For a header, set the sink's option `header_line`.

    Raises: InvalidInputError as `write_files`.
    """
    if format not in LINE_FORMATS:
        raise InvalidInputError(f"a format of lines is one of {', '.join(LINE_FORMATS)}, not {format!r}")
    if not df.columns:
        raise InvalidInputError("a DataFrame without columns has no lines")
    return df.select(_line(df, format, dict(options or {})).alias("value"))


def _rows_and_encoder(df: DataFrame, file_format: str, options: dict[str, str]) -> tuple[DataFrame, Encoder]:
    if not df.columns:
        raise InvalidInputError("a DataFrame without columns cannot be written to a file")
    if file_format in LINE_FORMATS:
        return df.select(_line(df, file_format, options).alias("line")), encode_lines
    compression = options.pop("compression", None)
    if options:
        raise InvalidInputError(
            f"{file_format} takes only option compression, not {', '.join(sorted(options))}"
        )
    encoder = encoder_of(file_format, arrow_schema(df.schema, f"{file_format} file"), compression)
    # By position: Spark cannot resolve every name (dots, backticks). The encoder has the names.
    return df.toDF(*[f"c{place}" for place in range(len(df.columns))]), encoder


def _line(df: DataFrame, file_format: str, options: dict[str, str]) -> Column:
    if file_format == "text":
        if len(df.columns) != 1 or not isinstance(df.schema[0].dataType, st.StringType):
            raise InvalidInputError(f"text needs exactly one text column, not {df.schema.simpleString()}")
        if options:
            raise InvalidInputError(f"text takes no options, but got {', '.join(sorted(options))}")
        return exact_column(df.columns[0])
    arrow_schema(st.StructType([st.StructField(name, st.StringType()) for name in df.columns]), file_format)
    row = F.struct("*")
    if file_format == "jsonl":
        if options.get("pretty", "false").lower() != "false":
            raise InvalidInputError("pretty JSON has several lines per row; a jsonl file has one")
        return F.to_json(row, options or None)  # Spark Connect cannot send an empty mapping
    return F.to_csv(row, options or None)


def _header(df: DataFrame, options: dict[str, str]) -> bytes:
    """The header line, quoted like the rows. Removes `header` from the options."""
    if options.pop("header", "true").lower() != "true":
        return b""
    names = st.StructType([st.StructField(f"c{index}", st.StringType()) for index in range(len(df.columns))])
    literals = F.struct(
        *[F.lit(name).alias(field.name) for name, field in zip(df.columns, names, strict=True)]
    )
    # Rows that are in the plan are evaluated with it: no job runs for them.
    (line,) = df.sparkSession.sql("VALUES (0)").select(F.to_csv(literals, options or None)).collect()
    return f"{line[0]}\n".encode()


def absolute_uri(uri: str, store_uri: str, options: JobOptions) -> str:
    """The URI that tasks open; a name without a scheme is resolved in the job's store."""
    store = open_shared_store(store_uri, options)
    try:
        absolute = uri if "://" in uri else store.uri_of(uri.rstrip("/"))
        store.locate(absolute)
    finally:
        store.close()
    return absolute


def joined(parts: Sequence[FileReport]) -> FileReport:
    """One report for the parts of a file, whose bytes are concatenated in this order."""
    final: GSBlobIdentifier = parts[0].recoverable.final_blob_identifier
    ids = [object_id for part in parts for object_id in part.recoverable.component_object_ids]
    components = tuple(component for part in parts for component in part.components)
    rows = sum(part.rows or 0 for part in parts)
    return FileReport(GSCommitRecoverable(final, ids), components, rows=rows, format=parts[0].format)
