"""The reports to steps 3 and 4: of each operator, of each file, and of an attempt as a whole.

Owns these values, their JSON form, and the object that holds a report between two steps. Does not own the
checks of a report (`checkpoint.steps`), or what a TTL hides (`format.StateTtl`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle, ColumnIds, StateTtl, Stored
from dstl_dagster.format.envelope import decode_document, encode_document
from dstl_dagster.keyed.documents.runs import Merge
from dstl_dagster.keyed.documents.sources import NameChange, Source
from dstl_dagster.recoverable import Component, GSCommitRecoverable
from dstl_dagster.storage import CheckpointCost, ObjectStore
from dstl_dagster.timeline import Attempt, write_once

_KIND = "report"
_VERSION = 1
WAITING = "/waits-to-share-a-file"
"""How the file of a handle is named that `shared_files` will make durable with others of its batch."""


@dataclass(frozen=True)
class OperatorReport(Stored):
    """The state changes of one operator in one attempt.

    Attributes:
        operator: the operator's name within the job.
        handles: one per task that wrote anything, each for its own contiguous key-group range.
        key_columns: the names of the key columns, in hash order.
        max_parallelism: the number of key groups; frozen when the operator first writes.
        schema: the Arrow schema message of key and value columns, as `pyarrow.Schema.serialize` writes it.
        upserts, deletes: rows in the change; rows that a merge merely repeats are not counted.
        null_keys: upserts whose key has a null in any of its columns.
        column_ids: of the columns in `schema`, once columns were dropped or renamed.
        merges: runs of the parent's state that the attempt wrote in the place of several; its own changes
            come after them.
        ttl: of the state from this checkpoint on, of older rows too; `None`: rows live until deleted.
        partition_columns: of the schema; frozen when the operator first writes.
    """

    operator: str
    handles: tuple[ChangelogStateHandle, ...]
    key_columns: tuple[str, ...] = ()
    max_parallelism: int = 128
    schema: bytes = b""
    upserts: int = 0
    deletes: int = 0
    null_keys: int = 0
    column_ids: ColumnIds = field(default_factory=ColumnIds)
    merges: tuple[Merge, ...] = ()
    ttl: StateTtl | None = None
    partition_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for merge in self.merges:
            if merge.key_groups.end_key_group >= self.max_parallelism:
                raise InvalidInputError(
                    f"operator {self.operator!r}: a merge is of some of its {self.max_parallelism} key "
                    f"groups, not of {merge.key_groups}"
                )

    @property
    def is_of_all(self) -> bool:
        """Whether nothing older than its merges is needed."""
        return any(merge.is_of_all(self.max_parallelism) for merge in self.merges)

    @property
    def written_handles(self) -> tuple[ChangelogStateHandle, ...]:
        """All that the attempt wrote: of its merges, and of its own changes."""
        return tuple(handle for merge in self.merges for handle in merge.run.handles) + self.handles

    def unchanged(self) -> OperatorReport:
        """The report of a later checkpoint that adds nothing."""
        return replace(self, handles=(), upserts=0, deletes=0, null_keys=0, merges=())

    @property
    def is_waiting(self) -> bool:
        """Whether some of it waits for the end of its batch's step 3 to be durable (`shared_files`)."""
        return any(stream.name.endswith(WAITING) for each in self.written_handles for stream in each.streams)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the changes, before headers and compression."""
        return sum(handle.state_size for handle in self.handles)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the changelog files that hold the changes, as far as their writers knew them."""
        return stored_bytes(self.handles)


@dataclass(frozen=True)
class FileReport(Stored):
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


@dataclass(frozen=True)
class AttemptReport(Stored):
    """Everything that steps 2 and 3 of one attempt produced, in one document.

    Attributes:
        sources: those that it moved, as its program says them (`merged_sources`).
        seconds: how long steps 2 and 3 took, by the driver's clock.
        cost: the requests of steps 1 to 3; `None` if they were not counted.
        names: new names of what the parent holds; empty in a batch.
        user_metadata: what the program says of the checkpoint; may be empty.
    """

    operators: tuple[OperatorReport, ...] = ()
    files: tuple[FileReport, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    seconds: float = 0.0
    cost: CheckpointCost | None = None
    names: NameChange = field(default_factory=NameChange)
    user_metadata: str = ""

    @property
    def positions(self) -> dict[str, Any]:
        """How far each source that it moved has been read."""
        moved = self.sources.items()
        return {name: source.position for name, source in moved if source.position is not None}


def store_report(store: ObjectStore, attempt: Attempt, report: AttemptReport) -> None:
    """Store the report for step 4, once. Storing the same report again is no error.

    Raises: ConflictError (kind `other_report`) if the attempt already has a different report: an attempt
    does its work once, and a second try needs an attempt of its own.
    """
    name = attempt.names.report(attempt.attempt)
    payload = encode_document(_KIND, _VERSION, report.to_json())
    conflict = ConflictError(
        f"attempt {attempt.attempt} of job {attempt.job!r} already stored a different report: trigger a new "
        "attempt for a second try",
        kind=ErrorKind.OTHER_REPORT,
    )
    write_once(store, name, payload, otherwise=conflict)


def load_report(store: ObjectStore, attempt: Attempt) -> AttemptReport:
    """The report that steps 2 and 3 stored.

    Raises: NotFoundError (kind `not_written`: the work never finished, or the attempt was cleaned up),
    FormatError.
    """
    name = attempt.names.report(attempt.attempt)
    try:
        payload = store.get(name)
    except NotFoundError as error:
        raise NotFoundError(
            f"attempt {attempt.attempt} of job {attempt.job!r} left no report ({name}): its work did not "
            "finish. Run the appending step (steps 1 to 3) again; it opens a new attempt",
            kind=ErrorKind.NOT_WRITTEN,
        ) from error
    _, fields = decode_document(_KIND, _VERSION, payload, name)
    return AttemptReport.from_json(fields)


def stored_bytes(handles: Iterable[ChangelogStateHandle]) -> int:
    """Bytes of the files that hold these handles, each counted once, as far as their writers knew them; of
    files that others share, their part.
    """
    handles = list(handles)
    files = {
        stream.name: stream for handle in handles if handle.share_bytes is None for stream in handle.streams
    }
    shares = sum(handle.share_bytes or 0 for handle in handles)
    return shares + sum(stream.known_bytes for stream in files.values())
