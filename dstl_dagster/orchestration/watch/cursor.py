"""How far the sensor has followed a timeline, as text that Dagster stores and people can read and edit.

Owns the value, its text, and how a record advances it. Does not own what the sensor does about a record
(`tick`).
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.timeline import Committed, Completed, Opened, Restored, TimelineRecord

__all__ = ["CheckpointCursor", "Uncommitted"]


@dataclass(frozen=True)
class Uncommitted:
    """The last completed checkpoint while its files are unpublished, and the slot of its record."""

    checkpoint_id: int
    slot: int
    attempt: uuid.UUID


@dataclass(frozen=True)
class CheckpointCursor:
    """All records up to and including `slot` (0: none) were followed.

    Attributes:
        decision: the id of the record in `slot`; reveals a timeline that was replaced.
        owner: of the open attempt, or of the attempt that made `uncommitted`; `None` after a commit.
        uncommitted: `None` where the last completed checkpoint is committed.
        timeline: the id of the timeline; empty where a person set the cursor.
        shown: this instance has shown the job; if it does no more, its page was wiped.
        start_over: a person says that the store is right, though it is not the one that was followed.
    """

    slot: int = 0
    decision: uuid.UUID | None = None
    owner: str | None = None
    uncommitted: Uncommitted | None = None
    timeline: str = ""
    shown: bool = False
    start_over: bool = False

    def after(self, record: TimelineRecord) -> CheckpointCursor:
        """The cursor after this record, which must be the next one."""
        moved = replace(self, slot=record.slot, decision=record.decision_id)
        match record:
            case Opened():
                return replace(moved, owner=record.owner)
            case Completed():
                return replace(
                    moved, uncommitted=Uncommitted(record.checkpoint_id, record.slot, record.attempt)
                )
            case Committed():
                pending = self.uncommitted
                done = pending is not None and pending.checkpoint_id == record.checkpoint_id
                return replace(moved, owner=None, uncommitted=None) if done else moved
            case Restored():
                # Abandoned files are retracted, and the checkpoint restored was committed before.
                return replace(moved, uncommitted=None)
            case _:
                return moved

    def to_text(self) -> str:
        """One line of JSON."""
        pending = self.uncommitted
        fields: dict[str, object] = {"slot": self.slot}
        if self.timeline:
            fields["timeline"] = self.timeline
        if self.shown:
            fields["shown"] = True
        if self.start_over:
            fields["start_over"] = True
        if self.decision is not None:
            fields["decision"] = str(self.decision)
        if self.owner is not None:
            fields["owner"] = self.owner
        if pending is not None:
            fields["uncommitted"] = {
                "checkpoint": pending.checkpoint_id,
                "slot": pending.slot,
                "attempt": str(pending.attempt),
            }
        return json.dumps(fields)

    @classmethod
    def from_text(cls, text: str) -> CheckpointCursor:
        """The cursor that `to_text` wrote, or a person typed: `{"slot": 42}` or `{"start_over": true}`.

        Raises: InvalidInputError: silently starting over would hide a mistake.
        """
        try:
            fields = json.loads(text)
            start_over = fields.get("start_over") is True
            slot, decision, owner = fields.get("slot"), fields.get("decision"), fields.get("owner")
            slot = 0 if start_over else slot
            pending = fields.get("uncommitted")
            if not isinstance(slot, int) or isinstance(slot, bool) or slot < 0:
                raise ValueError(f"slot {slot!r}")
            if owner is not None and not isinstance(owner, str):
                raise ValueError(f"owner {owner!r}")
            return cls(
                slot=slot,
                timeline=str(fields.get("timeline", "")),
                shown=fields.get("shown") is True,
                start_over=start_over,
                decision=None if decision is None else uuid.UUID(decision),
                owner=owner,
                uncommitted=None
                if pending is None
                else Uncommitted(
                    int(pending["checkpoint"]), int(pending["slot"]), uuid.UUID(pending["attempt"])
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(
                f"{text!r} is not a cursor of this sensor ({error!r}). Set it to "
                '{"slot": N} to continue after slot N, or clear it: nothing is reported twice'
            ) from error
