"""Rows of a state for the libraries that people read tables with: Arrow, pandas, Polars, DuckDB.

Owns which columns, key groups and rows are wanted, and in which form they are returned. Does not own reading
them (`keyed_state`), or which checkpoint they are of (`checkpoint`).

What a scan does not want is left out as early as is possible: key groups before anything is read, as they are
by filters that name whole keys; rows as soon as a part of the state is replayed; columns then. A changelog
holds whole rows, so fewer columns take as many requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.format import KeyGroupRange, common_ranges, merged_ranges
from dstl_dagster.keyed.documents.manifest import Manifest
from dstl_dagster.keyed.read.conditions import Scope, parsed_filters
from dstl_dagster.keyed.read.keyed_state import StateAt
from dstl_dagster.keyed.read.lookup import as_expression, key_groups_of_filters, with_lists
from dstl_dagster.settings import JobOptions, parse_names
from dstl_dagster.state import refuse_raw_text, text_as_bytes
from dstl_dagster.storage import ObjectStore, open_store

Filters: TypeAlias = pc.Expression | str | Sequence[Any]
"""A condition in SQL (`conditions`), an expression over columns; or, as in `pyarrow.parquet`, tuples such as
`("customer", "=", "ann")`, all of which must hold, or a list of such lists, one of which must."""

KeyGroups: TypeAlias = KeyGroupRange | Iterable[KeyGroupRange] | str
"""A range, several of them, or text such as `0-15,20`; both ends inclusive."""

_MOST_WHOLE = 2**53
"""Up to which floating point has every whole number."""

_RAW_TEXT = "name the column in `as_bytes` to read its bytes"


@dataclass(frozen=True)
class StateScan:
    """The rows of one operator at one checkpoint, in the form that is asked for. Lazy; thread-safe.

    Each reading method reads anew, the same rows in the same order. An object with the Arrow C stream
    interface, which DuckDB, Polars and others read as it is: `duckdb.sql("SELECT * FROM scan")`.

    Every reading method raises NotFoundError (kind `checkpoint_gone`) if clean-up deleted the checkpoint
    meanwhile, InvalidInputError for text that is not UTF-8, FormatError if stored bytes are
    damaged, UnavailableError.

    Attributes:
        at: the checkpoint, the operator, and where its state is stored.
        store: by which it is read, and which it does not close; `None`: opened for each read, by the URI.
    """

    at: StateAt
    _names: tuple[str, ...]
    _ranges: tuple[KeyGroupRange, ...] = field(repr=False)
    _where: pc.Expression | None = None
    _as_bytes: tuple[str, ...] = ()
    store: ObjectStore | None = field(default=None, repr=False, compare=False)
    _scope: Scope | None = None

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        manifest: Manifest,
        operator: str,
        options: JobOptions | None = None,
        *,
        columns: Sequence[str] | None = None,
        key_groups: KeyGroups | None = None,
        filters: Filters | None = None,
        as_bytes: Sequence[str] = (),
    ) -> StateScan:
        """The scan of a checkpoint's state. Arguments: as `jobs.read_state`. Reads manifests only.

        Raises: NotFoundError (kind `no_state`; a manifest is gone), InvalidInputError naming the argument.
        """
        at = StateAt.existing(store, manifest, operator, options)
        known = at.schema.columns.names
        names = known if columns is None else parse_names("columns", columns)
        raw = parse_names("as_bytes", as_bytes)
        for key, listed in (("columns", names), ("as_bytes", raw)):
            for name in listed:
                if name not in known:
                    raise InvalidInputError(
                        f"{key} names {name!r}, but operator {at.operator!r} has {', '.join(known)}"
                    )
        if len(set(names)) < len(names):
            raise InvalidInputError(f"columns names a column twice: {', '.join(names)}")
        ranges = _wanted_ranges(at, key_groups)
        where = None
        if isinstance(filters, str):
            filters = parsed_filters(filters, at.schema.columns)
        if filters is not None:
            filters = with_lists(filters)
            where = as_expression(filters, at.schema.columns)
            ranges = common_ranges(ranges, key_groups_of_filters(filters, at.schema))
        return cls(at, tuple(names), ranges, where, raw, store)

    @property
    def job(self) -> str:
        return self.at.job

    @property
    def checkpoint_id(self) -> int:
        return self.at.checkpoint_id

    @property
    def operator(self) -> str:
        return self.at.operator

    @property
    def key_groups(self) -> tuple[KeyGroupRange, ...]:
        """Those that are read, ascending and disjoint."""
        return self._ranges

    @property
    def schema(self) -> pa.Schema:
        """The columns, in Arrow's types."""
        columns = self.at.schema.columns
        found = [columns.field(name) for name in self._names]
        return pa.schema(
            [f.with_type(text_as_bytes(f.type)) if f.name in self._as_bytes else f for f in found]
        )

    def select(self, columns: Sequence[str]) -> StateScan:
        """The same rows with only these columns, in this order. Raises: InvalidInputError."""
        names = parse_names("columns", columns)
        unknown = [name for name in names if name not in self._names]
        if unknown:
            raise InvalidInputError(
                f"columns names {unknown[0]!r}, but this scan has {', '.join(self._names)}"
            )
        return replace(self, _names=names)

    def within(self, scope: Scope | None) -> StateScan:
        """The same columns of the rows that are in it; `None`: of all."""
        wanted = None if scope is None else scope.key_groups(self.at.schema)
        return replace(self, _scope=scope, _ranges=common_ranges(self._ranges, wanted))

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """A stream, read once: holds a part of the state in memory at a time (`KeyedState.ranges`)."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_arrow(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self._batches(), self.schema)

    def to_pandas(self) -> Any:
        """All rows as a `pandas.DataFrame`, in PyArrow's choice of types; but whole numbers beside nulls are
        objects where floating point, its choice, does not have them all. Raises: kind `not_installed`.
        """
        _required("pandas")
        rows = self.to_arrow()
        frame = rows.to_pandas()
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if any(map(_exceeds_doubles, column.chunks)):
                frame[name] = column.to_pandas(integer_object_nulls=True)
        return frame

    def to_polars(self) -> Any:
        """A `polars.LazyFrame`: columns and the number of rows that a query needs are asked of the scan, and
        its predicates are applied part by part. Raises: InvalidInputError (kind `not_installed`).
        """
        polars = _required("polars")
        plugins = import_module("polars.io.plugins")
        scan = self

        def batches(
            with_columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
        ) -> Iterator[Any]:
            del batch_size  # advice; a part of the state is in memory anyway
            wanted = list(scan._names if with_columns is None else with_columns)
            needed = dict.fromkeys([*wanted, *([] if predicate is None else predicate.meta.root_names())])
            left = n_rows
            for batch in scan.select(list(needed))._batches():
                rows = polars.DataFrame(batch if left is None else batch.slice(0, left))
                left = None if left is None else left - len(rows)
                yield (rows if predicate is None else rows.filter(predicate)).select(wanted)
                if left == 0:
                    return

        schema = polars.DataFrame(self.schema.empty_table()).schema
        return plugins.register_io_source(batches, schema=schema)

    def to_duckdb(self, connection: Any = None) -> Any:
        """All rows as a `duckdb.DuckDBPyRelation`. A query of the scan by its name holds a part at a time.

        `connection`: of DuckDB; by default the module's own. Raises: InvalidInputError (`not_installed`).
        """
        # Not of a stream, of which a relation has rows once, and none afterwards.
        return (connection or _required("duckdb")).from_arrow(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        with ExitStack() as stack:
            store = self.store
            if store is None:
                files = self.at.options.files
                store = stack.enter_context(closing(open_store(self.at.store_uri, files)))
            for table in self.at.opened(store).tables(self._ranges) if self._ranges else ():
                kept = table if self._where is None else table.filter(self._where)
                kept = kept if self._scope is None else kept.filter(self._scope.holds(kept))
                rows = kept.select(list(self._names)).cast(schema)
                refuse_raw_text(rows, _RAW_TEXT)
                yield from rows.to_batches()


def _exceeds_doubles(array: pa.Array) -> bool:
    """Whether a whole number in it, also inside of nested values, may be none of floating point's."""
    kind, parts = array.type, list[pa.Array]()
    if pt.is_int64(kind):
        return any(abs(end or 0) > _MOST_WHOLE for end in pc.min_max(array).as_py().values())
    if pt.is_map(kind):
        parts = [array.keys, array.items]
    elif pt.is_list(kind) or pt.is_struct(kind):
        parts = [array.flatten()] if pt.is_list(kind) else array.flatten()
    return any(map(_exceeds_doubles, parts))


def _wanted_ranges(at: StateAt, key_groups: KeyGroups | None) -> tuple[KeyGroupRange, ...]:
    everything = at.all_key_groups
    if key_groups is None:
        return (everything,)
    if isinstance(key_groups, str):
        ranges = KeyGroupRange.parse_all(key_groups)
    elif isinstance(key_groups, KeyGroupRange):
        ranges = (key_groups,)
    else:
        ranges = tuple(key_groups) if isinstance(key_groups, Iterable) else (key_groups,)
    for each in ranges:
        if not hasattr(each, "intersection"):
            raise InvalidInputError(
                f'key_groups takes text such as "0-15,20", or KeyGroupRange.of(0, 15), not {each!r}'
            )
        if each.intersection(everything) != each:
            raise InvalidInputError(
                f"key_groups: operator {at.operator!r} has key groups 0 to {everything.end_key_group}, "
                f"not {each.start_key_group} to {each.end_key_group}"
            )
    return merged_ranges(group for each in ranges for group in each)


def _required(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"this form of a state needs {module}, which is not installed: pip install {module}",
            kind=ErrorKind.NOT_INSTALLED,
        ) from error
