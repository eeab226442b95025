"""Older reports that a manifest repeats, so that a long log takes few manifests to read.

Owns which are repeated, and their form. Does not own the walk through them (`operator_log`).

A manifest repeats what its parent repeats, and what its parent added, until that is too much; then it names
its parent instead, and the next one begins anew. Nothing has to be read for it, a walk is shorter by as many
manifests as one repeats, and a manifest grows by `MAX_CARRIED_BYTES` at most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dstl_dagster.format.envelope import reading
from dstl_dagster.keyed.reports import OperatorReport

__all__ = ["MAX_CARRIED_BYTES", "Carried", "carried_on"]

MAX_CARRIED_BYTES: Final = 16 * 1024
"""Of JSON, in one manifest: about 15 reports of a checkpoint that two tasks wrote."""

_SHARED: Final = ("operator", "key_columns", "max_parallelism", "schema")
"""Left out where they are the same as in the manifest's own report, as they nearly always are."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What an older checkpoint added to an operator.

    Attributes:
        checkpoint_id: that checkpoint.
        fields: its report as JSON, without what it shares. Only a walk parses it.
    """

    checkpoint_id: int
    fields: Mapping[str, Any]

    def report(self, own: OperatorReport) -> OperatorReport:
        """The report; `own`: that of the manifest which repeats it. Raises: FormatError."""
        return OperatorReport.from_json({**_shared(own), **self.fields})

    def to_json(self) -> dict[str, Any]:
        return {"checkpoint_id": self.checkpoint_id, "report": dict(self.fields)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Carried:
        """Raises: FormatError."""
        with reading("a repeated report is not valid"):
            return cls(int(fields["checkpoint_id"]), dict(fields["report"]))


def carried_on(
    checkpoint_id: int,
    before: OperatorReport,
    carried: tuple[Carried, ...],
    own: OperatorReport,
    max_bytes: int,
) -> tuple[Carried, ...] | None:
    """What a manifest with the report `own` repeats, newest first; `None` if above `max_bytes`. Pure.

    Args:
        checkpoint_id, before, carried: the parent, what it added, and what it repeats.
    """
    then, now = _shared(before), _shared(own)
    whole = [(each.checkpoint_id, {**then, **each.fields}) for each in carried]
    if before.handles:
        whole.insert(0, (checkpoint_id, before.to_json()))
    found = tuple(
        Carried(each, {name: value for name, value in fields.items() if now.get(name) != value})
        for each, fields in whole
    )
    return found if sum(len(json.dumps(each.fields)) for each in found) <= max_bytes else None


def _shared(report: OperatorReport) -> dict[str, Any]:
    fields = replace(report, handles=()).to_json()
    return {name: fields[name] for name in _SHARED}
