"""The manifest: what one checkpoint holds. Written once at step 4, named by the `completed` record.

Owns the value, its bytes, and write-once storage. Does not own checking that what it names exists
(`checkpoint.record`), or following it back to older checkpoints (`operator_log`).

State is recorded as a delta: an operator's entry holds the handles of this checkpoint, repeats a bounded
number of those before it (`carried`), and names the manifest with the next older ones. So a manifest's size
depends on what changed, not on history.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dstl_dagster.errors import ConflictError, ErrorKind, FormatError, NotFoundError
from dstl_dagster.format.crc32c import crc32c as crc32c_of
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.keyed.carried import Carried
from dstl_dagster.keyed.cost import CheckpointCost
from dstl_dagster.keyed.reports import (
    NEWEST_VERSION,
    WITH_COMPACTION,
    FileReport,
    OperatorReport,
    report_version,
    stored_bytes,
)
from dstl_dagster.keyed.sources import Source
from dstl_dagster.keyed.state_rows import StateRows
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt, write_once

__all__ = [
    "BaseAndLog",
    "Manifest",
    "OperatorEntry",
    "load_manifest",
    "require_same_manifest",
    "store_manifest",
]

_KIND = "manifest"
_WITH_SLICES = 3
"""The version of a manifest whose state is folded in part, or that repeats older reports."""
_LONG_CHECKPOINTS = 4


@dataclass(frozen=True)
class BaseAndLog:
    """What reading an operator's state costs, and how far it is folded.

    A state is folded in rounds: slice after slice, from the first key group to the last. A whole base is a
    round of its own, and so are an operator's first changes, which nothing older precedes.

    Attributes:
        base_bytes: stored bytes of the bases that the last finished round wrote; 0 if there is none.
        log_bytes: stored bytes of all changes since then, less what compactions saved.
        checkpoints: number of checkpoints that hold these changes.
        folded_key_groups: so many key groups, from the first one on, have a base of the current round.
        folded_bytes: stored bytes of these.
        in_slices: the log of some key groups begins before that of others.
    """

    base_bytes: int = 0
    log_bytes: int = 0
    checkpoints: int = 0
    folded_key_groups: int = 0
    folded_bytes: int = 0
    in_slices: bool = False

    def with_report(self, report: OperatorReport) -> BaseAndLog:
        """The same after one more checkpoint."""
        changes = report.change_handles
        if self == BaseAndLog() and changes and not report.based.number_of_key_groups:
            return BaseAndLog(stored_bytes(changes))
        before = BaseAndLog(stored_bytes(report.base_handles)) if report.base else self._with_slice(report)
        if report.compaction is not None:
            compacted = stored_bytes(report.compacted_handles) - report.compaction.replaced_bytes
            before = replace(before, log_bytes=max(0, before.log_bytes + compacted), in_slices=True)
        return replace(
            before,
            log_bytes=before.log_bytes + stored_bytes(changes),
            checkpoints=before.checkpoints + bool(changes),
        )

    def _with_slice(self, report: OperatorReport) -> BaseAndLog:
        based = report.based
        if not based.number_of_key_groups:
            return self
        sliced = replace(self, in_slices=True)
        if based.start_key_group != self.folded_key_groups:
            return sliced  # out of turn: the round goes on where it was
        folded, folded_bytes = based.end_key_group + 1, self.folded_bytes + stored_bytes(report.base_handles)
        if folded == report.max_parallelism:
            return BaseAndLog(folded_bytes, in_slices=True)
        return replace(sliced, folded_key_groups=folded, folded_bytes=folded_bytes)

    def to_json(self) -> dict[str, Any]:
        fields = {
            "base_bytes": self.base_bytes,
            "log_bytes": self.log_bytes,
            "checkpoints": self.checkpoints,
        }
        # Written only with slices, so that the bytes of a manifest without them never changed.
        sliced = {"folded_key_groups": self.folded_key_groups, "folded_bytes": self.folded_bytes}
        return {**fields, **sliced} if self.in_slices else fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> BaseAndLog:
        known = {str(name): int(value) for name, value in fields.items()}
        return cls(**known, in_slices="folded_key_groups" in known)


@dataclass(frozen=True)
class OperatorEntry:
    """One operator's part of a manifest.

    Attributes:
        report: what this checkpoint added; without handles if it added nothing.
        previous: the manifest that holds the next older handles, older than `carried`; `None` if there are
            none.
        sizes: of the whole state at this checkpoint, so that finding them takes no walk along the chain;
            `None` in manifests of the first release, and in those that build on one.
        carried: the reports that come before this one, newest first, repeated here so that their manifests
            need not be read.
        previous_crc32c: of all bytes of the manifest named `previous`.
        previous_operator: its name in that manifest, if the operator was renamed since; else empty.
        rows: how many the whole state has; `None` if nothing is known.
    """

    report: OperatorReport
    previous: str | None
    sizes: BaseAndLog | None = None
    carried: tuple[Carried, ...] = ()
    previous_crc32c: int | None = None
    rows: StateRows | None = None
    previous_operator: str = ""

    def begins_with(self, oldest: OperatorReport) -> bool:
        """Whether the oldest report of this entry holds the operator's first changes, with nothing before."""
        return self.previous is None and not oldest.base

    @property
    def is_begun(self) -> bool:
        """Whether this checkpoint holds the operator's first changes."""
        return not self.carried and self.begins_with(self.report)

    @property
    def has_long_log(self) -> bool:
        """Whether it takes enough manifests to read for its reports to be carried on."""
        sizes = self.sizes
        return bool(self.carried) or (
            sizes is not None and (sizes.in_slices or sizes.checkpoints >= _LONG_CHECKPOINTS)
        )

    def to_json(self) -> dict[str, Any]:
        more: dict[str, Any] = {} if self.sizes is None else {"sizes": self.sizes.to_json()}
        if self.carried:
            more["carried"] = [each.to_json() for each in self.carried]
        if self.previous_crc32c is not None:
            more["previous_crc32c"] = self.previous_crc32c
        if self.previous_operator:
            more["previous_operator"] = self.previous_operator
        if self.rows is not None:
            more["rows"] = self.rows.to_json()
        return {"report": self.report.to_json(), "previous": self.previous, **more}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> OperatorEntry:
        sizes = fields.get("sizes")
        return cls(
            OperatorReport.from_json(fields["report"]),
            fields["previous"],
            None if sizes is None else BaseAndLog.from_json(sizes),
            tuple(Carried.from_json(each) for each in fields.get("carried", ())),
            None if fields.get("previous_crc32c") is None else int(fields["previous_crc32c"]),
            None if fields.get("rows") is None else StateRows.from_json(fields["rows"]),
            str(fields.get("previous_operator", "")),
        )


@dataclass(frozen=True)
class Manifest:
    """Everything a checkpoint holds, inline or by reference.

    Attributes:
        operators: one entry for every operator that ever wrote state, by name.
        files: the files that become visible with this checkpoint.
        sources: what applies to the job, and how far each is; all that ever did, by name.
        persist_seconds: how long steps 2 and 3 took.
        cost: what steps 1 to 4 requested, as far as they were counted; `None` in manifests of earlier
            releases. The one field in which two tries of step 4 may differ: the first that is stored stays.
        crc32c: of all bytes of the object that it was stored in or loaded from; `None` before that.
        generation: of the object that it was stored in; `None` if another try stored it, or it was loaded.
    """

    job: str
    checkpoint_id: int
    attempt: uuid.UUID
    parent: int | None
    operators: Mapping[str, OperatorEntry] = field(default_factory=dict)
    files: tuple[FileReport, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    persist_seconds: float = 0.0
    cost: CheckpointCost | None = None
    crc32c: int | None = field(default=None, compare=False)
    generation: int | None = field(default=None, compare=False)

    @property
    def positions(self) -> dict[str, Any]:
        """How far each source has been read, by its name; without those that have no position."""
        known = self.sources.items()
        return {name: source.position for name, source in known if source.position is not None}

    @property
    def changes(self) -> int:
        """Rows upserted or deleted in this checkpoint, over all operators."""
        return sum(entry.report.upserts + entry.report.deletes for entry in self.operators.values())

    @property
    def begun_beside_idle(self) -> list[str]:
        """A sentence for each source of which an operator got its first rows here, and another one none: a
        new name of an old state looks like this.
        """
        written = {name for name, entry in self.operators.items() if entry.report.handles}
        begun = {name for name in written if self.operators[name].is_begun}
        return [
            f"source {name!r} wrote the first rows of {', '.join(new)}, and none of {', '.join(idle)}: if "
            "that is one state under a new name, restore to before and run dstl checkpoints operator --rename"
            for name, source in sorted(self.sources.items())
            if (new := sorted(begun.intersection(source.operators)))
            and (idle := sorted(set(source.operators) - written))
        ]

    @property
    def rows(self) -> StateRows | None:
        """Of the whole state, over all operators with keyed state; `None` if it is not known of each."""
        return StateRows.total(entry.rows for entry in self.operators.values() if entry.report.schema)

    @property
    def state_bytes(self) -> int:
        """Bytes of changelog files that this checkpoint added."""
        return sum(entry.report.stored_bytes for entry in self.operators.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of this checkpoint's files."""
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            # An earlier release ignores it.
            **({} if self.cost is None else {"cost": self.cost.to_json()}),
            "job": self.job,
            "checkpoint_id": self.checkpoint_id,
            "attempt": str(self.attempt),
            "parent": self.parent,
            "operators": {name: entry.to_json() for name, entry in sorted(self.operators.items())},
            "files": [file.to_json() for file in self.files],
            "sources": {name: source.to_json() for name, source in sorted(self.sources.items())},
            "persist_seconds": self.persist_seconds,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], where: str) -> Manifest:
        """Raises: FormatError."""
        with reading(f"{where} is not a valid manifest"):
            return cls(
                job=str(fields["job"]),
                checkpoint_id=int(fields["checkpoint_id"]),
                attempt=uuid.UUID(fields["attempt"]),
                parent=None if fields["parent"] is None else int(fields["parent"]),
                operators={
                    str(name): OperatorEntry.from_json(entry) for name, entry in fields["operators"].items()
                },
                files=tuple(FileReport.from_json(file) for file in fields["files"]),
                sources={str(name): Source.from_json(each) for name, each in fields["sources"].items()},
                persist_seconds=float(fields["persist_seconds"]),
                cost=CheckpointCost.from_json(fields["cost"]) if "cost" in fields else None,
            )


def store_manifest(store: ObjectStore, attempt: Attempt, manifest: Manifest) -> Manifest:
    """Write the manifest once, under the attempt's own name. Repeating it is no error.

    Returns: the manifest that is stored, with its checksum: of another try it may tell another cost.
    Raises: ConflictError (kind `other_manifest`).
    """
    name = attempt.names.manifest(attempt.checkpoint_id, attempt.attempt)
    payload = encode_document(_KIND, _version(manifest), manifest.to_json())
    conflict = ConflictError(
        f"attempt {attempt.attempt} already recorded a different manifest ({name})",
        kind=ErrorKind.OTHER_MANIFEST,
    )

    def is_same(there: bytes) -> bool:
        try:
            return _compared(_decoded(there, name)) == _compared(manifest)
        except FormatError:
            return False

    there, generation = write_once(store, name, payload, otherwise=conflict, is_same=is_same)
    if there != payload:
        return _decoded(there, name)
    return replace(manifest, crc32c=crc32c_of(there), generation=generation)


def _compared(manifest: Manifest) -> dict[str, Any]:
    """What two tries of step 4 must agree on: the other may be an earlier release's, which counts no rows."""
    entries = {name: replace(each, rows=None) for name, each in manifest.operators.items()}
    return replace(manifest, cost=None, operators=entries).to_json()


def _version(manifest: Manifest) -> int:
    """An earlier release must refuse what it would misread."""
    entries = manifest.operators.values()
    own = report_version(each.report for each in entries)
    repeats_compaction = any(repeated.has_compaction for each in entries for repeated in each.carried)
    if own < WITH_COMPACTION and repeats_compaction:
        return WITH_COMPACTION
    if own < _WITH_SLICES and any(
        each.carried or (each.sizes is not None and each.sizes.in_slices) for each in entries
    ):
        return _WITH_SLICES
    return own


def load_manifest(store: ObjectStore, name: str, crc32c: int | None = None) -> Manifest:
    """The manifest in this object. `crc32c`: of all its bytes, as what names it says, where that is known.

    Raises: NotFoundError (kind `no_manifest`: its checkpoint was cleaned up), FormatError.
    """
    try:
        payload = store.get(name)
    except NotFoundError as error:
        raise NotFoundError(
            f"manifest {name} is gone: the checkpoint it belongs to was cleaned up or never recorded",
            kind=ErrorKind.NO_MANIFEST,
        ) from error
    return _decoded(payload, name, crc32c)


def _decoded(payload: bytes, name: str, crc32c: int | None = None) -> Manifest:
    found = crc32c_of(payload)
    require_same_manifest(name, crc32c, found)
    _, fields = decode_document(_KIND, NEWEST_VERSION, payload, name)
    return replace(Manifest.from_json(fields, name), crc32c=found)


def require_same_manifest(name: str, expected: int | None, found: int | None) -> None:
    """Compare checksums of a manifest, where both are known. Raises: FormatError."""
    if None not in (expected, found) and expected != found:
        raise FormatError(
            f"manifest {name} has CRC-32C {found:08x}, but what names it says {expected:08x}: it was damaged "
            "or replaced. Put back the object from a copy, or restore the job to an older checkpoint"
        )
