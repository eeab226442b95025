"""The Spark face of a batch: the steps of a checkpoint around a user's own code, on the driver.

Owns the methods that the user's code calls, and the refusal to write a batch that was applied before. Does
not own the batch's life (`checkpoint.Batch`), nor writing state (`state`) or files (`files`). Imports pyspark
once a DataFrame is there: a program that works with pandas, Polars or Arrow needs none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from dstl_dagster.checkpoint import (
    Attempt,
    Batch,
    Checkpoint,
    CheckpointCoordinator,
    FileReport,
    Opening,
    OperatorReport,
    ParentCheck,
)
from dstl_dagster.clock import Clock
from dstl_dagster.errors import ClosedError, ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.format import ChangelogStateHandle
from dstl_dagster.jobs import is_spark_rows, merge_frame, write_frame
from dstl_dagster.keyed import AttemptReport, Replaced
from dstl_dagster.recoverable import GSRecoverableWriterCommitter
from dstl_dagster.settings import JobOptions, Options, StateTtlConfig, parse_int
from dstl_dagster.spark.stores import read_cost_of
from dstl_dagster.storage import ObjectStore, RunningCost, open_store
from dstl_dagster.timeline import BatchKey

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dstl_dagster.concurrency import Progress
    from dstl_dagster.spark.dataframes.file_formats import FileMode

log = logging.getLogger(__name__)


@contextmanager
def open_batch(
    store: ObjectStore | str,
    job: str,
    *,
    idempotency_key: str | None = None,
    owner: str | None = None,
    take_over: bool = False,
    check: ParentCheck | None = None,
    clean_up_every: int = 0,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Iterator[CheckpointBatch]:
    """One batch of `job` by a program that does all steps itself: the block is steps 1 to 3, its end 4 to 7.

    In Dagster `ChangelogStorageResource.checkpoint` gives the same object, and in a driver that Dagster has
    launched `dstl_dagster.pipes.open_batch`.

    If `already_in` is set, a completed checkpoint holds the batch: its files are published, if a program died
    before they were, and there is nothing to write.

    Args:
        store: a URI (`gs://bucket`, `file:///folder`), whose store is closed with the block; or a store.
        idempotency_key: identifies the batch, which is applied once.
        owner: of the attempt. A program that is started again under the same owner fences the attempt that it
            left open; by default each is an owner of its own.
        take_over, check: as of `Opening`.
        progress: as for `CheckpointBatch`.
        clean_up_every: do step 7 after every so many checkpoints; 0: never.
        options: of the job.

    Raises: on entering ConflictError (kind `attempt_open`), and what `check` raises; on leaving as
    `Batch.complete`. An exception in the block aborts the attempt.
    """
    given = JobOptions.of(options)
    with ExitStack() as stack:
        if isinstance(store, str):
            store = stack.enter_context(closing(open_store(store, given.files)))
        coordinator = CheckpointCoordinator(job, store, given, owner=owner)
        opening = Opening(idempotency_key, take_over, check)
        batch = CheckpointBatch(coordinator, opening, progress=progress, clean_up_every=clean_up_every)
        yield stack.enter_context(batch)


class CheckpointBatch:
    """A context manager: entering opens the attempt, leaving stores the report of what its tasks wrote.

    Leaving normally ends step 3: everything written is durable and reported, and nothing is visible yet. With
    `clean_up_every` it goes on to step 6.
    It also merges older runs of what it wrote, as far as they are due (`CheckpointOptions.materialize_*`).
    Leaving by an exception aborts the attempt. If the process dies instead, the next trigger of the same
    owner fences it. One thread.

    Args:
        coordinator: the job's.
        opening: of step 1. If a completed checkpoint already holds its batch, `already_in` is that
            checkpoint's id, and there is nothing to write.
        progress: called with (finished tasks, known tasks) while a write runs.
        application: called with the id of Spark's application and the URL of its page, before a write.
        clean_up_every: do steps 4 to 6 on leaving, and step 7 after every so many checkpoints (0: never);
            `None`: other processes do them.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        opening: Opening | None = None,
        *,
        clock: Clock | None = None,
        progress: Progress | None = None,
        application: Callable[[str, str], None] | None = None,
        clean_up_every: int | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._opening = opening or Opening()
        self._key = BatchKey.of(self._opening.key)
        self._clock = clock
        self._progress = progress
        self._application = application
        self._clean_up_every = clean_up_every and parse_int("clean_up_every", clean_up_every, minimum=0)
        self._positions: dict[str, Any] = {}
        self._batch: Batch | None = None
        self._applied: Attempt | None = None
        self._has_ended = False

    @property
    def already_in(self) -> int | None:
        """The completed checkpoint that already holds this batch; `None` for a new batch."""
        return None if self._applied is None else self._applied.checkpoint_id

    @property
    def attempt(self) -> Attempt:
        """The open attempt, or the one that completed the batch earlier."""
        return self._applied or self._begun.attempt

    @property
    def reference(self) -> dict[str, Any]:
        """The input of the next step: the attempt as plain JSON."""
        return self.attempt.to_json()

    @property
    def parent(self) -> Checkpoint | None:
        """The checkpoint that this batch builds on; `None` for a job's first batch."""
        return None if self._batch is None else self._batch.parent

    @property
    def job_options(self) -> JobOptions:
        """The options of the job, and of this batch."""
        return self._coordinator.job_options

    @property
    def report(self) -> AttemptReport | None:
        """What was added so far; `None` before the attempt opens, and for a batch that was applied before."""
        return None if self._batch is None else self._batch.report()

    def handles(self, operator: str) -> tuple[ChangelogStateHandle, ...]:
        """Where the parent has the log of `operator`, oldest changes first; empty if it has none.

        For a log of the program's own; keyed state is read by `read_state`.

        Raises: NotFoundError, FormatError.
        """
        entry = None if self.parent is None else self.parent.manifest.operators.get(operator)
        return () if entry is None else entry.handles

    def __enter__(self) -> Self:
        cost = self._coordinator.running_cost()
        self._applied = self._find_applied()
        if self._applied is not None:
            log.info("batch %s is already in checkpoint %d", self._key, self._applied.checkpoint_id)
            if self._clean_up_every is not None:
                self._coordinator.compose_commit()
            return self
        self._batch = self._begin(cost)
        for source, position in self._positions.items():
            self._batch.move_position(source, position)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if self._batch is None:
            return False
        self._has_ended = True
        if error is not None:
            self._batch.fail(error)
            return False
        self._end(self._batch)
        return False

    def _find_applied(self) -> Attempt | None:
        return self._coordinator.applied_batch(self._key, self._opening.claim)

    def _begin(self, cost: RunningCost) -> Batch:
        """Step 1. `cost`: since before the look-up."""
        return Batch.open(self._coordinator, self._opening, clock=self._clock, cost=cost)

    def _end(self, batch: Batch) -> None:
        """End step 3, after the user's code."""
        batch.merge_due_runs()
        if self._clean_up_every is None:
            batch.hand_over()
        else:
            batch.complete(clean_up_every=self._clean_up_every)

    def read_state(
        self, spark: SparkSession, operator: str, *, schema: StructType | str | None = None
    ) -> DataFrame:
        """The state of `operator` at the parent checkpoint; an empty DataFrame of `schema` if it has none."""
        from dstl_dagster.spark.dataframes.state import read_state

        if self._batch is not None:
            self._batch.count_along(read_cost_of(spark))
        return read_state(
            spark,
            self.parent,
            operator,
            store=self._coordinator.store,
            schema=schema,
            job_options=self._coordinator.job_options,
        )

    def write_state(
        self,
        changed: Any,
        *,
        operator: str,
        keys: Sequence[str],
        max_parallelism: int | None = None,
        partitions: int | None = None,
        deleted: str | None = None,
        replace: Replaced = False,
        drop_columns: Collection[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        ttl: StateTtlConfig | None = None,
        job_options: Options | None = None,
    ) -> OperatorReport:
        """Append the changed rows of `operator` to the changelog (see `dstl_dagster.spark.write_state`).

        They may also be a DataFrame of pandas or Polars, an Arrow table, a relation of DuckDB, or another
        frame in this process's memory: then without `partitions`, `drop_columns`, `rename_columns`
        and `job_options`.
        """
        batch = self._open
        common: dict[str, Any] = {
            "operator": operator,
            "keys": keys,
            "max_parallelism": max_parallelism,
            "deleted": deleted,
            "replace": replace,
            "ttl": ttl,
        }
        of_spark: dict[str, Any] = {
            "partitions": partitions,
            "drop_columns": drop_columns,
            "rename_columns": rename_columns,
            "job_options": job_options,
        }
        if is_spark_rows(changed):
            from dstl_dagster.spark.dataframes.state import write_state

            self._name_application(changed)
            report = write_state(changed, batch, progress=self._progress, **common, **of_spark)
        else:
            _require_spark_for(of_spark, changed)
            report = write_frame(changed, batch, **common)
        batch.add(report)
        return report

    def merge_state(
        self,
        changes: Any,
        *,
        operator: str,
        keys: Sequence[str],
        update: Mapping[str, str | Column],
        schema: StructType | str,
        delete: str | Column | None = None,
        max_parallelism: int | None = None,
        partitions: int | None = None,
        drop_columns: Collection[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        ttl: StateTtlConfig | None = None,
        job_options: Options | None = None,
    ) -> OperatorReport:
        """Merge rows, one per key, into the state of `operator` (see `dstl_dagster.spark.merge_state`).

        Rows that are no DataFrame of Spark: as for `write_state`; the rules are text then.
        """
        batch = self._open
        common: dict[str, Any] = {
            "operator": operator,
            "keys": keys,
            "update": update,
            "schema": schema,
            "delete": delete,
            "max_parallelism": max_parallelism,
            "ttl": ttl,
        }
        of_spark: dict[str, Any] = {
            "partitions": partitions,
            "drop_columns": drop_columns,
            "rename_columns": rename_columns,
            "job_options": job_options,
        }
        if is_spark_rows(changes):
            from dstl_dagster.spark.dataframes.merge import merge_state

            self._name_application(changes)
            report = merge_state(changes, batch, progress=self._progress, **common, **of_spark)
        else:
            _require_spark_for(of_spark, changes)
            report = merge_frame(changes, batch, **common)
        batch.add(report)
        return report

    def write_files(
        self,
        rows: DataFrame,
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
    ) -> tuple[FileReport, ...]:
        """Write files that appear with this checkpoint (see `dstl_dagster.spark.write_files`).

        `job_options`: of this call, on top of the job's.
        """
        if not is_spark_rows(rows):
            raise InvalidInputError(
                f"write_files takes a DataFrame of Spark, not a {type(rows).__name__}: write other rows "
                "through a GSRecoverableWriter of this attempt, and `add` its committer to the batch"
            )
        from dstl_dagster.spark.dataframes.files import write_files

        batch = self._open
        self._name_application(rows)
        reports = write_files(
            rows,
            batch,
            uri,
            format=format,
            single_file=single_file,
            partition_by=partition_by,
            max_records_per_file=max_records_per_file,
            mode=mode,
            success=success,
            options=options,
            job_options=self._coordinator.job_options.with_call(job_options),
            progress=self._progress,
        )
        for report in reports:
            batch.add(report)
        return reports

    def _name_application(self, rows: DataFrame) -> None:
        """Once. A client of Spark Connect does not know it."""
        context = getattr(rows.sparkSession, "sparkContext", None)
        if self._application is not None and context is not None:
            self._application(context.applicationId, context.uiWebUrl or "its UI is off (spark.ui.enabled)")
            self._application = None

    def add(self, report: OperatorReport | FileReport | GSRecoverableWriterCommitter) -> None:
        """Add to this batch what something other than Spark made durable under `attempt`.

        State changes are written with `FsStateChangelogStorage` below
        `attempt.names.changelog_base_path(attempt.attempt)`, and the components of a file with
        `GSRecoverableWriter(store, attempt=attempt.attempt)`; in Dagster the resources' `storage` and
        `writer` do so. A committer stands for its file. Step 4 checks both against the store.

        Raises: ConflictError (kind `already_applied`); InvalidInputError for any other type.
        """
        batch = self._open
        if isinstance(report, GSRecoverableWriterCommitter):
            report = FileReport(report.recoverable, report.components)
        batch.add(report)

    def move_position(self, source: str, position: Any) -> None:
        """Set the position of `source` once this batch is complete: any plain JSON value."""
        if self._batch is None:  # they may be set before
            self._positions[source] = position
        else:
            self._open.move_position(source, position)

    def describe(self, user_metadata: str) -> None:
        """Set what the checkpoint says beside its data, such as a ticket: up to 4 KiB of text.

        Lists of checkpoints, Spark's table of them and Dagster show it. Raises: InvalidInputError.
        """
        self._open.describe(user_metadata)

    @property
    def _open(self) -> Batch:
        """Raises: ConflictError (kind `already_applied`); InvalidInputError before the block; ClosedError
        after it.
        """
        if self._applied is not None:
            raise ConflictError(
                f"batch {str(self._key)!r} is already in checkpoint {self.already_in}: write nothing for it",
                kind=ErrorKind.ALREADY_APPLIED,
            )
        begun = self._begun
        if self._has_ended:
            raise ClosedError(
                "the batch has ended with its `with` block, and what is written now would be in no "
                "checkpoint: write inside of the block"
            )
        return begun

    @property
    def _begun(self) -> Batch:
        """Raises: InvalidInputError before the block."""
        if self._batch is None:
            raise InvalidInputError("use the batch in a `with` block: its attempt opens on entering")
        return self._batch


def _require_spark_for(arguments: Mapping[str, Any], rows: object) -> None:
    for name, value in arguments.items():
        if value:
            raise InvalidInputError(
                f"{name} is for a DataFrame of Spark, not for a {type(rows).__name__}: leave it out, or make "
                "a DataFrame of Spark of these rows"
            )
