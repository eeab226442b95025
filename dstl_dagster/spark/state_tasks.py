"""What a Spark task does for keyed state: write one range of key groups, or read some.

Owns the work inside a task, and nothing on the driver (`state`). Both jobs are frozen values that carry
all a task needs; results are rows of JSON, or Arrow batches. Imports neither pyspark nor Dagster.

A task ends only when what it wrote is durable: a Python worker that Spark cancels is killed without a
`finally`, so nothing may be left to a later moment. What a killed or repeated task wrote is named after the
attempt and in no report; clean-up finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogWriter
from dstl_dagster.checkpoint import Attempt
from dstl_dagster.checkpoint.keyed_state import KeyedState, folded
from dstl_dagster.errors import InternalError, InvalidInputError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.settings.changelog import FsStateChangelogOptions
from dstl_dagster.spark.outcomes import outcome_batch, refusal_batch
from dstl_dagster.state import ChangeEncoder, EncodedChanges, StateSchema
from dstl_dagster.storage import open_store

__all__ = ["ReadStateTask", "WriteStateTask", "task_options"]

_OUTPUT_ROWS = 16 * 1024
_MIB = 1 << 20


def task_options() -> FsStateChangelogOptions:
    """The options of a changelog that one task writes in one go.

    Unlike upstream's defaults they suit a batch: larger files, a time-out that a busy machine does not
    meet, no wait for other writers to share a file (a task is alone in its process).
    """
    return FsStateChangelogOptions(
        compression="zstd",
        preemptive_persist_threshold_in_bytes=16 * _MIB,
        batch_persist_size_threshold_bytes=16 * _MIB,
        batch_persist_delay=timedelta(0),
        num_upload_threads=2,
        upload_timeout=timedelta(seconds=60),
    )


@dataclass(frozen=True)
class WriteStateTask:
    """Appends the changed rows of one range of key groups, and gives back one handle.

    Called by `mapInArrow` with the rows' batches: the given columns, whether the row is a tombstone, and
    its key group. They are known by place, because Spark does not find every name again. Gives one outcome
    with `handle`, `upserts` and `deletes`; none where there are no rows.

    Attributes:
        columns: the names of the given columns, in the batches' order.
        schema: the state's, which may have more.
        ranges: of all tasks; the rows say which one is this task's.
    """

    attempt: Attempt
    operator: str
    columns: tuple[str, ...]
    schema: StateSchema
    ranges: tuple[KeyGroupRange, ...]
    options: FsStateChangelogOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            outcome = self._write(batches)
        except InvalidInputError as error:
            # The same rows are wrong again on a retry: the driver is told instead of four tasks failing.
            yield refusal_batch(error)
            return
        if outcome is not None:
            yield outcome_batch(outcome)

    def _write(self, batches: Iterator[pa.RecordBatch]) -> dict[str, Any] | None:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return None
        key_groups = self._own_range(first)
        encoder = ChangeEncoder(self.schema)
        with (
            closing(open_store(self.attempt.store_uri)) as store,
            closing(self._storage(store)) as storage,
            storage.create_writer(self.operator, key_groups) as writer,
        ):
            writer.append_meta(self.schema.to_bytes())
            _append(writer, self._encoded(encoder, first))
            for batch in batches:
                _append(writer, self._encoded(encoder, batch))
            _append(writer, encoder.finish())
            persisted = writer.persist(writer.initial_sequence_number(), self.attempt.checkpoint_id).result()
        handle = persisted.job_manager_owned_snapshot
        if handle is None:
            raise InternalError("changes were appended, but persist gave no handle")
        return {"handle": handle.to_json(), "upserts": encoder.upserts, "deletes": encoder.deletes}

    def _storage(self, store: Any) -> FsStateChangelogStorage:
        base_path = self.attempt.names.changelog_base_path(self.attempt.attempt)
        return FsStateChangelogStorage(self.attempt.job, store, self.options, base_path=base_path)

    def _own_range(self, batch: pa.RecordBatch) -> KeyGroupRange:
        """By the rows and not by the task's number, which Spark promises nothing about."""
        key_group = batch.column(-1)[0].as_py()
        return next(each for each in self.ranges if each.contains(key_group))

    def _encoded(self, encoder: ChangeEncoder, batch: pa.RecordBatch) -> EncodedChanges | None:
        *given, deleted, key_groups = batch.columns
        return encoder.add(pa.record_batch(given, list(self.columns)), key_groups, deleted)


def _append(writer: FsStateChangelogWriter, encoded: EncodedChanges | None) -> None:
    if encoded is not None:
        writer.append_batch(encoded.key_groups, encoded.changes)


@dataclass(frozen=True)
class ReadStateTask:
    """Reads the state of some ranges of key groups: one for each row that it is called with.

    Called by `mapInArrow` with batches of one integer column, which counts in `ranges`.

    Attributes:
        schema: what the rows look like.
        handles: of all changes in log order.
    """

    store_uri: str
    job: str
    checkpoint_id: int
    operator: str
    schema: StateSchema
    ranges: tuple[KeyGroupRange, ...]
    handles: tuple[ChangelogStateHandle, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from self._read(self.ranges[index])

    def _read(self, key_groups: KeyGroupRange) -> Iterator[pa.RecordBatch]:
        with closing(open_store(self.store_uri)) as store:
            state = KeyedState(store, self.job, self.checkpoint_id, self.operator, self.schema, self.handles)
            with state.reading() as reader:
                fold = folded(reader, self.handles, self.schema, key_groups)
        for table in fold.tables():
            yield from table.to_batches(max_chunksize=_OUTPUT_ROWS)
