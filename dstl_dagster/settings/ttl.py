"""How long rows of keyed state live, as a user asks for it.

Owns the value and its checks. Does not own what it means for rows (`format.StateTtl`), or the checkpoint that
it becomes part of (`state.ttl`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.units import ConfigValue, parse_duration, parse_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DISABLED = "disabled"


@dataclass(frozen=True)
class StateTtlConfig:
    """The TTL of an operator's state, named as in Flink. Create it with one of the three class methods.

    A row's time is set when it is created or written (Flink's `OnCreateAndWrite`), and an expired row is
    never returned (`NeverReturnExpired`).

    Attributes:
        column: holds a row's time, a time stamp or a date; empty if disabled.
        ttl: a row expires so long after its time; `None`: disabled.
        watermark: what "now" moves on to, if it is earlier; `None`: to the latest time of the batch's rows.
        is_processing_time: the package fills the column.
    """

    column: str
    ttl: timedelta | None
    watermark: datetime | None = None
    is_processing_time: bool = False

    @classmethod
    def event_time(cls, column: str, ttl: ConfigValue, *, watermark: datetime | None = None) -> Self:
        """Rows live for `ttl` after the time in `column`, until the operator's watermark is past that.

        Args:
            column: a time stamp, or a date (its midnight in UTC).
            ttl: such as `30 d`, `12 h`, a timedelta; at least a microsecond.
            watermark: this batch's, where one time too far in the future must not end all other rows. Without
                a zone it is UTC.

        Raises: InvalidInputError.
        """
        if watermark is not None and not isinstance(watermark, datetime):
            raise InvalidInputError(f"watermark takes a datetime, not {watermark!r}")
        return cls(parse_text("ttl_column", column), _lifetime(ttl), watermark)

    @classmethod
    def processing_time(cls, column: str, ttl: ConfigValue) -> Self:
        """Rows live for `ttl` after the checkpoint that last wrote them, whose time is put into `column`.

        The column is one of the state's like any other, and the batches do not have it.

        Raises: InvalidInputError.
        """
        return cls(parse_text("ttl_column", column), _lifetime(ttl), is_processing_time=True)

    @classmethod
    def from_texts(cls, ttl: str | None, column: str | None) -> Self | None:
        """By event time, from the options `ttl` and `ttl_column`; `None` without both.

        `disabled` as the first alone ends a TTL. Raises: InvalidInputError, also if one of them is missing.
        """
        if ttl is None and column is None:
            return None
        if (ttl or "").strip().lower() == _DISABLED and column is None:
            return cls.disabled()
        if ttl is None or column is None:
            raise InvalidInputError(
                "a TTL takes both, ttl (such as 30 d) and ttl_column, the column with a row's time; "
                f"ttl={_DISABLED} alone ends one"
            )
        return cls.event_time(column, ttl)

    @classmethod
    def disabled(cls) -> Self:
        """Rows live until they are deleted; what has expired before does not come back."""
        return cls("", None)

    @property
    def ttl_us(self) -> int | None:
        """In microseconds."""
        return None if self.ttl is None else self.ttl // _MICROSECOND

    @property
    def watermark_us(self) -> int | None:
        """In microseconds since 1970."""
        watermark = self.watermark
        if watermark is None:
            return None
        return ((watermark if watermark.tzinfo else watermark.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _lifetime(ttl: ConfigValue) -> timedelta:
    lifetime = parse_duration("ttl", ttl)
    if not lifetime:
        raise InvalidInputError("ttl is more than 0, such as '30 d'; StateTtlConfig.disabled() ends a TTL")
    return lifetime
