"""The work of a Spark task that merges changes into keyed state: look up its keys, then write what changed.

Owns the work inside both tasks. Does not own the plan between them (`merge`), where Spark evaluates the
user's expressions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dstl_dagster.changelog import process_cache
from dstl_dagster.errors import DstlError
from dstl_dagster.keyed import StateAt, beside, changed_rows
from dstl_dagster.spark.dataframes.state_tasks import WriteStateTask
from dstl_dagster.spark.errors import raise_refusal, refusal
from dstl_dagster.spark.stores import ReadCost, task_store
from dstl_dagster.state import cut

_OUTPUT_ROWS = 16 * 1024
_LOOKED_UP = ("new", "old", "refused", "key_group")


@dataclass(frozen=True)
class LookUpTask:
    """Puts the state's row beside each changed row; called by `mapInArrow`.

    Takes (`new`: struct of a changed row, `key_group`) and yields (`new`, `old`: the state's row or null,
    `refused`, `key_group`). Reads as `KeyedState.rows`. Buffers all of its rows, and the
    state's rows of their keys. An error that another try would meet again is a text in `refused`, beside the
    first row: `MergeStateTask` passes it on.

    Attributes:
        state: at the parent checkpoint, with the schema of the checkpoint being written.
        reads: counts what is requested.
    """

    state: StateAt
    reads: ReadCost | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = [each for each in batches if each.num_rows]
        if not given:
            return
        rows, refused = pa.Table.from_batches(given), None
        schema, keys = self.state.schema, self._keys(rows.column("new"))
        try:
            found = beside(schema, self._state(keys), keys)
        except DstlError as error:
            rows, refused = rows.slice(0, 1), json.dumps(refusal(error))
            found = beside(schema, schema.columns.empty_table(), keys.slice(0, 1))
        fields = list(schema.columns)
        old = found.old.select([field.name for field in fields])
        for start, stop in cut(pa.Table.from_arrays([*rows.columns, *old.columns], [""] * (2 + len(fields)))):
            columns = [each.combine_chunks() for each in old.slice(start, stop - start).columns]
            unknown = pa.array(~found.in_state[start:stop])
            piece = rows.slice(start, stop - start)
            looked_up = [
                piece.column("new"),
                pa.StructArray.from_arrays(columns, fields=fields, mask=unknown),
                pa.array([refused] * (stop - start), pa.string()),
                piece.column("key_group"),
            ]
            whole = pa.table(looked_up, list(_LOOKED_UP)).combine_chunks()
            yield from whole.to_batches(max_chunksize=_OUTPUT_ROWS)

    def _keys(self, new: pa.ChunkedArray) -> pa.Table:
        types = {name: self.state.schema.columns.field(name).type for name in self.state.schema.key_columns}
        at = {name: new.type.get_field_index(name) for name in types}
        return pa.table({name: pc.struct_field(new, at[name]).cast(kind) for name, kind in types.items()})

    def _state(self, keys: pa.Table) -> pa.Table:
        with task_store(self.state.store_uri, self.reads, self.state.options.files) as store:
            return self.state.opened(store, process_cache()).rows(keys)


@dataclass(frozen=True)
class MergeStateTask(WriteStateTask):
    """Appends the merged rows that differ from the state; called by `mapInArrow`.

    Takes the state's columns, then whether the row is deleted, `old`, `refused`, `key_group`.
    """

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return super().__call__(changed for changed in map(self._changed, batches) if changed.num_rows)

    def _changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        *columns, deleted, old, refused, key_groups = batch.columns
        if batch.num_rows and refused[0].is_valid:
            raise_refusal([json.loads(refused[0].as_py())])
        in_state = old.is_valid().to_numpy(zero_copy_only=False)
        to_delete = deleted.fill_null(False).to_numpy(zero_copy_only=False)
        fields = [self.schema.columns.field(name) for name in self.columns]
        before, after = self._typed(old.flatten(), fields), self._typed(columns, fields)
        changed = changed_rows(before, after, in_state, to_delete)
        merged = pa.record_batch([*columns, deleted, key_groups], [*self.columns, "deleted", "key_group"])
        return merged.filter(pa.array(changed))

    @staticmethod
    def _typed(columns: list[pa.Array], fields: list[pa.Field]) -> pa.Table:
        typed = [column.cast(field.type) for column, field in zip(columns, fields, strict=True)]
        return pa.table(typed, schema=pa.schema(fields))
