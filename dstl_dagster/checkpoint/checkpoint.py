"""One completed checkpoint, as a value. Owns the questions to its records and its manifest."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dstl_dagster.keyed.manifest import Manifest
from dstl_dagster.timeline.records import BlockedFile
from dstl_dagster.timeline.view import CheckpointEntry

__all__ = ["Checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """One completed checkpoint, as it stood on the timeline when it was read.

    Attributes:
        entry: its records.
        manifest: what it holds.
        abandoned: a restore left it behind; its state can be read, its files are retracted.
        savepoints: the names that keep it, ascending.
    """

    entry: CheckpointEntry
    manifest: Manifest
    abandoned: bool = False
    savepoints: tuple[str, ...] = ()

    @property
    def checkpoint_id(self) -> int:
        return self.entry.checkpoint_id

    @property
    def attempt(self) -> uuid.UUID:
        return self.entry.completed.attempt

    @property
    def parent(self) -> int | None:
        return self.entry.completed.parent

    @property
    def positions(self) -> Mapping[str, Any]:
        return self.manifest.positions

    @property
    def idempotency_key(self) -> str | None:
        return self.entry.completed.idempotency_key

    @property
    def committed(self) -> bool:
        """Step 6 has ended: every file is published, or listed in `blocked`."""
        return self.entry.committed is not None

    @property
    def blocked(self) -> tuple[BlockedFile, ...]:
        return self.entry.committed.blocked if self.entry.committed is not None else ()
