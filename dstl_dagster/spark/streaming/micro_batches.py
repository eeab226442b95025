"""The last micro-batch that a job holds, of which streaming query, and which one may come next.

Owns the identity of a micro-batch and the rule for its order. Does not own applying it (`commit`,
`foreach_batch`). Pure.

Spark gives a query an id, stored in its checkpoint folder, and numbers its micro-batches from 0 without gaps.
After a crash it repeats the last one, never an earlier one. So a job has to remember one pair only. It is
stored in the positions of the job's checkpoints, so a restore rolls it back together with the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dstl_dagster.checkpoint import Claim
from dstl_dagster.errors import ConflictError, ErrorKind, FormatError
from dstl_dagster.keyed import Measure
from dstl_dagster.timeline import BatchKey

POSITION = "spark query"
"""The source under which the positions of a checkpoint hold the pair."""

_NOTHING = "nothing"


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch. As text: `<query id>:<batch id>`."""

    query_id: str
    batch_id: int

    def __str__(self) -> str:
        return f"{self.query_id}:{self.batch_id}"

    @property
    def key(self) -> BatchKey:
        """The identity of its batch."""
        return BatchKey(f"spark-query:{self}", POSITION)

    def claim(self, operators: tuple[str, ...] | None) -> Claim:
        """Of its query, which writes these operators; `None`: as it goes."""
        measure = Measure("micro-batches of a query")
        # Which query it is stands in the position, and `require_after` says which one may follow.
        return Claim(POSITION, "a streaming query", measure, operators, self.position)

    @property
    def owner(self) -> str:
        """Of its attempt: the same after a crash, another one for another query."""
        return f"spark query {self.query_id}"

    @property
    def position(self) -> dict[str, Any]:
        """The pair as the positions hold it."""
        return {"query_id": self.query_id, "batch_id": self.batch_id}

    @classmethod
    def last_of(cls, positions: Mapping[str, Any]) -> MicroBatch | None:
        """The last micro-batch of a checkpoint with these positions; `None`: none. Raises: FormatError."""
        stored = positions.get(POSITION)
        if stored is None:
            return None
        try:
            return cls(str(stored["query_id"]), int(stored["batch_id"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"position {POSITION!r} is not a micro-batch of a query: {stored!r}") from error

    def is_in(self, last: MicroBatch | None) -> bool:
        """Whether it is `last`, the last one of a job, which Spark repeats."""
        return self == last

    def require_after(self, last: MicroBatch | None, adopt_after: str | None) -> None:
        """Pass if this micro-batch follows `last`, or is adopted on purpose.

        `adopt_after` is the text of the job's last micro-batch, as a person read it (`nothing`: the job had
        none). It permits this one step and, if it stays in the code, no later one.

        Raises: ConflictError, kind `other_query`.
        """
        job_is_at = _NOTHING if last is None else str(last)
        if adopt_after == job_is_at:
            return
        way_out = f'; to continue from here on purpose, set option adopt_after="{job_is_at}"'
        if last is not None and last.query_id != self.query_id:
            raise ConflictError(
                f"the job is at batch {last.batch_id} of query {last.query_id}, but this is query "
                f"{self.query_id}: a query with a new checkpoint folder would apply its input again. Start "
                f"it with the old checkpointLocation{way_out}",
                kind=ErrorKind.OTHER_QUERY,
            )
        expected = 0 if last is None else last.batch_id + 1
        if self.batch_id != expected:
            reason = "the batches in between went elsewhere, or a restore rolled them back"
            if self.batch_id < expected:
                # Applied already, with other rows perhaps. A name is applied once, also if it is adopted.
                reason = "its checkpointLocation is an older copy, or another driver runs the query"
                way_out = "; or restore the job to before this batch"
            raise ConflictError(
                f"this is batch {self.batch_id} of query {self.query_id}, but the job expects batch "
                f"{expected}: {reason}. Start the query with a checkpointLocation at batch "
                f"{expected}{way_out}",
                kind=ErrorKind.OTHER_QUERY,
            )
