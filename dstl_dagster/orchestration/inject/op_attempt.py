"""The attempt that an op uses when it writes without Spark.

Owns finding the attempt and its options in what an op has. Does not own writing (`changelog`, `recoverable`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dstl_dagster.checkpoint import Attempt
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.settings import JobOptions

if TYPE_CHECKING:
    from dstl_dagster.spark import CheckpointBatch


@dataclass(frozen=True)
class OpAttempt:
    """An open attempt that an op writes for.

    Attributes:
        options: the batch's; `None` for an attempt alone, which does not hold any.
    """

    attempt: Attempt
    options: JobOptions | None

    @classmethod
    def of(cls, work: CheckpointBatch | Attempt | Mapping[str, Any]) -> OpAttempt:
        """Raises: InvalidInputError, FormatError (a reference that is none); ConflictError (kind
        `already_applied`) for a batch that a completed checkpoint holds.
        """
        if isinstance(work, Attempt):
            return cls(work, None)
        if isinstance(work, Mapping):
            return cls(Attempt.from_json(work), None)
        if work.already_in is not None:
            raise ConflictError(
                f"this batch is already in checkpoint {work.already_in}: write nothing for it",
                kind=ErrorKind.ALREADY_APPLIED,
            )
        return cls(work.attempt, work.job_options)

    def require_store(self, uri: str) -> None:
        """Raises: InvalidInputError if the attempt is of another store than the one at `uri`."""
        if self.attempt.store_uri != uri:
            raise InvalidInputError(
                f"the attempt is of the store at {self.attempt.store_uri}, and this resource of {uri}: "
                "use the resource that opened it"
            )
