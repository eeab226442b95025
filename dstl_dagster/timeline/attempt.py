"""An attempt: the right to work on one checkpoint, as it travels between processes.

Owns the value and its JSON form. Whether the attempt is still alive stands only in the timeline.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import JobNames

__all__ = ["Attempt"]


@dataclass(frozen=True)
class Attempt:
    """What step 1 gives and every later step is called with.

    Attributes:
        checkpoint_id: the checkpoint that is being made, 1 or more.
        attempt: names this try; everything temporary that it makes carries it.
        parent: the checkpoint it builds on; `None` for a job's first.
        job: the job's name.
        store_uri: where the job lives; `open_store` takes it. Holds no secret.
        idempotency_key: what names the batch; a completed checkpoint with it is never made twice.
    """

    checkpoint_id: int
    attempt: uuid.UUID
    parent: int | None
    job: str = ""
    store_uri: str = ""
    idempotency_key: str | None = None

    @property
    def names(self) -> JobNames:
        return JobNames(self.job)

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object; `from_json` takes it back."""
        return {
            "checkpoint_id": self.checkpoint_id,
            "attempt": str(self.attempt),
            "parent": self.parent,
            "job": self.job,
            "store_uri": self.store_uri,
            "idempotency_key": self.idempotency_key,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Attempt:
        """Raises: InvalidInputError where the object is not an attempt."""
        try:
            return cls(
                checkpoint_id=int(fields["checkpoint_id"]),
                attempt=uuid.UUID(fields["attempt"]),
                parent=None if fields["parent"] is None else int(fields["parent"]),
                job=str(fields["job"]),
                store_uri=str(fields["store_uri"]),
                idempotency_key=fields["idempotency_key"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"not the JSON form of an attempt: {error!r}") from error
