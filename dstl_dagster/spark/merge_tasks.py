"""What a Spark task does to merge changes into keyed state: look its keys up, and write what became other.

Owns the work inside both tasks. Does not own the plan between them (`merge`), where Spark evaluates the
user's expressions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import StateAt, paired_rows
from dstl_dagster.spark.state_tasks import WriteStateTask
from dstl_dagster.state import same_rows
from dstl_dagster.storage import open_store

__all__ = ["LookUpTask", "MergeStateTask", "touched_ranges"]

_OUTPUT_ROWS = 16 * 1024


@dataclass(frozen=True)
class LookUpTask:
    """Puts the state's row beside each changed row; called by `mapInArrow`.

    Takes (`new`: struct of a changed row, `key_group`). Gives these, with (`old`: the state's row or null,
    `repeated`) between. Reads the key groups of its rows alone. Holds its rows.

    Attributes:
        state: at the parent checkpoint, with the schema that it will have.
    """

    state: StateAt

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = [batch for batch in batches if batch.num_rows]
        if not given:
            return
        rows = pa.Table.from_batches(given).combine_chunks()
        new = rows.column(0).combine_chunks()
        new = new.chunk(0) if isinstance(new, pa.ChunkedArray) else new
        keys = self._keys(new)
        state = self._state(rows.column(1).to_numpy())
        pairs = paired_rows(self.state.schema, state, keys)
        pairs = pairs.filter(pairs.column("after_max").is_valid())
        at = np.zeros(len(new), np.int64)
        found = np.zeros(len(new), np.bool_)
        with_state = pairs.filter(pairs.column("before_max").is_valid())
        at[with_state.column("after_max").to_numpy()] = with_state.column("before_max").to_numpy()
        found[with_state.column("after_max").to_numpy()] = True
        # A key of two rows is an error, which the writing task words: it must see them all then.
        repeated = pairs.num_rows < len(new)
        old = self._old_rows(state, at, found)
        flags = pa.array(np.full(len(new), repeated))
        looked_up = pa.table([new, old, flags, rows.column(1)], ["new", "old", "repeated", "key_group"])
        yield from looked_up.to_batches(max_chunksize=_OUTPUT_ROWS)

    def _keys(self, new: pa.StructArray) -> pa.Table:
        types = {name: self.state.schema.columns.field(name).type for name in self.state.schema.key_columns}
        return pa.table({name: new.field(name).cast(kind) for name, kind in types.items()})

    def _state(self, key_groups: npt.NDArray[np.int32]) -> pa.Table:
        tables = [self.state.schema.columns.empty_table()]
        with closing(open_store(self.state.store_uri)) as store:
            state = self.state.opened(store)
            for each in touched_ranges(key_groups):
                tables += state.tables(each)
        return pa.concat_tables(tables)

    def _old_rows(
        self, state: pa.Table, at: npt.NDArray[np.int64], found: npt.NDArray[np.bool_]
    ) -> pa.StructArray:
        rows = state.take(pa.array(at, mask=~found)).combine_chunks()
        fields = list(self.state.schema.columns)
        columns = [rows.column(field.name) for field in fields]
        arrays = [each.chunk(0) if each.num_chunks else each.combine_chunks() for each in columns]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~found))


def touched_ranges(key_groups: npt.NDArray[np.int32]) -> list[KeyGroupRange]:
    """Ranges that hold these key groups. Pure.

    Where half of a stretch is touched it is read in one go: what is not needed costs less than opening each
    file again for each gap.
    """
    touched = np.unique(key_groups)
    first, last = int(touched[0]), int(touched[-1])
    if 2 * len(touched) > last - first:
        return [KeyGroupRange.of(first, last)]
    breaks = np.flatnonzero(np.diff(touched) > 1)
    starts, ends = np.append(0, breaks + 1), np.append(breaks, len(touched) - 1)
    return [
        KeyGroupRange.of(int(touched[start]), int(touched[end]))
        for start, end in zip(starts, ends, strict=True)
    ]


@dataclass(frozen=True)
class MergeStateTask(WriteStateTask):
    """Appends those of the merged rows that differ from the state; called by `mapInArrow`.

    Takes the state's columns, then whether the row is deleted, `old`, `repeated` and the key group.
    """

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return super().__call__(changed for changed in map(self._changed, batches) if changed.num_rows)

    def _changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        *columns, deleted, old, repeated, key_groups = batch.columns
        if batch.num_rows and repeated[0].as_py():
            return pa.record_batch([*columns, deleted, key_groups], [*self.columns, "deleted", "key_group"])
        known = old.is_valid().to_numpy(zero_copy_only=False)
        gone = deleted.fill_null(False).to_numpy(zero_copy_only=False)
        types = [self.schema.columns.field(name) for name in self.columns]
        target = pa.schema(types)
        is_now = pa.table([each.cast(f.type) for each, f in zip(columns, types, strict=True)], schema=target)
        was = pa.table(
            [old_column.cast(f.type) for old_column, f in zip(old.flatten(), types, strict=True)],
            schema=target,
        )
        other = np.where(gone, known, ~known | ~same_rows(was, is_now))
        kept = pa.record_batch([*columns, deleted, key_groups], [*self.columns, "deleted", "key_group"])
        return kept.filter(pa.array(other))
