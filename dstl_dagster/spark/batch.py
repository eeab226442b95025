"""One batch of a job, on the Spark driver: steps 1 to 3 of a checkpoint around a user's own code.

Owns the life of an attempt while its work is done: opened, reported, or aborted. Does not own writing
state (`state`) or files (`files`), nor what comes after step 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from dstl_dagster.checkpoint import (
    Attempt,
    AttemptReport,
    Checkpoint,
    CheckpointCoordinator,
    FileReport,
    OperatorReport,
    store_report,
)
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import ConflictError, DstlError, InvalidInputError
from dstl_dagster.spark.bases import with_due_bases
from dstl_dagster.spark.files import write_files
from dstl_dagster.spark.merge import merge_state
from dstl_dagster.spark.progress import Progress
from dstl_dagster.spark.state import read_state, write_state
from dstl_dagster.timeline.completed import find_completed
from dstl_dagster.timeline.records import Completed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["CheckpointBatch"]

log = logging.getLogger(__name__)


class CheckpointBatch:
    """A context manager: enter to open the attempt, leave to store what its tasks made.

    Leaving normally ends step 3 (everything written is durable and reported, nothing is visible yet).
    Where the log of an operator has grown long enough (`CheckpointOptions.materialize_*`), leaving also
    writes a base of it. Leaving by an exception aborts the attempt. If the process dies instead, the next
    trigger of the same owner fences it. One thread.

    Args:
        coordinator: the job's.
        idempotency_key: names the batch. If a completed checkpoint holds it already, `already_in` is that
            checkpoint's id, and there is nothing to write.
        take_over: end another owner's open attempt.
        check: called with the checkpoint that the batch builds on (`None`: the first) before the attempt
            opens; it raises where the batch must not run now. The attempt opens on exactly that checkpoint.
        progress: called with (tasks that have ended, tasks known of) while a write runs.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        *,
        idempotency_key: str | None = None,
        take_over: bool = False,
        check: Callable[[Checkpoint | None], None] | None = None,
        clock: Clock | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._key = idempotency_key
        self._take_over = take_over
        self._check = check
        self._clock = clock or SystemClock()
        self._progress = progress
        self._operators: list[OperatorReport] = []
        self._files: list[FileReport] = []
        self._positions: dict[str, Any] = {}
        self._attempt: Attempt | None = None
        self._parent: Checkpoint | None = None
        self._already_in: int | None = None
        self._started_seconds = 0.0

    @property
    def already_in(self) -> int | None:
        """The completed checkpoint that holds this batch; `None` where the batch is new."""
        return self._already_in

    @property
    def attempt(self) -> Attempt:
        """The attempt that was opened, or that completed the batch earlier."""
        if self._attempt is None:
            raise InvalidInputError("use the batch in a `with` block: its attempt opens on entering")
        return self._attempt

    @property
    def reference(self) -> dict[str, Any]:
        """What the next step is called with: the attempt as plain JSON."""
        return self.attempt.to_json()

    @property
    def parent(self) -> Checkpoint | None:
        """The checkpoint that this batch builds on; `None` for a job's first."""
        return self._parent

    def __enter__(self) -> CheckpointBatch:
        self._started_seconds = self._clock.monotonic_seconds()
        applied = None if self._key is None else self._coordinator.applied(self._key)
        if applied is not None:
            # By the timeline alone: the checkpoint may have been cleaned up since, its batch is done still.
            self._remember(find_completed(self._coordinator.timeline, applied))
            return self
        self._coordinator.compose_commit()
        self._parent = self._coordinator.latest()
        if self._check is not None:
            self._check(self._parent)
        self._attempt = self._coordinator.trigger(
            self._take_over,
            idempotency_key=self._key,
            expected_parent=None if self._parent is None else self._parent.checkpoint_id,
        )
        # A new batch goes on where the sources stood, but for those that it moves.
        before = {} if self._parent is None else self._parent.positions
        self._positions = {**before, **self._positions}
        log.info(
            "step 1 trigger: checkpoint %d, attempt %s", self._attempt.checkpoint_id, self._attempt.attempt
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if self._already_in is not None:
            return False
        if kind is None:
            try:
                self._operators = with_due_bases(
                    self._coordinator, self.attempt, self._parent, self._operators
                )
                self._report()
            except DstlError as failure:
                self._abort(f"{type(failure).__name__}: {failure}")
                raise
        else:
            self._abort(f"{kind.__name__}: {error}")
        return False

    def read_state(
        self, spark: SparkSession, operator: str, *, schema: StructType | str | None = None
    ) -> DataFrame:
        """The state of `operator` at the parent checkpoint; empty, with `schema`, where there is none."""
        return read_state(spark, self._parent, operator, store=self._coordinator.store, schema=schema)

    def write_state(
        self,
        changed: DataFrame,
        *,
        operator: str,
        keys: Sequence[str],
        max_parallelism: int | None = None,
        deleted: str | None = None,
    ) -> OperatorReport:
        """Append the changed rows of `operator` to the changelog (see `dstl_dagster.spark.write_state`)."""
        self._require_new()
        report = write_state(
            changed,
            self.attempt,
            operator=operator,
            keys=keys,
            max_parallelism=max_parallelism,
            deleted=deleted,
            progress=self._progress,
        )
        self.add(report)
        return report

    def merge_state(
        self,
        changes: DataFrame,
        *,
        operator: str,
        keys: Sequence[str],
        update: Mapping[str, str | Column],
        schema: StructType | str,
        delete: str | Column | None = None,
        max_parallelism: int | None = None,
    ) -> OperatorReport:
        """Merge rows, one a key, into the state of `operator` (see `dstl_dagster.spark.merge_state`)."""
        self._require_new()
        report = merge_state(
            changes,
            self.attempt,
            operator=operator,
            keys=keys,
            update=update,
            schema=schema,
            delete=delete,
            max_parallelism=max_parallelism,
            progress=self._progress,
        )
        self.add(report)
        return report

    def write_files(
        self,
        rows: DataFrame,
        uri: str,
        *,
        format: str = "jsonl",  # noqa: A002 - Spark's own word
        single_file: bool | None = None,
        options: Mapping[str, str] | None = None,
    ) -> tuple[FileReport, ...]:
        """Write files that appear with this checkpoint (see `dstl_dagster.spark.write_files`)."""
        self._require_new()
        reports = write_files(
            rows,
            uri,
            attempt=self.attempt,
            format=format,
            single_file=single_file,
            options=options,
            file_options=self._coordinator.file_options,
            progress=self._progress,
        )
        for report in reports:
            self.add(report)
        return reports

    def add(self, report: OperatorReport | FileReport) -> None:
        """Take into this batch what something other than Spark made durable under `attempt`.

        Changes of state: written with `FsStateChangelogStorage` below
        `attempt.names.changelog_base_path(attempt.attempt)`. A file: its components, written with
        `GSRecoverableWriter(store, attempt=attempt.attempt)`. Step 4 checks both against the store.

        Raises: ConflictError (kind `already_applied`), InvalidInputError where it is neither.
        """
        self._require_new()
        match report:
            case OperatorReport():
                self._operators.append(report)
            case FileReport():
                self._files.append(report)
            case _:
                raise InvalidInputError(f"an OperatorReport or a FileReport is expected, not {report!r}")

    def move_position(self, source: str, position: Any) -> None:
        """Say how far `source` is read once this batch is complete: any plain JSON value."""
        self._positions[source] = position

    def _require_new(self) -> None:
        if self._already_in is not None:
            raise ConflictError(
                f"batch {self._key!r} is already in checkpoint {self._already_in}: write nothing for it",
                kind="already_applied",
            )

    def _remember(self, completed: Completed) -> None:
        self._already_in = completed.checkpoint_id
        self._attempt = Attempt(
            checkpoint_id=completed.checkpoint_id,
            attempt=completed.attempt,
            parent=completed.parent,
            job=self._coordinator.job,
            store_uri=self._coordinator.store.uri,
            idempotency_key=completed.idempotency_key,
        )
        log.info("batch %r is already in checkpoint %d", self._key, self._already_in)

    def _report(self) -> None:
        report = AttemptReport(
            operators=tuple(self._operators),
            files=tuple(self._files),
            positions=self._positions,
            seconds=self._clock.monotonic_seconds() - self._started_seconds,
        )
        store_report(self._coordinator.store, self.attempt, report)
        log.info(
            "step 3 persist: %d operators and %d files of attempt %s are durable",
            len(report.operators),
            len(report.files),
            self.attempt.attempt,
        )

    def _abort(self, reason: str) -> None:
        if self._attempt is None:
            return
        try:
            self._coordinator.abort(self._attempt, reason)
        except DstlError as error:
            # The error that is on its way out matters more; the next trigger ends the attempt as well.
            log.warning("attempt %s was not aborted: %s", self._attempt.attempt, error)
