"""Replacing rows of keyed state inside a Spark task: it walks through its range, and writes what differs.

Owns the work inside a task. Does not own the plan (`state`), or the rule (`keyed.replace`). Imports no
pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from dstl_dagster.changelog import process_cache
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import Grouped, KeyedState, Replacement, Scope, StateAt, replacements
from dstl_dagster.spark.dataframes.state_tasks import WriteStateTask
from dstl_dagster.spark.stores import ReadCost, task_store
from dstl_dagster.state import cut


@dataclass(frozen=True)
class ReplaceStateTask(WriteStateTask):
    """Appends what the rows of one range of key groups change in the state; called by `mapInArrow`.

    Takes the given columns, a flag, and the key group, ascending by that. The flag is null in one row, which
    only says which range it is.

    Attributes:
        given: the names of the columns that come.
        state: at the parent checkpoint, with the schema of the one being written; `None`: there is none.
        scope: what is replaced; `None`: everything.
        reads: counts what is requested.
    """

    given: tuple[str, ...] = ()
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
        columns = dict(zip(self.given, given, strict=True))
        rows = [
            columns[field.name].cast(field.type)
            if field.name in columns
            else pa.nulls(kept.num_rows, field.type)
            for field in self.schema.columns
        ]
        return Grouped(pa.table(rows, schema=self.schema.columns), groups.to_numpy().astype(np.int32))

    def _to_write(
        self, state: KeyedState | None, own: KeyGroupRange, new: Iterator[Grouped]
    ) -> Iterator[pa.RecordBatch]:
        what = f"state of operator {self.operator!r}"
        for found in replacements(self.schema, state, own, new, self.scope, what):
            yield from self._batches(found)

    def _batches(self, found: Replacement) -> Iterator[pa.RecordBatch]:
        """Of a tombstone, what is no key is null."""
        columns = [
            found.rows.column(name)
            if name in found.rows.column_names
            else pa.nulls(found.rows.num_rows, self.schema.columns.field(name).type)
            for name in self.columns
        ]
        rows = pa.table(
            [*columns, found.deleted, pa.array(found.groups)], [*self.columns, "deleted", "key_group"]
        )
        for start, stop in cut(rows):
            yield from rows.slice(start, stop - start).combine_chunks().to_batches()
