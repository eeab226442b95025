"""What the tasks of an attempt hand over at step 3, and the object that keeps it for step 4.

Owns the values `OperatorReport`, `FileReport` and `AttemptReport`, their JSON form, and the one object per
attempt that stores them. Does not own whether they are true: `checkpoint.record` checks them against the
store.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dstl_dagster.errors import ConflictError, ErrorKind, FormatError, InvalidInputError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle, ColumnIds, KeyGroupRange, StateTtl
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.keyed.cost import CheckpointCost
from dstl_dagster.keyed.coverage import Uncovered
from dstl_dagster.keyed.sources import NameChange, Source
from dstl_dagster.recoverable import Component, GSBlobIdentifier, GSCommitRecoverable
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt, write_once

__all__ = [
    "AttemptReport",
    "Compaction",
    "FileReport",
    "OperatorReport",
    "load_report",
    "report_version",
    "store_report",
    "stored_bytes",
]

_KIND = "report"
_PLAIN, _WITH_IDS, _WITH_SLICES, WITH_COMPACTION, WITH_TTL = 1, 2, 3, 4, 5
NEWEST_VERSION = WITH_TTL
WAITING = "/waits-to-share-a-file"
"""How the file of a handle is named that `shared_files` will make durable with others of its batch."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Compaction:
    """What the first handles of a report are: older changes of their key groups, of each key the last one.

    Attributes:
        handles: so many. They stand for all changes of their key groups since the newest base or compaction
            of each. An operator's first changes count as a base here, if they are not one.
        replaced_bytes: stored bytes of these changes, in proportion to their key groups.
    """

    handles: int
    replaced_bytes: int

    def to_json(self) -> dict[str, int]:
        return {"handles": self.handles, "replaced_bytes": self.replaced_bytes}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Compaction:
        return cls(int(fields["handles"]), int(fields["replaced_bytes"]))


@dataclass(frozen=True)
class OperatorReport:
    """The state changes of one operator in one attempt.

    Attributes:
        operator: the operator's name within the job.
        handles: one per task that wrote anything, each for its own contiguous key-group range.
        key_columns: the names of the key columns, in hash order.
        max_parallelism: the number of key groups; frozen when the operator first writes.
        schema: the Arrow schema message of key and value columns, as `pyarrow.Schema.serialize` writes it.
        upserts, deletes: rows in the change; rows that a base merely repeats are not counted.
        base: the handles are the operator's whole state, and nothing older is needed. First those of the
            base, whose ranges ascend and end with the last key group; then those of this attempt's changes.
        column_ids: of the columns in `schema`, once columns were dropped or renamed.
        base_range: a base of these key groups only, a slice: of them nothing older is needed. Its handles
            come first and end with the range's last key group. `None` if `base`, or without any base.
        compaction: the first handles hold older changes again, tombstones included; the others are this
            attempt's. `None` if there are none such, and beside a base.
        base_rows: in the base or the slice; `None` without one, or if an earlier release wrote it.
        ttl: of the state from this checkpoint on, of older rows too; `None`: rows live until deleted.
    """

    operator: str
    handles: tuple[ChangelogStateHandle, ...]
    key_columns: tuple[str, ...] = ()
    max_parallelism: int = 128
    schema: bytes = b""
    upserts: int = 0
    deletes: int = 0
    base: bool = False
    column_ids: ColumnIds = field(default_factory=ColumnIds)
    base_range: KeyGroupRange | None = None
    compaction: Compaction | None = None
    ttl: StateTtl | None = None
    base_rows: int | None = None

    def __post_init__(self) -> None:
        compaction = self.compaction
        if compaction is not None and (
            self.base or self.base_range is not None or not 0 < compaction.handles <= len(self.handles)
        ):
            raise InvalidInputError(
                f"operator {self.operator!r}: a compaction is some of the report's handles, and not beside a "
                f"base, but this one is {compaction.handles} of {len(self.handles)}"
            )
        slice_ = self.base_range
        if slice_ is not None and (
            self.base or not slice_.number_of_key_groups or slice_.end_key_group >= self.max_parallelism
        ):
            raise InvalidInputError(
                f"operator {self.operator!r}: a slice of a base is of some of its {self.max_parallelism} key "
                f"groups, not {slice_}{', and not beside a whole base' if self.base else ''}"
            )

    @property
    def based(self) -> KeyGroupRange:
        """The key groups whose base this holds: of them nothing older is needed. `EMPTY` if none."""
        if self.base:
            return KeyGroupRange.of(0, self.max_parallelism - 1)
        return self.base_range or KeyGroupRange.EMPTY

    @property
    def key_ids(self) -> list[str]:
        """The ids of the key columns, in hash order; these never change."""
        return [self.column_ids.of(name) for name in self.key_columns]

    @property
    def base_handles(self) -> tuple[ChangelogStateHandle, ...]:
        """The base's handles; empty if this is not a base.

        Raises: FormatError if no handle ends with the last key group, as a base's last one must.
        """
        based = self.based
        if not based.number_of_key_groups:
            return ()
        for count, handle in enumerate(self.handles, 1):
            if handle.key_group_range.end_key_group == based.end_key_group:
                return self.handles[:count]
        raise FormatError(f"the base of operator {self.operator!r} does not reach its last key group")

    @property
    def compacted_handles(self) -> tuple[ChangelogStateHandle, ...]:
        """Those of older changes; empty without a compaction."""
        return () if self.compaction is None else self.handles[: self.compaction.handles]

    @property
    def change_handles(self) -> tuple[ChangelogStateHandle, ...]:
        """The handles of the attempt's own changes."""
        return self.handles[len(self.base_handles) + len(self.compacted_handles) :]

    def unchanged(self) -> OperatorReport:
        """The report of a later checkpoint that adds nothing."""
        # At once: a compaction without handles is refused.
        return replace(
            self,
            handles=(),
            upserts=0,
            deletes=0,
            base=False,
            base_range=None,
            compaction=None,
            base_rows=None,
        )

    @property
    def is_waiting(self) -> bool:
        """Whether some of it waits for the end of its batch's step 3 to be durable (`shared_files`)."""
        return any(stream.name.endswith(WAITING) for handle in self.handles for stream in handle.streams)

    def before(self, uncovered: Uncovered) -> Uncovered:
        """What is uncovered before what this added."""
        uncovered = uncovered.before(self.based, self.max_parallelism)
        return uncovered.compacted_in(each.key_group_range for each in self.compacted_handles)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the changes, before headers and compression."""
        return sum(handle.state_size for handle in self.handles)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the changelog files that hold the changes, as far as their writers knew them."""
        return stored_bytes(self.handles)

    def to_json(self) -> dict[str, Any]:
        # Written only if true, so that the bytes of a report without them never changed.
        more: dict[str, Any] = {"base": True} if self.base else {}
        if self.base_range is not None:
            more["base_range"] = self.base_range.to_json()
        if self.base_rows is not None:
            more["base_rows"] = self.base_rows
        if self.compaction is not None:
            more["compaction"] = self.compaction.to_json()
        if self.column_ids:
            more["column_ids"] = self.column_ids.to_json()
        if self.ttl is not None:
            more["ttl"] = self.ttl.to_json()
        return {
            **more,
            "operator": self.operator,
            "handles": [handle.to_json() for handle in self.handles],
            "key_columns": list(self.key_columns),
            "max_parallelism": self.max_parallelism,
            "schema": base64.b64encode(self.schema).decode("ascii"),
            "upserts": self.upserts,
            "deletes": self.deletes,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> OperatorReport:
        """Raises: FormatError."""
        return _parsed(
            "an operator's report",
            lambda: cls(
                operator=str(fields["operator"]),
                handles=tuple(ChangelogStateHandle.from_json(handle) for handle in fields["handles"]),
                key_columns=tuple(str(name) for name in fields["key_columns"]),
                max_parallelism=int(fields["max_parallelism"]),
                schema=base64.b64decode(fields["schema"], validate=True),
                upserts=int(fields["upserts"]),
                deletes=int(fields["deletes"]),
                base=_flag(fields, "base"),
                column_ids=(
                    ColumnIds.from_json(fields["column_ids"]) if "column_ids" in fields else ColumnIds()
                ),
                base_range=(
                    KeyGroupRange.from_json(fields["base_range"]) if "base_range" in fields else None
                ),
                compaction=Compaction.from_json(fields["compaction"]) if "compaction" in fields else None,
                ttl=StateTtl.from_json(fields["ttl"]) if "ttl" in fields else None,
                base_rows=int(fields["base_rows"]) if "base_rows" in fields else None,
            ),
        )


@dataclass(frozen=True)
class FileReport:
    """One final object whose components an attempt wrote.

    Attributes:
        recoverable: the final name and the component UUIDs, in order.
        components: for each of them, what the store reported when it was written.
        rows: rows in the file; `None` if they were not counted.
        format: `jsonl`, `csv`, `text`, `parquet`, `arrow`, or empty for bytes.
    """

    recoverable: GSCommitRecoverable
    components: tuple[Component, ...]
    rows: int | None = None
    format: str = ""

    @property
    def object_name(self) -> str:
        """The final name, within its bucket."""
        return self.recoverable.final_blob_identifier.object_name

    @property
    def size(self) -> int:
        """Bytes of the final object."""
        return sum(component.size for component in self.components)

    def to_json(self) -> dict[str, Any]:
        final = self.recoverable.final_blob_identifier
        return {
            "bucket": final.bucket_name,
            "object": final.object_name,
            "component_ids": [str(component) for component in self.recoverable.component_object_ids],
            "components": [component.to_json() for component in self.components],
            "rows": self.rows,
            "format": self.format,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> FileReport:
        """Raises: FormatError."""
        return _parsed(
            "a file's report",
            lambda: cls(
                recoverable=GSCommitRecoverable(
                    GSBlobIdentifier(str(fields["bucket"]), str(fields["object"])),
                    tuple(uuid.UUID(component) for component in fields["component_ids"]),
                ),
                components=tuple(Component.from_json(component) for component in fields["components"]),
                rows=None if fields["rows"] is None else int(fields["rows"]),
                format=str(fields["format"]),
            ),
        )


@dataclass(frozen=True)
class AttemptReport:
    """Everything that steps 2 and 3 of one attempt produced, in one document.

    Attributes:
        sources: those that it moved, as they are once it is complete.
        seconds: how long steps 2 and 3 took, by the driver's clock.
        cost: what steps 1 to 3 requested; `None` if nobody counted.
        names: new names of what the parent holds; empty in a batch.
    """

    operators: tuple[OperatorReport, ...] = ()
    files: tuple[FileReport, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    seconds: float = 0.0
    cost: CheckpointCost | None = None
    names: NameChange = field(default_factory=NameChange)

    @property
    def positions(self) -> dict[str, Any]:
        """How far each source that it moved has been read."""
        return {name: source.position for name, source in self.sources.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            **({} if self.cost is None else {"cost": self.cost.to_json()}),
            "operators": [operator.to_json() for operator in self.operators],
            "files": [file.to_json() for file in self.files],
            "sources": {name: source.to_json() for name, source in sorted(self.sources.items())},
            "names": self.names.to_json(),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> AttemptReport:
        """Raises: FormatError."""
        return _parsed(
            "an attempt's report",
            lambda: cls(
                operators=tuple(OperatorReport.from_json(entry) for entry in fields["operators"]),
                files=tuple(FileReport.from_json(entry) for entry in fields["files"]),
                sources={str(name): Source.from_json(each) for name, each in fields["sources"].items()},
                names=NameChange.from_json(fields["names"]),
                seconds=float(fields["seconds"]),
                cost=CheckpointCost.from_json(fields["cost"]) if "cost" in fields else None,
            ),
        )


def store_report(store: ObjectStore, attempt: Attempt, report: AttemptReport) -> None:
    """Store the report for step 4, once. Storing the same report again is no error.

    Raises: ConflictError (kind `other_report`) if the attempt already has a different report: an attempt
    does its work once, and a second try needs an attempt of its own.
    """
    name = attempt.names.report(attempt.attempt)
    version = report_version(report.operators)
    payload = encode_document(_KIND, version, report.to_json())
    conflict = ConflictError(
        f"attempt {attempt.attempt} of job {attempt.job!r} already stored a different report: trigger a new "
        "attempt for a second try",
        kind=ErrorKind.OTHER_REPORT,
    )
    write_once(store, name, payload, otherwise=conflict)


def load_report(store: ObjectStore, attempt: Attempt) -> AttemptReport:
    """The report that steps 2 and 3 stored.

    Raises: NotFoundError (kind `no_report`: the work never finished, or the attempt was cleaned up),
    FormatError.
    """
    name = attempt.names.report(attempt.attempt)
    try:
        payload = store.get(name)
    except NotFoundError as error:
        raise NotFoundError(
            f"attempt {attempt.attempt} of job {attempt.job!r} left no report ({name}): its work did not "
            "finish. Run the appending step (steps 1 to 3) again; it opens a new attempt",
            kind=ErrorKind.NO_REPORT,
        ) from error
    _, fields = decode_document(_KIND, NEWEST_VERSION, payload, name)
    return AttemptReport.from_json(fields)


def report_version(operators: Iterable[OperatorReport]) -> int:
    """The version of a document with these reports: an earlier release must refuse it, where it would take a
    renamed column for a new one, a slice of a base for changes, changes that a compaction replaces for
    needed, or expired rows for rows.
    """
    reports = list(operators)
    if any(each.ttl is not None and each.ttl.ttl_us is not None for each in reports):
        return WITH_TTL
    if any(each.compaction is not None for each in reports):
        return WITH_COMPACTION
    if any(each.base_range is not None for each in reports):
        return _WITH_SLICES
    return _WITH_IDS if any(each.column_ids for each in reports) else _PLAIN


def stored_bytes(handles: Iterable[ChangelogStateHandle]) -> int:
    """Bytes of the files that hold these handles, each counted once, as far as their writers knew them; of
    files that others share, their part.
    """
    handles = list(handles)
    files = {
        stream.name: stream for handle in handles if handle.share_bytes is None for stream in handle.streams
    }
    shares = sum(handle.share_bytes or 0 for handle in handles)
    return shares + sum(stream.stored_bytes or stream.size or 0 for stream in files.values())


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise FormatError(f"{name!r} is {value!r}, not true or false")
    return value


def _parsed(what: str, build: Callable[[], T]) -> T:
    with reading(f"{what} is not valid"):
        return build()
