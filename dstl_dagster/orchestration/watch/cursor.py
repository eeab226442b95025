"""How far the sensor has followed a timeline, as text that Dagster stores and people can read and edit.

Owns the value and its text. Does not own what the sensor does about a record (`tick`).
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.timeline import TimelineRecord


@dataclass(frozen=True)
class CheckpointCursor:
    """All records up to and including `slot` (0: none) were followed.

    Attributes:
        decision: the id of the record in `slot`; reveals a timeline that was replaced.
        timeline: the id of the timeline; empty where a person set the cursor.
        shown: this instance has shown the job; if it does no more, its page was wiped.
        start_over: a person says that the store is right, though it is not the one that was followed.
    """

    slot: int = 0
    decision: uuid.UUID | None = None
    timeline: str = ""
    shown: bool = False
    start_over: bool = False

    def after(self, record: TimelineRecord) -> CheckpointCursor:
        """The cursor after this record, which must be the next one."""
        return replace(self, slot=record.slot, decision=record.decision_id)

    def to_text(self) -> str:
        """One line of JSON, without what is not set."""
        fields = {
            "slot": self.slot,
            "timeline": self.timeline or None,
            "shown": self.shown or None,
            "start_over": self.start_over or None,
            "decision": None if self.decision is None else str(self.decision),
        }
        return json.dumps({name: value for name, value in fields.items() if value is not None})

    @classmethod
    def from_text(cls, text: str) -> CheckpointCursor:
        """The cursor that `to_text` wrote, or a person typed: `{"slot": 42}` or `{"start_over": true}`.

        Raises: InvalidInputError: silently starting over would hide a mistake.
        """
        try:
            fields = json.loads(text)
            start_over = fields.get("start_over") is True
            slot, decision = 0 if start_over else fields.get("slot"), fields.get("decision")
            if not isinstance(slot, int) or isinstance(slot, bool) or slot < 0:
                raise ValueError(f"slot {slot!r}")
            return cls(
                slot,
                None if decision is None else uuid.UUID(decision),
                str(fields.get("timeline", "")),
                fields.get("shown") is True,
                start_over,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(
                f"{text!r} is not a cursor of this sensor ({error!r}). Set it to "
                '{"slot": N} to continue after slot N, or clear it: nothing is reported twice'
            ) from error
