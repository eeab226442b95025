"""Part of a state: the rows whose key columns have some values, as a table's partition has. Pure.

Owns which rows are in it. Does not own what a partition is called, or which one is wanted (`orchestration`),
nor what becomes of the rows (`keyed.write`).

A value of time lies in a span of instants: a date begins at midnight, and what has no zone is of these rows'
zone, where of an hour that occurs twice the first one counts. Text, and a whole number, is the time that it
spells in their format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange, merged_ranges
from dstl_dagster.state.key_group_hash import key_groups_of_partitions
from dstl_dagster.state.schema import StateSchema

Places = npt.NDArray[np.int64]
_US = pa.timestamp("us")
_DAY_US = 86_400_000_000
_MOST_VALUES = 1_000
"""Of which the key groups are computed; more are in most of them anyway."""


@dataclass(frozen=True)
class ExactValues:
    """Some values of a column, as text. Each is cast to the column's type; one that cannot be has no row."""

    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def places(self, column: pa.ChunkedArray) -> Places:
        """For each row the index of its value; -1 if it has none of them."""
        values, indices = self._typed(column.type)
        found = pc.index_in(column, value_set=values).fill_null(-1).to_numpy().astype(np.int64)
        places: Places = np.append(np.array(indices, np.int64), -1)[found]
        return places

    def all_values(self, kind: pa.DataType) -> pa.Array:
        """The values, in this type."""
        return self._typed(kind)[0]

    def _typed(self, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
        """The values that there are in this type, and which ones they are."""
        known, indices = [], []
        for index, text in enumerate(self.values):
            try:
                known.append(pa.array([text]).cast(kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue
            indices.append(index)
        return pa.concat_arrays([pa.array([], kind), *known]), indices


@dataclass(frozen=True)
class TimeSpans:
    """Some spans of time, ascending and disjoint.

    Attributes:
        starts, ends: of each, in microseconds since 1970; the end is exclusive.
        zone: of values without one.
        format: of text, for `strptime`.
    """

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    zone: str
    format: str

    def __len__(self) -> int:
        return len(self.starts)

    def places(self, column: pa.ChunkedArray) -> Places:
        """For each row the index of the span that its time lies in; -1 if in none.

        Raises: InvalidInputError for a column whose type has no times.
        """
        kind, values = column.type, column.combine_chunks()
        if pt.is_date32(kind) or pt.is_string(kind) or pt.is_integer(kind):  # of few days and texts
            encoded = values.dictionary_encode()
            of_each = np.append(self._places_of(self._times_us(encoded.dictionary)), -1)
            places: Places = of_each[encoded.indices.fill_null(-1).to_numpy()]
            return places
        return self._places_of(self._times_us(values))

    def all_values(self, kind: pa.DataType) -> pa.Array | None:
        """Those of a column of dates; `None`: of another type there may be any number."""
        if not pt.is_date(kind):
            return None
        spans = zip(self.starts, self.ends, strict=True)
        near = (range(start // _DAY_US - 1, end // _DAY_US + 2) for start, end in spans)
        days = pa.array(sorted(set().union(*near)), pa.int32()).cast(kind)
        return days.filter(pa.array(self._places_of(self._times_us(days)) >= 0))

    def _places_of(self, times_us: pa.Array) -> Places:
        if not len(self.starts):
            return np.full(len(times_us), -1, np.int64)
        known = times_us.fill_null(0).to_numpy()
        found = np.searchsorted(np.array(self.starts, np.int64), known, side="right") - 1
        inside = (found >= 0) & (known < np.array(self.ends, np.int64)[found])
        if times_us.null_count:
            inside &= times_us.is_valid().to_numpy(zero_copy_only=False)
        return np.where(inside, found, -1)

    def _times_us(self, values: pa.Array) -> pa.Array:
        kind = values.type
        if pt.is_string(kind) or pt.is_integer(kind):
            # Stored text need not be UTF-8.
            texts = values.cast(pa.string()).view(pa.binary()).to_pylist()
            return pa.array(map(self._spelled_us, texts), pa.int64())
        if pt.is_timestamp(kind) and kind.tz is not None:
            return values.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        if not (pt.is_date(kind) or pt.is_timestamp(kind)):
            raise InvalidInputError(f"a partition of time cannot be read from a column of type {kind}")
        local = values.cast(_US, safe=False)
        return pc.assume_timezone(local, self.zone, ambiguous="earliest", nonexistent="earliest").cast(
            pa.int64()
        )

    def _spelled_us(self, text: bytes) -> int | None:
        try:
            found = datetime.strptime(text.decode("utf-8", "replace"), self.format)
        except ValueError:
            return None
        known = found if found.tzinfo is not None else found.replace(tzinfo=ZoneInfo(self.zone))
        since = known.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


Axis: TypeAlias = ExactValues | TimeSpans


@dataclass(frozen=True)
class PartitionRows:
    """The rows of some partitions. A plain value that can be sent to tasks.

    Attributes:
        axes: what is wanted of each column, by its name.
        boxes: for each partition the index on each axis, in the order of `axes`.
        said: the partitions in words, for errors.
    """

    axes: Mapping[str, Axis]
    boxes: frozenset[tuple[int, ...]]
    said: str

    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        """For each row whether it is one of these rows'. `rows`: have the columns of `axes`.

        Raises: InvalidInputError naming a column whose type has no such values.
        """
        sizes = [len(axis) for axis in self.axes.values()]
        codes, inside = np.zeros(rows.num_rows, np.int64), np.ones(rows.num_rows, np.bool_)
        for (name, axis), size in zip(self.axes.items(), sizes, strict=True):
            try:
                places = axis.places(rows.column(name))
            except InvalidInputError as error:
                raise InvalidInputError(f"column {name!r}: {error.message}") from error
            inside &= places >= 0
            codes = codes * max(1, size) + places
        if self._is_grid:
            return pa.array(inside)
        wanted = np.zeros(len(self.boxes), np.int64)
        for axis_number, size in enumerate(sizes):
            own = np.fromiter((box[axis_number] for box in self.boxes), np.int64, len(self.boxes))
            wanted = wanted * max(1, size) + own
        return pa.array(inside & np.isin(codes, wanted))

    @property
    def _is_grid(self) -> bool:
        """Whether each combination of what is wanted of the columns is: a row is looked at no further."""
        return len(self.boxes) == math.prod(map(len, self.axes.values()))

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return tuple(self.axes)

    def key_groups(self, schema: StateSchema) -> tuple[KeyGroupRange, ...] | None:
        """Those of a state that can have such rows, ascending; `None`: all."""
        names = schema.partition_columns
        if not names or not self.axes.keys() >= set(names):
            return None
        values: list[pa.Array] = []
        for name in names:
            found = self.axes[name].all_values(schema.columns.field(name).type)
            if found is None:
                return None
            values.append(found)
        if math.prod(map(len, values)) > _MOST_VALUES:
            return None
        places = np.indices([len(each) for each in values]).reshape(len(names), -1)
        every = pa.table(
            {name: each.take(pa.array(own)) for name, each, own in zip(names, values, places, strict=True)}
        )
        is_part = len(names) == len(self.axes) and not self._is_grid
        wanted = every.filter(self.holds(every)) if is_part else every
        return merged_ranges(key_groups_of_partitions(wanted, schema))

    def __str__(self) -> str:
        return self.said
