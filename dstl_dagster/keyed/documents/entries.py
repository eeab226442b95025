"""A manifest's entry of one operator: its report, the runs of its whole state, and how many rows that is.

Owns the value and its JSON form, and the objects that name runs so that later manifests need not name them
again: when runs move into one, its bytes, and reading it. Does not own the manifests that name it
(`manifest`), the bounds of its rows (`row_count`), or how a checkpoint's entry follows from its parent's
(`checkpoint.steps.record`).

Such an object is written at step 4, under the attempt's own name, by a checkpoint that merged runs, has many
of them inline, or leaves operators as they are that its parent wrote. It is never changed; a manifest names
it with its checksum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

from dstl_dagster.concurrency import Memory, gather
from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle, StreamStateHandle, plain_object, whole_number
from dstl_dagster.format.crc32c import crc32c as crc32c_of
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.keyed.documents.reports import OperatorReport
from dstl_dagster.keyed.documents.row_count import StateRows
from dstl_dagster.keyed.documents.runs import Run, decode_runs, encode_runs
from dstl_dagster.storage import ObjectStore

_KIND = "run-list"
_VERSION = 1

_LEAST_INLINE: Final = 8
"""Runs that a manifest names itself, at least. Of a log that is never merged more: a list of all runs costs
what they are, and is written the less often."""

_IDLE_BYTES: Final = 4 << 10
"""Of JSON, that a manifest spends on operators which it only repeats; above it these move into a list."""

_SMALL_ENTRY_BYTES: Final = 512
"""Of JSON, for one operator beside its list: such as its TTL's time, which moves on with each checkpoint."""

_MOST_LISTS: Final = 16
"""Objects that list operators which are idle: with more, they move into one."""

_BESIDE: Final = ("operator", "handles", "merges")
"""Of a report, what stands beside it in a manifest: its operator's name, and the runs."""

_MOST_KEPT: Final = 64
_THREADS: Final = 8


@dataclass(frozen=True)
class Listed:
    """An operator's entry in an object of its own.

    Attributes:
        name, crc32c: of the object.
        entry: without changes, and with all runs inline; its report names the operator as it was called then.
    """

    name: str
    crc32c: int
    entry: OperatorEntry


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
        return self.runs if self.listed is None else self.runs[len(self.listed.entry.runs) :]

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
        entry = None if self.listed is None else self.listed.entry
        return (
            entry is not None
            and self.is_idle
            and self.runs == entry.runs
            and self.rows == entry.rows
            and self._report_json == entry._report_json
        )

    @property
    def state_bytes(self) -> int:
        """Stored bytes of its whole state."""
        return sum(run.stored_bytes for run in self.runs)

    def files(self) -> Iterator[StreamStateHandle]:
        """The changelog files of its state; one may be repeated."""
        return (stream for run in self.runs for handle in run.handles for stream in handle.streams)

    def as_listed(self) -> OperatorEntry:
        """Its entry in an object: all that is of earlier checkpoints; of an idle one, everything."""
        rows = self.rows if self.is_idle else None
        return OperatorEntry(self.report.unchanged(), self.older_runs, rows)

    @cached_property
    def _report_json(self) -> dict[str, Any]:
        """Without what stands beside it."""
        fields = replace(self.report, handles=(), merges=()).to_json()
        return {name: value for name, value in fields.items() if name not in _BESIDE}

    def to_json(self) -> dict[str, Any]:
        report, known = self._report_json, _NOTHING
        fields: dict[str, Any] = {}
        if self.listed is not None:
            *_, attempt, _ = self.listed.name.split("/")  # as `JobNames.run_list` puts it
            fields["list"] = [attempt, self.listed.crc32c]
            known = self.listed.entry
            if known.report.operator != self.report.operator:
                fields["listed_as"] = known.report.operator
            report = {name: value for name, value in report.items() if known._report_json[name] != value}
        if report:
            fields["report"] = report
        if self.inline_runs:
            fields["runs"] = encode_runs(self.inline_runs)
        if self.report.handles:
            fields["own_changes"] = True
        if self.rows != known.rows:
            fields["rows"] = None if self.rows is None else self.rows.to_json()
        if self.merged_bytes:
            fields["merged_bytes"] = self.merged_bytes
        return fields

    @classmethod
    def from_json(
        cls, operator: str, fields: Mapping[str, Any], listed: Listed | None = None
    ) -> OperatorEntry:
        """Raises: FormatError."""
        known = _NOTHING if listed is None else listed.entry
        inline = decode_runs(fields["runs"]) if "runs" in fields else ()
        runs = known.runs + inline
        own = bool(fields.get("own_changes", False))
        if own and not inline:
            raise FormatError(f"operator {operator!r} has changes of its own, but no run of them")
        rows = known.rows
        if "rows" in fields:
            rows = None if fields["rows"] is None else StateRows.from_json(fields["rows"])
        before = {} if listed is None else known._report_json
        plain = {**before, **fields.get("report", {}), "operator": operator, "handles": [], "merges": []}
        report = replace(OperatorReport.from_json(plain), handles=runs[-1].handles if own else ())
        return cls(report, runs, rows, whole_number(fields.get("merged_bytes", 0)), listed)


_NOTHING: Final = OperatorEntry(OperatorReport("", ()))
"""Known of an operator that no object lists."""


def to_be_listed(entries: Mapping[str, OperatorEntry]) -> list[str]:
    """The operators of a checkpoint whose runs move into an object of its own, ascending. Pure."""
    found = {name for name, entry in entries.items() if _has_many(entry)}
    idle = {name: entry for name, entry in entries.items() if entry.is_idle}
    repeated = {
        name: size
        for name, entry in idle.items()
        if not entry.is_as_listed and (size := len(json.dumps(entry.to_json()))) > _SMALL_ENTRY_BYTES
    }
    if sum(repeated.values()) > _IDLE_BYTES:
        found.update(repeated)
    lists = {entry.listed.name for entry in idle.values() if entry.listed is not None}
    if len(lists) > _MOST_LISTS:
        found.update(idle)
    return sorted(name for name in found if entries[name].older_runs)


def _has_many(entry: OperatorEntry) -> bool:
    inline = len(entry.inline_runs) - bool(entry.report.handles)
    return bool(entry.merged_bytes) or inline > max(_LEAST_INLINE, math.isqrt(2 * len(entry.runs)))


def encode_list(job: str, entries: Mapping[str, OperatorEntry], names: Collection[str]) -> bytes:
    """The object that lists these operators. The same entries give the same bytes."""
    fields = {"job": job, "operators": {name: entries[name].as_listed().to_json() for name in names}}
    return encode_document(_KIND, _VERSION, fields)


def require_same_document(what: str, expected: int | None, found: int | None) -> None:
    """Compare the checksums of a document, where both are known. Raises: FormatError."""
    if None not in (expected, found) and expected != found:
        raise FormatError(
            f"{what} has CRC-32C {found:08x}, but what names it says {expected:08x}: it was damaged or "
            "replaced. Put back the object from a copy, or restore the job to an older checkpoint"
        )


def load_list(store: ObjectStore, job: str, name: str, crc32c: int) -> dict[str, Listed]:
    """What an object lists, by operator. Raises: NotFoundError (kind `state_missing`), FormatError."""
    try:
        payload = store.get(name)
    except NotFoundError as error:
        raise NotFoundError(f"run list {name} is gone", kind=ErrorKind.STATE_MISSING) from error
    found = crc32c_of(payload)
    require_same_document(f"run list {name}", crc32c, found)
    _, fields = decode_document(_KIND, _VERSION, payload, name)
    with reading(f"{name} is not a valid run list"):
        if fields["job"] != job:
            raise FormatError(f"run list {name} is of job {fields['job']!r}, not of {job!r}")
        operators = plain_object(fields["operators"])
        return {
            each: Listed(name, found, OperatorEntry.from_json(each, operators[each])) for each in operators
        }


class RunLists:
    """The lists that were read or written last: later manifests name the same ones. Thread-safe."""

    def __init__(self) -> None:
        self._kept = Memory(_MOST_KEPT)

    def of(self, store: ObjectStore, job: str, wanted: Mapping[str, int]) -> Callable[[str, str], Listed]:
        """A function that returns an operator's part of each of these lists, by name with their checksums.

        Raises: as `load_list`; the function, FormatError.
        """
        loads = [partial(self._one, store, job, *each) for each in wanted.items()]
        lists = gather(loads, store.capabilities.lookup_threads(_THREADS), "dstl-run-lists")
        found = dict(zip(wanted, lists, strict=True))

        def listed(name: str, operator: str) -> Listed:
            if operator not in found[name]:
                raise FormatError(f"{name} should list the runs of operator {operator!r}, but does not")
            return found[name][operator]

        return listed

    def _one(self, store: ObjectStore, job: str, name: str, crc32c: int) -> dict[str, Listed]:
        with self._kept.one_at_a_time(name):  # manifests that are read at once name the same lists
            found: dict[str, Listed] | None = self._kept.find((name, crc32c))
            if found is None:
                found = load_list(store, job, name, crc32c)
                self._kept.keep((name, crc32c), found, 1)
        return found

    def written(
        self, name: str, payload: bytes, entries: Mapping[str, OperatorEntry], names: Collection[str]
    ) -> dict[str, OperatorEntry]:
        """The entries after these moved into this object."""
        crc32c = crc32c_of(payload)
        listed = {each: Listed(name, crc32c, entries[each].as_listed()) for each in names}
        self._kept.keep((name, crc32c), listed, 1)
        return {
            each: replace(entry, listed=listed[each]) if each in listed else entry
            for each, entry in entries.items()
        }
