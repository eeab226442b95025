"""What a Spark task does for files: write its partition, as a part of one file or as a file of its own.

Owns the work inside a task; the driver's plan is in `files`, the bytes in `file_formats`. Nothing that a
task writes is visible. It returns what the commit needs; whatever is not returned carries the attempt in
its name, so clean-up finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext

from dstl_dagster.errors import DstlError, InternalError
from dstl_dagster.keyed import FileReport
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark.dataframes.file_formats import Encoder, compressed
from dstl_dagster.spark.dataframes.outcomes import outcome_row
from dstl_dagster.spark.errors import refusal
from dstl_dagster.spark.stores import COST, counted_store
from dstl_dagster.storage import CostMeter
from dstl_dagster.timeline import Attempt

_PARTITION = "\N{NULL}"  # cannot occur in an object's name


@dataclass(frozen=True)
class FileJob:
    """How to write files of one kind under one attempt, in any process.

    Attributes:
        file_format: recorded in the report.
        encoder: rows to bytes.
        compression: a checked one, of the format.
        header: written before the rows; may be empty.
        options: of the job: names of temporary objects, chunk size, requests.
    """

    attempt: Attempt
    file_format: str
    compression: str
    encoder: Encoder
    header: bytes
    options: JobOptions

    def write(self, uri: str, batches: Iterator[pa.RecordBatch], meter: CostMeter) -> FileReport:
        """Write one file, or a part of one, durably and invisibly. What is requested counts in `meter`.

        Raises: InvalidInputError, UnavailableError.
        """
        with counted_store(self.attempt.store_uri, meter, self.options.files) as store:
            writer = GSRecoverableWriter(store, self.options.files, attempt=self.attempt.attempt)
            with writer.open(uri) as stream, compressed(stream, self.file_format, self.compression) as inner:
                if self.header:
                    inner.write(self.header)
                rows = self.encoder(inner, batches)
            recoverable = stream.close_for_commit().recoverable
            return FileReport(recoverable, stream.components, rows=rows, format=self.file_format)


@dataclass(frozen=True)
class FileNames:
    """Where the partitions go: all into one file, or each into its own in a folder, numbered from 0."""

    pattern: str

    @classmethod
    def one_file(cls, uri: str) -> FileNames:
        return cls(uri)

    @classmethod
    def numbered(cls, folder_uri: str, extension: str, *, appended_by: Attempt | None = None) -> FileNames:
        """`appended_by`: with a name that no other attempt has, since the folder holds files of others."""
        whose = "" if appended_by is None else f"-{appended_by.attempt}"
        return cls(f"{folder_uri.rstrip('/')}/part-{_PARTITION}{whose}{extension}")

    def uri(self, partition: int) -> str:
        return self.pattern.replace(_PARTITION, f"{partition:05d}")


@dataclass(frozen=True)
class WriteFileTask:
    """Writes a partition; called by `mapInArrow` with its record batches.

    Yields one outcome with `partition` (its number, from 0), `report` and `cost`; nothing for an empty
    partition.
    """

    job: FileJob
    names: FileNames

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        context = TaskContext.get()
        if context is None:
            raise InternalError("a file task runs only inside Spark")
        partition, meter = context.partitionId(), CostMeter()
        try:
            report = self.job.write(self.names.uri(partition), chain([first], batches), meter)
        except DstlError as error:
            yield outcome_row(refusal(error))
            return
        outcome = {"partition": partition, "report": report.to_json(), COST: meter.cost.to_json()}
        yield outcome_row(outcome)
