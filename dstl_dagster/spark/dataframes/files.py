"""Files from DataFrames, published with a checkpoint: one file from many tasks, or one per task.

Owns the plan on the driver: lines as Spark SQL expressions, names, the one action, the order of the parts.
Does not own the work inside a task (`file_tasks`), bytes (`file_formats`), or publishing (`checkpoint`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as st

from dstl_dagster.checkpoint import SUCCESS_FILE, Attempt, Batch, FileReport
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.recoverable import GSBlobIdentifier, GSCommitRecoverable
from dstl_dagster.settings import JobOptions, Options
from dstl_dagster.spark.dataframes.file_formats import (
    LINE_FORMATS,
    Encoder,
    FileMode,
    check_mode,
    check_name,
    checked_compression,
    encode_lines,
    encoder_of,
    extension_of,
    is_one_file,
)
from dstl_dagster.spark.dataframes.file_tasks import FileJob, FileNames, WriteFileTask
from dstl_dagster.spark.dataframes.outcomes import run_tasks
from dstl_dagster.spark.dataframes.progress import Progress
from dstl_dagster.spark.stores import cost_of, open_shared_store
from dstl_dagster.spark.types import arrow_schema, exact_column
from dstl_dagster.storage import CostMeter, metered

_DATES: Final = ("dateFormat", "timestampFormat", "timestampNTZFormat", "timeZone", "locale")
_OF_SPARK: Final = {
    "jsonl": ("ignoreNullFields", "pretty", *_DATES),
    "csv": (
        *("sep", "delimiter", "quote", "quoteAll", "escape", "escapeQuotes", "charToEscapeQuoteEscaping"),
        *("nullValue", "emptyValue", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "header"),
        *_DATES,
    ),
    "text": (),
    "parquet": (),
    "arrow": (),
}
"""Beside those of every format. Spark ignores the case, and in functions an option that it does not know."""
_OF_EVERY_FORMAT: Final = ("compression", "codec")
_FIXED: Final = {"encoding": "UTF-8", "charset": "UTF-8", "linesep": "\n"}
"""What files of lines have in any case."""
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def write_files(
    df: DataFrame,
    attempt: Attempt | Batch,
    uri: str,
    *,
    format: str = "jsonl",  # noqa: A002 - Spark's own word
    single_file: bool | None = None,
    mode: FileMode = "error",
    success: bool = False,
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
        attempt: from step 1; or the batch that holds it, which then counts what is requested.
        uri: absolute (`gs://bucket/name`, `file:///folder/name`), or a name in the job's store, as it is.
        format: `jsonl`, `csv` (with a header), `text` (one text column), `parquet` or `arrow`.
        single_file: `None`: true for `jsonl`, `csv` and `text`; the others cannot be joined.
        mode: of a folder of parts that holds files already: `error`, or `append`, for which the parts' names
            carry the attempt.
        success: also an empty file `_SUCCESS` in the folder of parts, published after all other files of the
            checkpoint.
        options: in any case of letters: `compression` (or `codec`), which is `gzip` or `zstd` for lines, and
            is in the name of a file of lines (`.gz`, `.zst`); and for lines those of Spark's `to_json` or
            `to_csv` (so null fields are left out of JSON unless `ignoreNullFields` is `false`), and `header`.
        job_options: of the job, the same as the coordinator's: temporary objects, chunk size, requests.
        progress: called with (finished tasks, known tasks) while they run.

    Raises: InvalidInputError (kind `unsupported_type` naming the column, or a kind that says what else is
    wrong with the call), ConflictError (kind `foreign_object`, before anything runs), UnavailableError.
    """
    meter = CostMeter()
    earlier: Sequence[FileReport] = ()
    if isinstance(attempt, Batch):
        meter, earlier = attempt.meter, attempt.report().files
        attempt = attempt.attempt
    one_file = is_one_file(format, single_file)
    check_mode(mode, one_file=one_file, success=success)
    given = _options_of(format, options)
    compression = checked_compression(format, given.pop("compression", None))
    if not df.columns:
        raise InvalidInputError("a DataFrame without columns cannot be written to a file")
    header = _header(df, given) if format == "csv" else b""
    if format in LINE_FORMATS:
        encoder: Encoder = encode_lines
        rows = df.select(_line(df, format, given).alias("line"))
    else:
        # By position: Spark cannot resolve every name (dots, backticks). The encoder has the names.
        rows = df.toDF(*[f"c{place}" for place in range(len(df.columns))])
        encoder = table_encoder(df.schema, format, compression)
    wanted = JobOptions.of(job_options)
    target = absolute_uri(uri, attempt.store_uri, wanted)
    names = names_in(
        target, format, compression, one_file=one_file, appended_by=attempt if mode == "append" else None
    )
    if mode == "error":
        check_free(target, attempt.store_uri, wanted, meter, one_file=one_file, earlier=earlier)
    job = FileJob(attempt, format, compression, encoder, b"" if one_file else header, wanted)
    found = run_tasks(rows, WriteFileTask(job, names), progress)
    meter.add(cost_of(found))
    found.sort(key=lambda outcome: int(outcome["partition"]))
    reports = [FileReport.from_json(outcome["report"]) for outcome in found]
    if one_file:
        heading = replace(job, header=header).write(target, iter(()), meter)
        return (joined([heading, *reports]),)
    reports = reports or [job.write(names.uri(0), iter(()), meter)]
    return (*reports, *([success_file(job, target, meter)] if success else []))


def names_in(
    target: str, file_format: str, compression: str, *, one_file: bool, appended_by: Attempt | None
) -> FileNames:
    """The names of the files at this URI. Raises: InvalidInputError for one that belies the compression."""
    if not one_file:
        return FileNames.numbered(target, extension_of(file_format, compression), appended_by=appended_by)
    check_name(target.rpartition("/")[2], file_format, compression)
    return FileNames.one_file(target)


def success_file(job: FileJob, folder: str, meter: CostMeter) -> FileReport:
    """The empty file in this folder of parts that `checkpoint` publishes last."""
    empty = FileJob(job.attempt, "text", "none", encode_lines, b"", job.options)
    return empty.write(f"{folder.rstrip('/')}/{SUCCESS_FILE}", iter(()), meter)


def table_encoder(schema: st.StructType, file_format: str, compression: str) -> Encoder:
    """The encoder of rows of this schema, which Spark reads back from Parquet as it is, with its comments.

    Raises: InvalidInputError.
    """
    columns = arrow_schema(schema, f"{file_format} file")
    if file_format == "parquet":
        columns = columns.with_metadata({"org.apache.spark.sql.parquet.row.metadata": schema.json()})
    return encoder_of(file_format, columns, compression)


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
    given = _options_of(format, options)
    if "compression" in given or "header" in given:
        raise InvalidInputError("options compression and header are of the sink: compression, header_line")
    return df.select(_line(df, format, given).alias("value"))


def _options_of(file_format: str, options: Mapping[str, str] | None) -> dict[str, str]:
    """The options as they are spelled here, without what files of lines have anyway.

    Raises: InvalidInputError for one that has no effect here, or that is given twice.
    """
    known = (*_OF_SPARK[file_format], *_OF_EVERY_FORMAT)
    spelled = {each.lower(): each for each in known} | {"codec": "compression", "delimiter": "sep"}
    found: dict[str, str] = {}
    for given, value in (options or {}).items():
        name = given.lower()
        if file_format in LINE_FORMATS and name in _FIXED:
            if str(value).upper() != _FIXED[name]:
                raise InvalidInputError(
                    f"{file_format} has {given} {_FIXED[name]!r}, not {value!r}: leave the option out"
                )
            continue
        if name not in spelled:
            near = difflib.get_close_matches(name, spelled, n=1)
            hint = f"did you mean {spelled[near[0]]}?" if near else f"it takes {', '.join(known)}"
            raise InvalidInputError(f"{file_format} does not take option {given!r}; {hint}")
        if spelled[name] in found:
            raise InvalidInputError(f"option {spelled[name]} is given twice, as {given!r} the second time")
        found[spelled[name]] = value
    return found


def _line(df: DataFrame, file_format: str, options: dict[str, str]) -> Column:
    if file_format == "text":
        if len(df.columns) != 1 or not isinstance(df.schema[0].dataType, st.StringType):
            raise InvalidInputError(f"text needs exactly one text column, not {df.schema.simpleString()}")
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
    """The URI that tasks open; a name without a scheme is resolved in the job's store, as it is.

    Raises: InvalidInputError for a place outside of the store, or a scheme that it does not have.
    """
    if "://" not in uri and _SCHEME.match(uri):
        scheme, _, path = uri.partition(":")
        if scheme != "file":
            raise InvalidInputError(
                f"{uri!r} names no place in the store {store_uri}: give a name in it, or a whole URI"
            )
        uri = f"file://{path}"  # Hadoop's spelling
    with closing(open_shared_store(store_uri, options)) as store:
        absolute = uri if "://" in uri else store.uri_of(uri.rstrip("/"))
        store.locate(absolute.rstrip("/"))
    return absolute


def check_free(
    target: str,
    store_uri: str,
    options: JobOptions,
    meter: CostMeter,
    *,
    one_file: bool,
    earlier: Sequence[FileReport] = (),
) -> None:
    """Pass if nothing is at the target. `earlier`: what this checkpoint writes already. `meter`: counts.

    Raises: ConflictError (kind `foreign_object`).
    """
    with closing(open_shared_store(store_uri, options)) as opened:
        store = metered(opened, meter)
        bucket, name = store.locate(target.rstrip("/"))
        within = store.in_bucket(bucket)
        there = within.stat(name) if one_file else next(within.list(f"{name}/"), None)
    final = [each.recoverable.final_blob_identifier for each in earlier]
    taken = [each.object_name for each in final if each.bucket_name == bucket]
    if there is not None:
        taken.append(there.name)
    if one_file and name in taken:
        raise ConflictError(f"{name} exists already: write to another name", kind=ErrorKind.FOREIGN_OBJECT)
    within_it = [] if one_file else [each for each in taken if each.startswith(f"{name}/")]
    if within_it:
        raise ConflictError(
            f"folder {name} holds {within_it[0]} already: write to another one, or append to it with "
            'mode="append"',
            kind=ErrorKind.FOREIGN_OBJECT,
        )


def joined(parts: Sequence[FileReport]) -> FileReport:
    """One report for the parts of a file, whose bytes are concatenated in this order."""
    final: GSBlobIdentifier = parts[0].recoverable.final_blob_identifier
    ids = [object_id for part in parts for object_id in part.recoverable.component_object_ids]
    components = tuple(component for part in parts for component in part.components)
    counted = [part.rows for part in parts if part.rows is not None]
    rows = sum(counted) if len(counted) == len(parts) else None
    return FileReport(GSCommitRecoverable(final, ids), components, rows=rows, format=parts[0].format)
