"""What a manifest says of one operator: its report, and the runs of its whole state.

Owns the value and its JSON form, in which what an object of its own lists is left out. Does not own that
object (`run_lists`), or how a checkpoint's entry follows from its parent's (`checkpoint.steps.record`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dstl_dagster.errors import FormatError
from dstl_dagster.format import ChangelogStateHandle
from dstl_dagster.format.envelope import reading
from dstl_dagster.keyed.reports import OperatorReport
from dstl_dagster.keyed.runs import Run, decode_runs, encode_runs
from dstl_dagster.keyed.state_rows import StateRows

__all__ = ["Listed", "OperatorEntry", "StateSizes"]


@dataclass(frozen=True, slots=True)
class StateSizes:
    """What reading an operator's state costs.

    Attributes:
        whole_bytes: stored bytes of the runs that nothing older precedes.
        log_bytes: of the runs above these.
        log_runs: how many these are.
    """

    whole_bytes: int = 0
    log_bytes: int = 0
    log_runs: int = 0


@dataclass(frozen=True)
class Listed:
    """What an object of its own says of an operator.

    Attributes:
        name, crc32c: of the object.
        operator: its name there; it may have been renamed since.
        report: without changes.
        runs: oldest first.
        rows: of these runs' state.
    """

    name: str
    crc32c: int
    operator: str
    report: OperatorReport
    runs: tuple[Run, ...]
    rows: StateRows | None

    def to_json(self) -> dict[str, Any]:
        """What the object has of this operator."""
        rows = None if self.rows is None else self.rows.to_json()
        return {"report": self.report_json, "runs": encode_runs(self.runs), "rows": rows}

    @cached_property
    def report_json(self) -> dict[str, Any]:
        return _report_json(self.report)

    @classmethod
    def from_json(cls, name: str, crc32c: int, operator: str, fields: Mapping[str, Any]) -> Listed:
        """Raises: FormatError."""
        with reading(f"what {name} lists of operator {operator!r} is not valid"):
            rows = None if fields["rows"] is None else StateRows.from_json(fields["rows"])
            report = _report(operator, fields["report"], ())
            return cls(name, crc32c, operator, report, decode_runs(fields["runs"]), rows)


@dataclass(frozen=True)
class OperatorEntry:
    """One operator's part of a manifest.

    Attributes:
        report: what this checkpoint added, without what it merged; without handles if it added nothing. Its
            schema is that of the whole state.
        runs: of the whole state, oldest first; the last one is the report's, if it has handles.
        rows: how many the whole state has; `None` if nothing is known.
        merged_bytes: stored bytes of what this checkpoint merged.
        listed: the object that names the first of the runs; `None`: the manifest names all.
    """

    report: OperatorReport
    runs: tuple[Run, ...] = ()
    rows: StateRows | None = None
    merged_bytes: int = 0
    listed: Listed | None = None

    @property
    def handles(self) -> tuple[ChangelogStateHandle, ...]:
        """Of all changes, in log order: a later change of a key replaces an earlier one."""
        return tuple(handle for run in self.runs for handle in run.handles)

    @property
    def older_runs(self) -> tuple[Run, ...]:
        """Those of earlier checkpoints, and what this one merged of them."""
        return self.runs[:-1] if self.report.handles else self.runs

    @property
    def inline_runs(self) -> tuple[Run, ...]:
        """Those that the manifest names itself."""
        return self.runs if self.listed is None else self.runs[len(self.listed.runs) :]

    @property
    def is_begun(self) -> bool:
        """Whether this checkpoint holds the operator's first changes."""
        return bool(self.report.handles) and len(self.runs) == 1

    @property
    def is_idle(self) -> bool:
        """Whether this checkpoint neither wrote the operator nor merged it."""
        return not self.report.handles and not self.merged_bytes

    @property
    def is_as_listed(self) -> bool:
        """Whether the object that lists its runs says everything."""
        listed = self.listed
        return (
            listed is not None
            and self.is_idle
            and self.runs == listed.runs
            and self.rows == listed.rows
            and _report_json(self.report) == listed.report_json
        )

    @property
    def sizes(self) -> StateSizes:
        """Of its whole state."""
        above = [run for run in self.runs if not run.whole]
        whole_bytes = sum(run.stored_bytes for run in self.runs if run.whole)
        return StateSizes(whole_bytes, sum(run.stored_bytes for run in above), len(above))

    def files(self) -> Iterator[str]:
        """The changelog files of its state; a name may be repeated."""
        return (stream.name for run in self.runs for handle in run.handles for stream in handle.streams)

    def as_listed(self) -> Listed:
        """What an object lists of it, which has neither name nor checksum yet: all that is of earlier
        checkpoints; of an idle one, everything.
        """
        rows = self.rows if self.is_idle else None
        return Listed("", 0, self.report.operator, self.report.unchanged(), self.older_runs, rows)

    def to_json(self, attempt_of: Mapping[str, str]) -> dict[str, Any]:
        """`attempt_of`: the attempt of each object that lists runs, by name."""
        listed, report = self.listed, _report_json(self.report)
        fields: dict[str, Any] = {}
        if listed is not None:
            fields["list"] = [attempt_of[listed.name], listed.crc32c]
            if listed.operator != self.report.operator:
                fields["listed_as"] = listed.operator
            report = {name: value for name, value in report.items() if listed.report_json[name] != value}
        fields.update(report)
        if self.inline_runs:
            fields["runs"] = encode_runs(self.inline_runs)
        if self.report.handles:
            fields["own_changes"] = True
        if self.rows != (None if listed is None else listed.rows):
            fields["rows"] = None if self.rows is None else self.rows.to_json()
        if self.merged_bytes:
            fields["merged_bytes"] = self.merged_bytes
        return fields

    @classmethod
    def from_json(cls, operator: str, fields: Mapping[str, Any], listed: Listed | None) -> OperatorEntry:
        """Raises: FormatError."""
        known = {} if listed is None else listed.report_json
        inline = decode_runs(fields["runs"]) if "runs" in fields else ()
        runs = (() if listed is None else listed.runs) + inline
        own = bool(fields.get("own_changes", False))
        if own and not inline:
            raise FormatError(f"operator {operator!r} has changes of its own, but no run of them")
        rows = fields.get("rows")
        if "rows" in fields:
            known_rows = None if rows is None else StateRows.from_json(rows)
        else:
            known_rows = None if listed is None else listed.rows
        return cls(
            _report(operator, {**known, **fields}, runs[-1].handles if own else ()),
            runs,
            known_rows,
            int(fields.get("merged_bytes", 0)),
            listed,
        )


def _report_json(report: OperatorReport) -> dict[str, Any]:
    """Without what stands beside it: the operator's name, and its runs."""
    fields = report.to_json(handles=False)
    return {name: value for name, value in fields.items() if name not in ("operator", "handles", "merges")}


def _report(
    operator: str, fields: Mapping[str, Any], handles: tuple[ChangelogStateHandle, ...]
) -> OperatorReport:
    plain = {**fields, "operator": operator, "handles": (), "merges": ()}
    return replace(OperatorReport.from_json(plain), handles=handles)
