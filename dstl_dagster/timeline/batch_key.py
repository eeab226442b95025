"""Which batch a checkpoint holds: of which source, and which one of its batches. A value, with its JSON form.

Applied means source and position, never a name alone: two sources of a job may both have a batch
"2024-01-07", and a weekly partition of that key is not the daily one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dstl_dagster.errors import InvalidInputError

__all__ = ["BatchKey", "BatchKeyLike"]


@dataclass(frozen=True)
class BatchKey:
    """The identity of a batch. At most one checkpoint of a chain holds it.

    Attributes:
        key: the batch as people name it: a partition, or any text.
        source: the source that it is of; empty for a driver that names none.
        window: of a batch of time, `<start>/<end>`: two instants as ISO 8601 writes an interval, the end
            exclusive; of one that replaces a table's partitions the run, as each may; empty for any other.
        run: what applies it, where one that applies it again is to be told from a repeat of that. No part of
            the identity.
    """

    key: str
    source: str = ""
    window: str = ""
    run: str = field(default="", compare=False)

    @classmethod
    def of(cls, key: BatchKeyLike) -> BatchKey | None:
        """A text alone is a batch of no source. Raises: InvalidInputError."""
        if key is None or isinstance(key, BatchKey):
            return key
        if not isinstance(key, str):
            raise InvalidInputError(f"an idempotency key is text or a BatchKey, not {key!r}")
        return cls(key)

    @property
    def identity(self) -> str:
        """All of it, as a text that differs for another batch."""
        return json.dumps([self.key, self.source, self.window])

    def __str__(self) -> str:
        return self.key

    def to_json(self) -> dict[str, str]:
        """A plain JSON object, the inverse of `from_json`."""
        more = {name: text for name in ("source", "window", "run") if (text := getattr(self, name))}
        return {"key": self.key, **more}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> BatchKey:
        """Raises: TypeError, ValueError if the object is not a batch's key."""
        known = {name: fields.get(name, "") for name in ("source", "window", "run")}
        if not isinstance(fields["key"], str) or not all(isinstance(each, str) for each in known.values()):
            raise TypeError(f"expected a batch's key, found {fields!r}")
        if len(fields) > 1 + sum(name in fields for name in known):
            raise ValueError(f"unknown fields in the batch's key {fields!r}")
        return cls(fields["key"], **known)


BatchKeyLike = BatchKey | str | None
"""What callers may name a batch by; `None`: it has no name, and may be applied again."""
