"""How long rows of keyed state live, as a checkpoint records it.

Owns which rows are over at a checkpoint: by a column, an age, and the checkpoint's own "now", never by the
clock of the reader. Does not own what a user asks for (`settings.StateTtlConfig`), or finding such rows in a
table (`state.ttl`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.stored import Signed, Stored


@dataclass(frozen=True, slots=True)
class StateTtl(Stored):
    """The TTL of one operator's state at one checkpoint. Times are microseconds since 1970, UTC.

    Attributes:
        column: the id of the column that holds a row's time. A row without a time never expires.
        ttl_us: a row lives so long after its time, 1 or more; `None`: the TTL ended in this checkpoint.
        now_us: with event time the watermark, with processing time the checkpoint's time; `None`: no time has
            been seen yet. Never goes back, except by a restore.
        processing_time: the column holds the time of the checkpoint that last wrote the row.
    """

    column: str
    ttl_us: int | None
    now_us: Signed | None = None
    processing_time: bool = False

    def __post_init__(self) -> None:
        if self.ttl_us is not None and self.ttl_us < 1:
            raise InvalidInputError(f"a TTL of {self.ttl_us} microseconds would hide every row")

    @property
    def horizon_us(self) -> int | None:
        """Rows of this time and older have expired (inclusive, as in Flink); `None`: none have."""
        return None if self.ttl_us is None or self.now_us is None else self.now_us - self.ttl_us

    @property
    def hides(self) -> tuple[str, int] | None:
        """The column and the horizon: two TTLs that hide the same rows are equal in these."""
        horizon = self.horizon_us
        return None if horizon is None else (self.column, horizon)

    def at(self, *times_us: int | None) -> StateTtl:
        """The same, with "now" moved on to the latest of these times, if that is later."""
        return replace(self, now_us=max((t for t in (self.now_us, *times_us) if t is not None), default=None))

    def hides_what(self, before: StateTtl | None) -> bool:
        """Whether all that `before` hides stays hidden, so that it does not matter what was merged.

        Otherwise the state has to be merged with `before` first: what has expired does not come back.
        """
        hidden, own = None if before is None else before.hides, self.hides
        return hidden is None or (own is not None and own[0] == hidden[0] and own[1] >= hidden[1])
