"""The work of a Spark task for keyed state: write, read or replace a range of key groups.

Owns the work inside a task; the driver's plan is in `state`. Both tasks are frozen values that carry all they
need, and return rows of JSON or Arrow record batches. Imports neither pyspark nor Dagster.

A task ends only when what it wrote is durable, or is in its outcome: a Python worker that Spark cancels is
killed without running `finally`, so nothing may be put off. What a killed or repeated task wrote carries the
attempt in its name and is in no report; clean-up finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from dstl_dagster.changelog import process_cache
from dstl_dagster.errors import DstlError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import (
    Grouped,
    KeyedState,
    Replacement,
    Scope,
    StateAt,
    changes_to_json,
    held_if_small,
    open_attempt_changelog,
    replacements,
    replayed,
    write_range,
)
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark.dataframes.outcomes import outcome_row
from dstl_dagster.spark.errors import refusal
from dstl_dagster.spark.stores import COST, ReadCost, counted_store, task_store
from dstl_dagster.state import ChangeEncoder, EncodedChanges, NewestTime, StateSchema, cut
from dstl_dagster.storage import CostMeter
from dstl_dagster.timeline import Attempt

_OUTPUT_ROWS = 16 * 1024


@dataclass(frozen=True)
class WriteStateTask:
    """Appends the changed rows of one range of key groups, and returns one handle; or few changes themselves,
    which the driver puts into a file with others.

    Called by `mapInArrow` with record batches of the columns passed, whether the row is a tombstone, and its
    key group. Columns go by position, because Spark cannot resolve every name. Yields one outcome with
    `handle` or `key_groups` and `changes`, and `upserts`, `deletes`, `newest_us` and `cost`; none if there
    are no rows.

    Attributes:
        columns: the names of the columns passed, in the order of the record batches.
        schema: the state's, which may have more columns.
        ranges: of all tasks; the rows' key groups determine which one is this task's.
        options: of the job.
        time_column: whose newest time the watermark needs (`newest_us`); `None`: none is looked for.
    """

    attempt: Attempt
    operator: str
    columns: tuple[str, ...]
    schema: StateSchema
    ranges: tuple[KeyGroupRange, ...]
    options: JobOptions
    time_column: str | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            outcome = self._write(batches)
        except DstlError as error:
            outcome = refusal(error)
        if outcome is not None:
            yield outcome_row(outcome)

    def _write(self, batches: Iterator[pa.RecordBatch]) -> dict[str, Any] | None:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return None
        key_groups = self._own_range(first)
        encoder, meter = ChangeEncoder(self.schema), CostMeter()
        newest = NewestTime(self.time_column)
        small, changes = held_if_small(
            self._changes(encoder, newest, first, batches), key_groups, self.options
        )
        if small is not None:
            written: dict[str, Any] = {"key_groups": key_groups.to_json(), "changes": changes_to_json(small)}
        else:
            with (
                counted_store(self.attempt.store_uri, meter, self.options.files) as store,
                open_attempt_changelog(store, self.attempt, self.options) as storage,
            ):
                handle = write_range(storage, self.attempt, self.operator, self.schema, key_groups, changes)
            written = {"handle": replace(handle, slices=encoder.slices or 1).to_json()}
        return {
            **written,
            "upserts": encoder.upserts,
            "deletes": encoder.deletes,
            "null_keys": encoder.null_keys,
            "newest_us": newest.us,
            COST: meter.cost.to_json(),
        }

    def _changes(
        self,
        encoder: ChangeEncoder,
        newest: NewestTime,
        first: pa.RecordBatch,
        rest: Iterator[pa.RecordBatch],
    ) -> Iterator[EncodedChanges | None]:
        for batch in chain([first], rest):
            *given, deleted, key_groups = batch.columns
            rows = pa.record_batch(given, list(self.columns))
            newest.add(rows, deleted)
            yield encoder.add(rows, key_groups, deleted)
        yield encoder.finish()

    def _own_range(self, batch: pa.RecordBatch) -> KeyGroupRange:
        """By the rows, and not by the task's number: Spark does not promise which task gets which range."""
        key_group = batch.column(-1)[0].as_py()
        return next(each for each in self.ranges if each.contains(key_group))


@dataclass(frozen=True)
class ReadStateTask:
    """Reads the state of some ranges of key groups, one for each row that it is called with.

    Called by `mapInArrow` with record batches of one integer column: indices into `ranges`.

    Attributes:
        reads: counts what is requested.
        scope: only its rows; `None`: all.
    """

    state: StateAt
    ranges: tuple[KeyGroupRange, ...]
    reads: ReadCost | None = None
    scope: Scope | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from self._read(self.ranges[index])

    def _read(self, key_groups: KeyGroupRange) -> Iterator[pa.RecordBatch]:
        state = self.state
        with (
            task_store(state.store_uri, self.reads, state.options.files) as store,
            state.opened(store, process_cache()).reading() as reader,
        ):
            replay = replayed(reader, state, [key_groups])
        for table in replay.tables():
            kept = table if self.scope is None else table.filter(self.scope.holds(table))
            yield from kept.to_batches(max_chunksize=_OUTPUT_ROWS)


@dataclass(frozen=True)
class ReplaceStateTask(WriteStateTask):
    """Appends what the rows of one range of key groups change in the state; called by `mapInArrow`.

    Takes the columns passed, a flag, and the key group, ascending by that. The flag is null in one row, which
    only says which range it is.

    Attributes:
        state: at the parent checkpoint, with the schema of the one being written; `None`: there is none.
        scope: what is replaced; `None`: everything.
        reads: counts what is requested.
    """

    state: StateAt | None = None
    scope: Scope | None = None
    reads: ReadCost | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return super().__call__(self._changed(batches))

    def _changed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Record batches as `WriteStateTask` takes them."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        own, new = self._own_range(first), map(self._new_rows, chain([first], batches))
        if self.state is None:
            yield from self._to_write(None, own, new)
            return
        with task_store(self.state.store_uri, self.reads, self.state.options.files) as store:
            yield from self._to_write(self.state.within(own).opened(store, process_cache()), own, new)

    def _new_rows(self, batch: pa.RecordBatch) -> Grouped:
        """Without the row that says which range it is; columns as in the schema."""
        kept = batch.filter(batch.column(-2).is_valid())
        *given, _, groups = kept.columns
        rows = self.schema.conformed(pa.record_batch(given, list(self.columns)))
        return Grouped(rows, groups.to_numpy().astype(np.int32))

    def _to_write(
        self, state: KeyedState | None, own: KeyGroupRange, new: Iterator[Grouped]
    ) -> Iterator[pa.RecordBatch]:
        what = f"state of operator {self.operator!r}"
        for found in replacements(self.schema, state, own, new, self.scope, what):
            yield from self._batches(found)

    def _batches(self, found: Replacement) -> Iterator[pa.RecordBatch]:
        """Of the columns passed: the others are null. Of a tombstone, what is no key is null."""
        columns = self.schema.conformed(found.rows).select(self.columns).columns
        rows = pa.table(
            [*columns, found.deleted, pa.array(found.groups)], [*self.columns, "deleted", "key_group"]
        )
        for start, stop in cut(rows):
            yield from rows.slice(start, stop - start).combine_chunks().to_batches()
