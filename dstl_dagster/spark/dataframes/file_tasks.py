"""The work of a Spark task for files: write its rows, as parts of files of many tasks or as files of its own.

Owns the names of files and the work inside a task. The driver's plan is in `files`, the bytes in
`file_formats`, the order of the rows in `hive_folders`. Nothing that a task writes is visible. It returns
what the commit needs; anything not returned carries the attempt in its name, so clean-up finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from dstl_dagster.concurrency import gather
from dstl_dagster.errors import DstlError, InternalError
from dstl_dagster.keyed import FileReport
from dstl_dagster.recoverable import GSBlobIdentifier, GSRecoverableWriter
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark.dataframes.file_formats import (
    Encoder,
    FileLayout,
    check_name,
    compressed,
    extension_of,
)
from dstl_dagster.spark.dataframes.hive_folders import Values, by_folder, folders_of
from dstl_dagster.spark.dataframes.outcomes import outcome_row
from dstl_dagster.spark.errors import refusal
from dstl_dagster.spark.stores import COST, counted_store
from dstl_dagster.storage import NO_COST, CostMeter, ObjectStore
from dstl_dagster.timeline import Attempt

_THREADS: Final = 16
"""Files without rows that are written at a time."""


@dataclass(frozen=True)
class FileNames:
    """The names of the files of one write, in their bucket.

    Attributes:
        target: the one file, or the folder.
        appended_by: the attempt in the names, since the folder holds files of others, and how many files it
            has written before; empty: neither.
    """

    bucket: str
    target: str
    layout: FileLayout
    appended_by: str = ""

    @classmethod
    def at(
        cls, target: GSBlobIdentifier, layout: FileLayout, attempt: Attempt, earlier: int = 0
    ) -> FileNames:
        """Those of an attempt at this target. `earlier`: how many files it has written before.

        Raises: InvalidInputError for a name that belies the compression.
        """
        before = f"-{earlier}" if earlier else ""
        appended_by = f"-{attempt.attempt}{before}" if layout.mode == "append" else ""
        names = cls(target.bucket_name, target.object_name, layout, appended_by)
        if names.is_one:
            check_name(names.target.rpartition("/")[2], layout.file_format, layout.compression)
        return names

    @property
    def is_one(self) -> bool:
        """Whether there is one file, and no folder."""
        return self.layout.one_file and not self.layout.partition_by

    def of(self, values: Values, task: int, number: int = 0) -> str:
        """`number`: of the file among those of a task in a folder of these values."""
        layout = self.layout
        if self.is_one:
            return self.target
        part = f"part-{0 if layout.one_file else task:05d}{self.appended_by}"
        counted = "" if layout.most_rows is None else f".c{number:03d}"
        folders = [self.target, *([folders_of(layout.partition_by, values)] if values else [])]
        extension = extension_of(layout.file_format, layout.compression)
        return "/".join([*folders, f"{part}{counted}{extension}"])


@dataclass(frozen=True)
class FileJob:
    """How to write files of one kind under one attempt, in any process.

    Attributes:
        names: of the files, by their layout.
        encoder: rows to bytes.
        header: at the beginning of each file; may be empty. Of a file of many tasks the driver writes it.
        options: of the job: names of temporary objects, chunk size, requests.
    """

    attempt: Attempt
    names: FileNames
    encoder: Encoder
    header: bytes
    options: JobOptions

    def write(self, task: int, batches: Iterable[pa.RecordBatch], meter: CostMeter) -> Iterator[FileReport]:
        """Write the rows of a task durably and invisibly, one file after the other; none without rows.

        The last columns are those that name folders. What is requested counts in `meter`.

        Raises: InvalidInputError, UnavailableError.
        """
        layout = self.names.layout
        rows = by_folder(batches, len(layout.partition_by))
        header = b"" if layout.one_file else self.header
        with counted_store(self.attempt.store_uri, meter, self.options.files) as store:
            for (values, number), found in groupby(self._numbered(rows), key=itemgetter(0)):
                name = self.names.of(values, task, number)
                yield self._written(store, name, header, map(itemgetter(1), found))

    def write_empty(self, names: Iterable[str], store: ObjectStore) -> list[FileReport]:
        """Write files without rows, as `write` does, several at a time."""
        calls = [partial(self._written, store, name, self.header, iter(())) for name in names]
        return gather(calls, store.capabilities.lookup_threads(_THREADS), "dstl-files")

    def _written(
        self, store: ObjectStore, name: str, header: bytes, batches: Iterator[pa.RecordBatch]
    ) -> FileReport:
        layout = self.names.layout
        writer = GSRecoverableWriter(store, self.options.files, attempt=self.attempt.attempt)
        opened = writer.open(store.in_bucket(self.names.bucket).uri_of(name))
        with opened as stream, compressed(stream, layout.file_format, layout.compression) as inner:
            if header:
                inner.write(header)
            rows = self.encoder(inner, batches)
        recoverable = stream.close_for_commit().recoverable
        return FileReport(recoverable, stream.components, rows=rows, format=layout.file_format)

    def _numbered(
        self, rows: Iterable[tuple[Values, pa.RecordBatch]]
    ) -> Iterator[tuple[tuple[Values, int], pa.RecordBatch]]:
        """Rows with the values of their folder, and the number of their file in it."""
        most = self.names.layout.most_rows
        folder, count = None, 0
        for values, batch in rows:
            if values != folder:
                folder, count = values, 0
            begin = 0
            while begin < len(batch):
                number, before = (0, 0) if most is None else divmod(count, most)
                taken = batch.slice(begin, None if most is None else most - before)
                yield (values, number), taken
                begin, count = begin + len(taken), count + len(taken)


@dataclass(frozen=True)
class WriteFileTask:
    """Writes a partition; called by `mapInArrow` with its record batches.

    Yields an outcome with `partition` (its number, from 0) and `report` for each file, and one with `cost`;
    nothing for an empty partition.
    """

    job: FileJob

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise InternalError("a file task runs only inside Spark")
        partition, meter = context.partitionId(), CostMeter()
        try:
            for report in self.job.write(partition, batches, meter):
                yield outcome_row({"partition": partition, "report": report.to_json()})
        except DstlError as error:
            yield outcome_row(refusal(error))
            return
        if meter.cost != NO_COST:
            yield outcome_row({COST: meter.cost.to_json()})
