"""How many rows an operator's state has, as far as its manifests can tell without reading it.

Owns the bounds, how one more checkpoint changes them, and their JSON form. Does not own the counts: of a
base `bases` counts the rows, of changes their writer. Pure.

A base is counted row by row. A later change may be of a key that is there or of a new one, and nobody looks
which: an upsert adds one row at most, a delete takes away one at most. So the number is exact right after a
base, and after an operator's first changes; in between it has bounds, and the next fold brings them together.
Rows that expire are gone for every reader at once, but are counted only by the next fold: while a TTL hides
rows, there is little or nothing to say about the least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from dstl_dagster.keyed.reports import OperatorReport

__all__ = ["StateRows"]


@dataclass(frozen=True, slots=True)
class _Round:
    """A round of slices that is not finished.

    Attributes:
        key_groups: so many, from the first one on, have a base of this round.
        rows: in these bases.
        upserts, deletes: of all key groups, since the round's first slice.
    """

    key_groups: int = 0
    rows: int = 0
    upserts: int = 0
    deletes: int = 0


@dataclass(frozen=True, slots=True)
class StateRows:
    """Bounds of the number of rows of a state at one checkpoint.

    Attributes:
        least: there are no fewer.
        most: there are no more; `None`: not known, as after a manifest of an earlier release, until the state
            is folded as a whole.
        folded: in the newest whole base, or in all slices of the newest finished round; `None` if there is
            none.
        round: the slices since.
    """

    least: int = 0
    most: int | None = None
    folded: int | None = None
    round: _Round | None = None

    @classmethod
    def after(
        cls, rows: StateRows | None, before: OperatorReport | None, report: OperatorReport
    ) -> StateRows | None:
        """The rows after a report; `None` if nothing is known.

        Args:
            rows: at the parent, if anything is known.
            before: the operator's report at the parent; `None` if it had no state.
        """
        if not report.schema or (report.change_handles and not report.upserts + report.deletes):
            return None  # a log of a program's own, or changes that nobody counted
        hidden, hides = (
            None if each is None or each.ttl is None else each.ttl.hides for each in (before, report)
        )
        if hidden is not None and hides is None and not report.base:
            return None
        rows = cls(most=0) if before is None else rows or cls()
        found = rows._folded(report, exact=hidden is None)._changed(report.upserts, report.deletes)
        if hides is not None and (hides != hidden or report.change_handles):
            found = replace(found, least=0)  # rows have expired since, perhaps those written just now
        return None if found.most is None and found.round is None else found

    @classmethod
    def total(cls, parts: Iterable[StateRows | None]) -> StateRows | None:
        """Of several operators together; `None` if nothing is known of one, or there are none."""
        known: list[StateRows] = []
        for each in parts:
            if each is None or each.most is None:
                return None
            known.append(each)
        if not known:
            return None
        folded = [each.folded for each in known if each.folded is not None]
        return cls(
            sum(each.least for each in known),
            sum(each.most or 0 for each in known),
            sum(folded) if len(folded) == len(known) else None,
        )

    @property
    def exact(self) -> int | None:
        """The number of rows, where it is known exactly."""
        return self.most if self.least == self.most else None

    def in_words(self) -> str:
        """`1,204,319 to 1,244,331 (1,204,331 when last folded)`; empty where nothing is known."""
        if self.most is None:
            return ""
        if self.exact is not None:
            return f"{self.exact:,}"
        said = f"{self.least:,} to {self.most:,}" if self.least else f"at most {self.most:,}"
        return said if self.folded is None else f"{said} ({self.folded:,} when last folded)"

    def _folded(self, report: OperatorReport, *, exact: bool) -> StateRows:
        """With the report's base or slice. `exact`: no row has expired since the round began."""
        based, counted = report.base_range, report.base_rows
        if report.base:
            return StateRows() if counted is None else StateRows(counted, counted, counted)
        if based is None:
            return self
        begun = _Round() if based.start_key_group == 0 else self.round
        if begun is None or begun.key_groups != based.start_key_group:
            return self  # out of turn: the round goes on where it was
        if counted is None:
            return replace(self, round=None)
        done = replace(begun, key_groups=based.end_key_group + 1, rows=begun.rows + counted)
        if done.key_groups < report.max_parallelism:
            return replace(self, round=done)
        most = done.rows + done.upserts
        least = max(self.least, done.rows - done.deletes) if exact else self.least
        return StateRows(least, most if self.most is None else min(most, self.most), done.rows)

    def _changed(self, upserts: int, deletes: int) -> StateRows:
        """After changes of so many keys, each another one."""
        now = self.round
        return replace(
            self,
            least=max(self.least - deletes, upserts),
            most=None if self.most is None else self.most + upserts,
            round=now and replace(now, upserts=now.upserts + upserts, deletes=now.deletes + deletes),
        )

    def to_json(self) -> dict[str, Any]:
        more: dict[str, Any] = {} if self.folded is None else {"folded": self.folded}
        if self.round is not None:
            more["round"] = asdict(self.round)
        return {"least": self.least, "most": self.most, **more}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> StateRows:
        most, folded, begun = fields["most"], fields.get("folded"), fields.get("round")
        return cls(
            int(fields["least"]),
            None if most is None else int(most),
            None if folded is None else int(folded),
            None
            if begun is None
            else _Round(*(int(begun[name]) for name in ("key_groups", "rows", "upserts", "deletes"))),
        )
