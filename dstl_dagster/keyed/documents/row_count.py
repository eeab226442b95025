"""How many rows a state has: exactly, or within bounds. Pure.

Owns the bounds, and what a checkpoint's report and runs make of them. Does not own the runs (`runs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dstl_dagster.format import Stored
from dstl_dagster.keyed.documents.reports import OperatorReport
from dstl_dagster.keyed.documents.runs import Run


@dataclass(frozen=True, slots=True)
class StateRows(Stored):
    """Bounds of the number of rows of a state at one checkpoint.

    A run that nothing older precedes is counted row by row. A later change may be of a key that is there or
    of a new one, and is not looked up: an upsert adds one row at most, a delete takes away one at most. So
    the number is exact right after all was merged, and after an operator's first changes; in between it has
    bounds, which merges bring together. Rows that expire are gone for every reader at once, but are counted
    only by a merge: while a TTL hides rows, nothing is known of the least.

    Attributes:
        least: there are no fewer.
        most: there are no more; `None`: not known.
    """

    least: int = 0
    most: int | None = None

    @classmethod
    def after(
        cls,
        rows: StateRows | None,
        before: OperatorReport | None,
        report: OperatorReport,
        runs: Sequence[Run],
    ) -> StateRows | None:
        """The rows after a report; `None` if nothing is known.

        Args:
            rows: at the parent, if anything is known.
            before: the operator's report at the parent; `None` if it had no state.
            runs: of the whole state after the report.
        """
        if not report.schema or (report.handles and not report.upserts + report.deletes):
            return None  # a log of a program's own, or changes that were not counted
        hidden, hides = (
            None if each is None or each.ttl is None else each.ttl.hides for each in (before, report)
        )
        if hidden is not None and hides is None and not report.is_of_all:
            return None
        if report.is_of_all:
            count = sum(merge.run.upserts or 0 for merge in report.merges)
            found = cls(count, count)
        else:
            found = cls(0, 0) if before is None else rows or cls()
        found = found._changed(report.upserts, report.deletes)._within(runs)
        if hides is not None and (hides != hidden or report.handles):
            found = replace(found, least=0)  # rows have expired since, perhaps those written just now
        return None if found.most is None else found

    @classmethod
    def total(cls, parts: Iterable[StateRows | None]) -> StateRows | None:
        """Of several operators together; `None` if nothing is known of one, or there are none."""
        least, most = [], []
        for each in parts:
            if each is None or each.most is None:
                return None
            least.append(each.least)
            most.append(each.most)
        return cls(sum(least), sum(most)) if least else None

    @property
    def exact(self) -> int | None:
        """The number of rows, where it is known exactly."""
        return self.most if self.least == self.most else None

    def in_words(self) -> str:
        """`1,204,319 to 1,244,331`; empty where nothing is known."""
        if self.most is None:
            return ""
        if self.exact is not None:
            return f"{self.exact:,}"
        return f"{self.least:,} to {self.most:,}" if self.least else f"at most {self.most:,}"

    def _changed(self, upserts: int, deletes: int) -> StateRows:
        """After changes of so many keys, each another one."""
        most = None if self.most is None else self.most + upserts
        return StateRows(max(self.least - deletes, upserts), most)

    def _within(self, runs: Sequence[Run]) -> StateRows:
        """No more than the runs have changes."""
        if any(run.upserts is None for run in runs):
            return self
        most = sum(run.upserts or 0 for run in runs)
        return StateRows(self.least, most if self.most is None else min(self.most, most))
