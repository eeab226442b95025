"""The TTL of keyed state, in Arrow: which rows have expired, and what a batch makes of its state's TTL.

Owns these, and which columns can hold a row's time. Does not own the value that is recorded
(`format.StateTtl`), or what an expired row means where rows are replayed (`replay`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.format import StateTtl
from dstl_dagster.state.schema import StateSchema

if TYPE_CHECKING:
    from dstl_dagster.settings import StateTtlConfig

PROCESSING_TIME_TYPE = pa.timestamp("us", "UTC")
"""Of a column that the package fills."""

_INT64 = np.iinfo(np.int64)


def expired_rows(rows: pa.Table, schema: StateSchema, ttl: StateTtl | None) -> npt.NDArray[np.bool_] | None:
    """Which rows have expired; `None` if none have. `schema`: of the rows, perhaps with more columns.

    A row without a time, and one that was written before the column existed, never expires.
    """
    hides = None if ttl is None else ttl.hides
    if hides is None or hides[0] not in schema.ids:
        return None
    times = _times_us(rows.column(schema.ids.index(hides[0])))
    horizon = pa.scalar(min(max(hides[1], _INT64.min), _INT64.max), pa.int64())
    expired = pc.fill_null(pc.less_equal(times, horizon), False)
    return expired.to_numpy(zero_copy_only=False) if pc.any(expired).as_py() else None


class NewestTime:
    """The latest time in the rows that a task writes, for the watermark.

    Attributes:
        us: so far, in microseconds since 1970; `None`: no row that is not deleted had a time.
    """

    def __init__(self, column: str | None) -> None:
        """`column`: of the rows' times; `None`: none is looked at."""
        self._column = column
        self.us: int | None = None

    def add(self, rows: pa.RecordBatch | pa.Table, deleted: pa.Array | pa.ChunkedArray | None) -> None:
        """Some rows; the column may be missing in a batch."""
        if self._column is None or self._column not in rows.schema.names:
            return
        times = _times_us(rows.column(self._column))
        if deleted is not None:
            times = times.filter(pc.invert(pc.fill_null(deleted, False)))
        found = pc.max(times).as_py()
        if found is not None:
            self.us = found if self.us is None else max(self.us, found)


def time_column(schema: StateSchema, ttl: StateTtl | None) -> str | None:
    """The name of the column whose newest time moves the watermark of this TTL; `None` if none does."""
    if ttl is None or ttl.ttl_us is None or ttl.processing_time:
        return None
    return _name_of(ttl, schema)


def filled_column(
    config: StateTtlConfig | None, before: StateTtl | None, schema: StateSchema | None
) -> str | None:
    """The name of the column into which a batch's time is put; `None` if there is none.

    `before`, `schema`: the TTL of the state that the batch builds on, and its columns.
    """
    if config is not None:
        return config.column if _required(config).is_processing_time else None
    if before is None or schema is None or before.ttl_us is None or not before.processing_time:
        return None
    return _name_of(before, schema)


def ttl_to_write(
    config: StateTtlConfig | None, before: StateTtl | None, schema: StateSchema, time_us: int
) -> StateTtl | None:
    """The TTL of a state with the columns `schema` after a batch that asks for `config`; `None`: it has none.

    Its "now" has moved on to the batch's time or watermark, and not yet to the times of its rows.

    Args:
        config: what the batch asks for; `None`: as it is.
        before: the TTL of the state that it builds on.
        time_us: the batch's.

    Raises: InvalidInputError for what is no TTL, and naming a column that cannot be one's; kind
    `schema_change` if the state's TTL needs a column missing in `schema`.
    """
    active = before if before is not None and before.ttl_us is not None else None
    if config is None:
        if active is None:
            return None
        if active.column not in schema.ids:
            raise InvalidInputError(
                f"column {active.column!r} holds the times of the state's TTL: keep it, or end the TTL in "
                "the same batch (ttl=StateTtlConfig.disabled())",
                ErrorKind.SCHEMA_CHANGE,
            )
        return active.at(time_us if active.processing_time else None)
    if _required(config).ttl_us is None:
        return None if active is None else StateTtl(active.column, None)
    column = _checked_column(config, schema)
    same = active is not None and (active.column, active.processing_time) == (
        column,
        config.is_processing_time,
    )
    now_us = active.now_us if active is not None and same else None
    ttl = StateTtl(column, config.ttl_us, now_us, config.is_processing_time)
    return ttl.at(time_us if config.is_processing_time else config.watermark_us)


def _required(config: StateTtlConfig) -> StateTtlConfig:
    from dstl_dagster.settings import StateTtlConfig  # no task needs it

    if not isinstance(config, StateTtlConfig):
        raise InvalidInputError(f"ttl takes StateTtlConfig.event_time('seen_at', '30 days'), not {config!r}")
    return config


def _name_of(ttl: StateTtl, schema: StateSchema) -> str:
    names: list[str] = schema.columns.names
    return names[schema.ids.index(ttl.column)]


def _checked_column(config: StateTtlConfig, schema: StateSchema) -> str:
    """Its id."""
    name = config.column
    if name not in schema.columns.names:
        raise InvalidInputError(
            f"the TTL's column {name!r} is not a column of the state: {', '.join(schema.columns.names)}"
        )
    kind = schema.columns.field(name).type
    if config.is_processing_time and (name in schema.key_columns or kind != PROCESSING_TIME_TYPE):
        what = "a key" if name in schema.key_columns else f"of type {kind}"
        raise InvalidInputError(
            f"the TTL's column {name!r} is filled with the checkpoint's time, so it cannot be {what}: name a "
            f"new column, or one of type {PROCESSING_TIME_TYPE}"
        )
    if not (pt.is_timestamp(kind) or pt.is_date32(kind)):
        raise InvalidInputError(
            f"the TTL's column {name!r} is {kind}: name a column with a time stamp or a date, or cast it"
        )
    return schema.column_ids.of(name)


def _times_us(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if pt.is_timestamp(times.type):
        times = times.cast(pa.timestamp("us", times.type.tz), safe=False)
    else:
        times = times.cast(pa.timestamp("us"))
    return times.cast(pa.int64())
