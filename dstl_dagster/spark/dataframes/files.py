"""Files from DataFrames, published with a checkpoint: one file from many tasks, or one per task.

Owns the plan on the driver: lines as Spark SQL expressions, names, the one action, the order of the parts.
Does not own the work inside a task (`file_tasks`), bytes (`file_formats`), or publishing (`checkpoint`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as st

from dstl_dagster.checkpoint import SUCCESS_FILE, Attempt, Batch, FileReport
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.recoverable import GSBlobIdentifier, GSCommitRecoverable
from dstl_dagster.settings import JobOptions, Options, parse_names
from dstl_dagster.spark.dataframes.file_formats import (
    LINE_FORMATS,
    Encoder,
    FileLayout,
    FileMode,
    checked_format,
    encode_lines,
    encoder_of,
)
from dstl_dagster.spark.dataframes.file_tasks import FileJob, FileNames, WriteFileTask
from dstl_dagster.spark.dataframes.outcomes import run_tasks
from dstl_dagster.spark.stores import cost_of, open_shared_store, require_shared
from dstl_dagster.spark.types import arrow_schema, exact_column, quoted
from dstl_dagster.state import spelled
from dstl_dagster.storage import CostMeter, ObjectStore, metered

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
_NOT_IN_CSV: Final = (st.ArrayType, st.MapType, st.StructType, st.VariantType)
"""As in Spark's own CSV files; its function `to_csv` takes them."""
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def write_files(
    df: DataFrame,
    attempt: Attempt | Batch,
    uri: str,
    *,
    format: str = "jsonl",  # noqa: A002 - Spark's own word
    single_file: bool | None = None,
    partition_by: Sequence[str] = (),
    max_records_per_file: int | None = None,
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

    With `partition_by` each value of these columns has a folder below `uri`, such as
    `<uri>/day=2001-01-01/`, named as by Spark, with files of the other columns. A task sorts its rows by
    folder, on its disk if they are many; within one they stay as they came. Without rows there is no file.

    Args:
        df: in the order of the file, within and across partitions.
        attempt: from step 1; or the batch that holds it, which then counts what is requested.
        uri: absolute (`gs://bucket/name`, `file:///folder/name`), or a name in the job's store, as it is.
        format: `jsonl`, `csv` (with a header), `text` (one text column), `parquet` or `arrow`.
        single_file: `None`: true for `jsonl`, `csv` and `text`; the others cannot be joined. Of each folder
            of `partition_by`.
        partition_by: names of columns, not all.
        max_records_per_file: of files that are not joined; a task with more rows writes several.
        mode: of a folder that holds files already: `error`, or `append`, for which the parts' names
            carry the attempt.
        success: also an empty file `_SUCCESS` in the folder, published after all other files of the
            checkpoint.
        options: in any case of letters: `compression` (or `codec`), which is `gzip` or `zstd` for lines, and
            is in the name of a file of lines (`.gz`, `.zst`); and for lines those of Spark's `to_json` or
            `to_csv` (so null fields are left out of JSON unless `ignoreNullFields` is `false`), and `header`.
        job_options: of the job, the same as the coordinator's: temporary objects, chunk size, requests.
        progress: called with (finished tasks, known tasks) while they run.

    Raises: InvalidInputError (kind `unsupported_type` naming the column, or a kind that says what else is
    wrong with the call), ConflictError (kind `foreign_object`, before anything runs), UnavailableError.
    """
    given = _options_of(checked_format(format), options)
    if not df.columns:
        raise InvalidInputError("a DataFrame without columns cannot be written to a file")
    wanted = JobOptions.of(job_options)
    within = partition_columns(df.schema, partition_by)
    codec = given.pop("compression", None)
    layout = FileLayout.of(format, codec, single_file, within, max_records_per_file, mode, success)
    columns = without(df.schema, within)
    header = _header(df.sparkSession, columns.names, given) if format == "csv" else b""
    if format in LINE_FORMATS:
        encoder: Encoder = encode_lines
        rows = df.select(_line(columns, format, given).alias("line"), *map(_as_text, within))
    else:
        encoder = table_encoder(columns, layout)
        # By position: Spark cannot resolve every name (dots, backticks). The encoder has the names.
        places = {name: f"c{place}" for place, name in enumerate(df.columns)}
        rows = df.toDF(*places.values())
        if within:
            texts = [f"CAST({places[name]} AS STRING)" for name in within]
            rows = rows.selectExpr(*[places[name] for name in columns.names], *texts)
    with _open(attempt, wanted) as (work, earlier, store, meter):
        names = FileNames.at(target_of(uri, store), layout, work, len(earlier))
        check_free(names, store, earlier)
        job = FileJob(work, names, encoder, header, wanted)
        found = run_tasks(rows, WriteFileTask(job), progress)
        meter.add(cost_of(found))
        done = sorted((each for each in found if "report" in each), key=lambda each: int(each["partition"]))
        parts = [FileReport.from_json(outcome["report"]) for outcome in done]
        return tuple(files_of_parts(job, parts, store))


@contextmanager
def _open(
    work: Attempt | Batch, options: JobOptions
) -> Iterator[tuple[Attempt, Sequence[FileReport], ObjectStore, CostMeter]]:
    """The attempt, the files that its batch writes already, its store, and where its tasks' cost counts.

    A batch has its store open, perhaps with credentials that this process would not find.
    """
    if isinstance(work, Batch):
        require_shared(work.attempt.store_uri)
        yield work.attempt, work.report().files, work.coordinator.store, work.meter
        return
    meter = CostMeter()
    with closing(open_shared_store(work.store_uri, options)) as store:
        yield work, (), metered(store, meter), meter


def files_of_parts(job: FileJob, parts: Sequence[FileReport], store: ObjectStore) -> list[FileReport]:
    """The files of a write from what its tasks wrote, in the order of the tasks.

    With parts joined behind a header, one file without rows if there are none, and an empty `_SUCCESS`, which
    `checkpoint` publishes last.
    """
    names, layout = job.names, job.names.layout
    without_rows = [] if layout.partition_by else [names.of((), 0)]
    if layout.one_file:
        by_name: dict[str, list[FileReport]] = {name: [] for name in without_rows}
        for part in parts:
            by_name.setdefault(part.object_name, []).append(part)
        headings = job.write_empty(by_name, store)
        files = [
            _joined([heading, *of_one]) for heading, of_one in zip(headings, by_name.values(), strict=True)
        ]
    else:
        files = [*(parts or job.write_empty(without_rows, store))]
    if layout.success:
        as_text = replace(names, layout=replace(layout, file_format="text", compression="none"))
        empty = replace(job, names=as_text, encoder=encode_lines, header=b"")
        files += empty.write_empty([f"{names.target}/{SUCCESS_FILE}"], store)
    return files


def partition_columns(schema: st.StructType, named: Sequence[str]) -> tuple[str, ...]:
    """The columns whose values name folders, as the rows spell them, which may differ in case.

    Raises: InvalidInputError for another name, one that occurs twice, a nested column, or all columns.
    """
    names = spelled(parse_names("partition_by", named), schema.names, case_sensitive=False)
    for name in names:
        if schema.names.count(name) != 1 or names.count(name) > 1:
            wrong = f"which is not one of {', '.join(schema.names)}" if name not in schema.names else "twice"
            raise InvalidInputError(f"partition_by names column {name!r}, {wrong}: name each once")
        kind = schema[name].dataType
        if not isinstance(kind, st.AtomicType) or isinstance(kind, st.VariantType):
            raise InvalidInputError(
                f"partition_by names column {name!r} of type {kind.simpleString()}, which has no text: name "
                "another one"
            )
    if names and len(names) == len(schema.names):
        raise InvalidInputError(
            f"partition_by names all columns, {', '.join(names)}: leave one for the files"
        )
    return names


def without(schema: st.StructType, names: Collection[str]) -> st.StructType:
    """The other columns."""
    return st.StructType([field for field in schema if field.name not in names])


def _as_text(name: str) -> Column:
    return exact_column(name).cast("string")


def table_encoder(schema: st.StructType, layout: FileLayout) -> Encoder:
    """The encoder of rows of this schema, which Spark reads back from Parquet as it is, with its comments.

    Raises: InvalidInputError.
    """
    columns = arrow_schema(schema, f"{layout.file_format} file")
    if layout.file_format == "parquet":
        columns = columns.with_metadata({"org.apache.spark.sql.parquet.row.metadata": schema.json()})
    return encoder_of(layout.file_format, columns, layout.compression)


def lines(
    df: DataFrame,
    format: str,  # noqa: A002 - Spark's own word
    *,
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows as lines of a `jsonl`, `csv` or `text` file, in one column `value` behind those of
    `partition_by`.

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
    within = partition_columns(df.schema, partition_by)
    line = _line(without(df.schema, within), format, given).alias("value")
    return df.select(*map(exact_column, within), line)


def _options_of(file_format: str, options: Mapping[str, str] | None) -> dict[str, str]:
    """The options as they are spelled here, without what files of lines have anyway.

    Raises: InvalidInputError for one that has no effect here, or that is passed twice.
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


def _line(columns: st.StructType, file_format: str, options: dict[str, str]) -> Column:
    if file_format == "text":
        if len(columns) != 1 or not isinstance(columns[0].dataType, st.StringType):
            raise InvalidInputError(f"text needs exactly one text column, not {columns.simpleString()}")
        return exact_column(columns.names[0])
    arrow_schema(
        st.StructType([st.StructField(name, st.StringType()) for name in columns.names]), file_format
    )
    row = F.struct(*map(quoted, columns.names))
    if file_format == "jsonl":
        if options.get("pretty", "false").lower() != "false":
            raise InvalidInputError("pretty JSON has several lines per row; a jsonl file has one")
        return F.to_json(row, options or None)  # Spark Connect cannot send an empty mapping
    nested = next((field for field in columns if isinstance(field.dataType, _NOT_IN_CSV)), None)
    if nested is not None:
        raise InvalidInputError(
            f"csv: column {nested.name!r} has type {nested.dataType.simpleString()}, which is not read back "
            "from its text: write to_json of it, or jsonl",
            kind=ErrorKind.UNSUPPORTED_TYPE,
        )
    line = F.to_csv(row, options or None)
    if len(columns) > 1 or options.get("nullValue"):
        return line
    # Of nothing but a null Spark makes an empty line, which is none to a reader, or an error.
    empty = F.to_csv(F.struct(F.lit("").alias(columns.names[0])), options or None)
    return F.when(exact_column(columns.names[0]).isNull(), empty).otherwise(line)


def _header(spark: SparkSession, columns: Sequence[str], options: dict[str, str]) -> bytes:
    """The header line, quoted like the rows. Removes `header` from the options."""
    if options.pop("header", "true").lower() != "true":
        return b""
    names = st.StructType([st.StructField(f"c{index}", st.StringType()) for index in range(len(columns))])
    literals = F.struct(*[F.lit(name).alias(field.name) for name, field in zip(columns, names, strict=True)])
    # Rows that are in the plan are evaluated with it: no job runs for them.
    (line,) = spark.sql("VALUES (0)").select(F.to_csv(literals, options or None)).collect()
    return f"{line[0]}\n".encode()


def target_of(uri: str, store: ObjectStore) -> GSBlobIdentifier:
    """The file or folder at this URI; a name without a scheme is one in `store`, the job's, as it is.

    Raises: InvalidInputError for a place outside of the store, or a scheme that it does not have.
    """
    if "://" not in uri and _SCHEME.match(uri):
        scheme, _, path = uri.partition(":")
        if scheme != "file":
            raise InvalidInputError(
                f"{uri!r} names no place in the store {store.uri}: give a name in it, or a whole URI"
            )
        uri = f"file://{path}"  # Hadoop's spelling
    named = uri.rstrip("/")
    return GSBlobIdentifier(*store.locate(named if "://" in named else store.uri_of(named)))


def check_free(names: FileNames, store: ObjectStore, earlier: Sequence[FileReport] = ()) -> None:
    """Pass if nothing is at the target, unless it is appended to. `earlier`: what this checkpoint writes
    already.

    Raises: ConflictError (kind `foreign_object`).
    """
    if names.layout.mode == "append":
        return
    within, name = store.in_bucket(names.bucket), names.target
    there = within.stat(name) if names.is_one else next(within.list(f"{name}/"), None)
    final = [each.recoverable.final_blob_identifier for each in earlier]
    taken = [each.object_name for each in final if each.bucket_name == names.bucket]
    if there is not None:
        taken.append(there.name)
    # One name in two buckets is refused at step 4: earlier is better.
    if names.is_one and (name in taken or any(each.object_name == name for each in final)):
        way_out = "" if there is None else "move it away and run this again, or "
        raise ConflictError(
            f"{name} exists already: {way_out}write to another name", kind=ErrorKind.FOREIGN_OBJECT
        )
    within_it = [] if names.is_one else [each for each in taken if each.startswith(f"{name}/")]
    if within_it:
        raise ConflictError(
            f"folder {name} holds {within_it[0]} already: write to another one, or append to it with "
            'mode="append"',
            kind=ErrorKind.FOREIGN_OBJECT,
        )


def _joined(parts: Sequence[FileReport]) -> FileReport:
    """One report for the parts of a file, whose bytes are concatenated in this order."""
    final: GSBlobIdentifier = parts[0].recoverable.final_blob_identifier
    ids = [object_id for part in parts for object_id in part.recoverable.component_object_ids]
    components = tuple(component for part in parts for component in part.components)
    counted = [part.rows for part in parts if part.rows is not None]
    rows = sum(counted) if len(counted) == len(parts) else None
    return FileReport(GSCommitRecoverable(final, ids), components, rows=rows, format=parts[0].format)
