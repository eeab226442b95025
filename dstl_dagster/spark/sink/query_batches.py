"""Which micro-batch of which streaming query a job stands at, and which one may come next.

Owns the identity of a batch and the rule for its order. Does not own applying a batch (`commit`,
`foreach_batch`). Pure.

Spark gives a query an id that its checkpoint folder keeps, and counts its batches from 0 without gaps. After
a crash it repeats the last batch, never an earlier one. So a job needs to remember one pair, in the
positions of its checkpoints: a restore then takes it back together with the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dstl_dagster.errors import ConflictError, ErrorKind, FormatError

__all__ = ["POSITION", "QueryBatch"]

POSITION = "spark query"
"""The source name under which a checkpoint's positions keep the pair."""

_NOTHING = "nothing"


@dataclass(frozen=True)
class QueryBatch:
    """One micro-batch. As text: `<query id>:<batch id>`."""

    query_id: str
    batch_id: int

    def __str__(self) -> str:
        return f"{self.query_id}:{self.batch_id}"

    @property
    def idempotency_key(self) -> str:
        """What names the batch on the timeline."""
        return f"spark-query:{self}"

    @property
    def position(self) -> dict[str, Any]:
        """The pair as it stands in the positions."""
        return {"query_id": self.query_id, "batch_id": self.batch_id}

    @classmethod
    def last_of(cls, positions: Mapping[str, Any]) -> QueryBatch | None:
        """The last batch that a checkpoint with these positions holds; `None`: no query's. FormatError."""
        stored = positions.get(POSITION)
        if stored is None:
            return None
        try:
            return cls(str(stored["query_id"]), int(stored["batch_id"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"position {POSITION!r} is no batch of a query: {stored!r}") from error

    def is_in(self, last: QueryBatch | None) -> bool:
        """Whether a job that stands at `last` holds this batch already."""
        return last is not None and last.query_id == self.query_id and self.batch_id <= last.batch_id

    def require_after(self, last: QueryBatch | None, adopt_after: str | None) -> None:
        """Pass if this batch is the one that follows `last`, or was adopted on purpose.

        `adopt_after` is the text of the pair that a person saw the job at (`nothing`: it had no query's
        batch): it permits this one step and, left in the code, none later.

        Raises: ConflictError, kind `other_query` or `batch_gap`.
        """
        stands_at = _NOTHING if last is None else str(last)
        if adopt_after == stands_at:
            return
        way_out = f'; to go on from here on purpose, give option adopt_after="{stands_at}"'
        if last is not None and last.query_id != self.query_id:
            raise ConflictError(
                f"the job stands at batch {last.batch_id} of query {last.query_id}, and this is query "
                f"{self.query_id}: a query with a new checkpoint folder would apply its input again. Start "
                f"it with the old checkpointLocation{way_out}",
                kind=ErrorKind.OTHER_QUERY,
            )
        expected = 0 if last is None else last.batch_id + 1
        if self.batch_id > expected:
            raise ConflictError(
                f"batch {self.batch_id} of query {self.query_id} comes, but the job waits for batch "
                f"{expected}: what the query did in between went elsewhere, or a restore took it back. Start "
                f"the query with a checkpointLocation that stands there{way_out}",
                kind=ErrorKind.BATCH_GAP,
            )
