"""Older reports that a manifest repeats, so that a long log takes few manifests to read.

Owns which are repeated, and their form. Does not own the walk through them (`operator_log`).

A manifest repeats what its parent repeats, and what its parent added, until that is too much; then it names
its parent instead, and the next one begins anew. Nothing has to be read for it, a walk is shorter by as many
manifests as one repeats, and a manifest grows by `MAX_CARRIED_BYTES` at most. What newer bases and
compactions hold is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from dstl_dagster.format import KeyGroupRange
from dstl_dagster.format.envelope import reading
from dstl_dagster.keyed.coverage import Uncovered
from dstl_dagster.keyed.reports import OperatorReport

__all__ = ["MAX_CARRIED_BYTES", "Carried", "carried_on"]

MAX_CARRIED_BYTES: Final = 16 * 1024
"""Of JSON, in one manifest: about 15 reports of a checkpoint that two tasks wrote."""

_SHARED: Final = ("operator", "key_columns", "max_parallelism", "schema")
"""Left out where they are the same as in the manifest's own report, as they nearly always are."""


@dataclass(frozen=True)
class Carried:
    """What an older checkpoint added to an operator.

    Attributes:
        checkpoint_id: that checkpoint.
        fields: its report as JSON, without what it shares. Only a walk parses it.
    """

    checkpoint_id: int
    fields: Mapping[str, Any]

    @cached_property
    def json_bytes(self) -> int:
        """Of the report as JSON."""
        return len(json.dumps(self.fields))

    @property
    def has_compaction(self) -> bool:
        """Whether the report has one."""
        return "compaction" in self.fields

    def before(self, uncovered: Uncovered, max_parallelism: int) -> Uncovered:
        """What is uncovered before the report. Parses little."""
        fields = self.fields
        with reading("a repeated report is not valid"):
            if fields.get("base"):
                return Uncovered(0)
            if "base_range" in fields:
                return uncovered.before(KeyGroupRange.from_json(fields["base_range"]), max_parallelism)
            if "compaction" not in fields:
                return uncovered
            return uncovered.compacted_in(self._ranges()[: int(fields["compaction"]["handles"])])

    def without_compacted(self, uncovered: Uncovered) -> Carried:
        """The same without the changes that a newer compaction holds. Parses little."""
        fields = self.fields
        if not uncovered.compacted or fields.get("base") or "base_range" in fields:
            return self
        with reading("a repeated report is not valid"):
            first = int(fields["compaction"]["handles"]) if "compaction" in fields else 0
            wanted = list(map(uncovered.for_changes().meets, self._ranges()))
            handles = [
                handle for number, handle in enumerate(fields["handles"]) if number < first or wanted[number]
            ]
        return Carried(self.checkpoint_id, {**fields, "handles": handles})

    def _ranges(self) -> list[KeyGroupRange]:
        return [KeyGroupRange.from_json(handle["key_groups"]) for handle in self.fields["handles"]]

    def has_any(self, uncovered: Uncovered) -> bool:
        """Whether the report has something that is needed, or that covers what is older. Parses little."""
        fields = self.fields
        if fields.get("base") or "base_range" in fields or "compaction" in fields:
            return True
        with reading("a repeated report is not valid"):
            return any(map(uncovered.for_changes().meets, self._ranges()))

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
    every = list(carried)
    if then != now:
        every = [Carried(each.checkpoint_id, _beside(now, {**then, **each.fields})) for each in carried]
    if before.handles:
        # Of a state's TTL only the newest counts.
        every.insert(0, Carried(checkpoint_id, _beside(now, replace(before, ttl=None).to_json())))
    found = tuple(_needed(every, own))
    return found if sum(each.json_bytes for each in found) <= max_bytes else None


def _beside(shared: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not the same as the shared ones."""
    return {name: value for name, value in fields.items() if shared.get(name) != value}


def _needed(carried: Sequence[Carried], own: OperatorReport) -> Iterator[Carried]:
    """Those of which something is needed; always the oldest, which may be the operator's first changes."""
    uncovered = own.before(Uncovered())
    for number, each in enumerate(carried, 1):
        if number == len(carried):
            yield each
        elif each.has_any(uncovered):
            yield each.without_compacted(uncovered)
            uncovered = each.before(uncovered, own.max_parallelism)


def _shared(report: OperatorReport) -> dict[str, Any]:
    fields = replace(report, handles=(), compaction=None).to_json()
    return {name: fields[name] for name in _SHARED}
