"""The manifest: the content of one checkpoint. Written once at step 4, named by the `completed` record.

Owns the value, its bytes, and write-once storage. Does not own checking that what it names exists
(`checkpoint.steps.record`), or which runs are named in an object of their own (`entries`).

A manifest names all runs of each operator: the newest ones itself, the others by one object that later
manifests name too, until a merge. So a state is planned from a manifest and such objects, and from no other
checkpoint. An untouched operator costs a name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dstl_dagster.errors import ConflictError, ErrorKind, FormatError, NotFoundError
from dstl_dagster.format import (
    NOT_STORED,
    JobNames,
    StreamStateHandle,
    from_fields,
    plain_object,
    to_fields,
)
from dstl_dagster.format.crc32c import crc32c as crc32c_of
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.keyed.documents.entries import (
    OperatorEntry,
    RunLists,
    encode_list,
    require_same_document,
    to_be_listed,
)
from dstl_dagster.keyed.documents.reports import FileReport
from dstl_dagster.keyed.documents.row_count import StateRows
from dstl_dagster.keyed.documents.sources import Source
from dstl_dagster.storage import RECORD, TRIGGER, CheckpointCost, Cost, ObjectStore
from dstl_dagster.timeline import Attempt, write_once

_KIND = "manifest"
_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """Everything a checkpoint holds, inline or by reference.

    Attributes:
        operators: one entry for every operator that ever wrote state, by name.
        files: the files that become visible with this checkpoint.
        sources: what applies to the job, and how far each is; all that ever did, by name.
        persist_seconds: how long steps 2 and 3 took.
        user_metadata: what the batch's program says of it; may be empty.
        cost: what steps 1 to 4 requested, as far as they were counted. The one field in which two tries of
            step 4 may differ: the first that is stored stays.
        crc32c: of all bytes of the object that it was stored in or loaded from; `None` before that.
        generation: of the object that it was stored in; `None` if another try stored it, or it was loaded.
    """

    job: str
    checkpoint_id: int
    attempt: uuid.UUID
    parent: int | None
    operators: Mapping[str, OperatorEntry] = field(default_factory=dict, metadata=NOT_STORED)
    files: tuple[FileReport, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    persist_seconds: float = 0.0
    user_metadata: str = ""
    cost: CheckpointCost | None = None
    crc32c: int | None = field(default=None, compare=False, metadata=NOT_STORED)
    generation: int | None = field(default=None, compare=False, metadata=NOT_STORED)

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
        wrote = {source.operators: name for name, source in sorted(self.sources.items())}
        return [
            f"source {name!r} wrote the first rows of {', '.join(new)}, and none of {', '.join(idle)}: if "
            "that is one state under a new name, restore to before and run dstl checkpoints operator --rename"
            for operators, name in wrote.items()
            if (new := sorted(begun.intersection(operators))) and (idle := sorted(set(operators) - written))
        ]

    @property
    def rows(self) -> StateRows | None:
        """Of the whole state, over all operators with keyed state; `None` if it is not known of each."""
        return StateRows.total(entry.rows for entry in self.operators.values() if entry.report.schema)

    @property
    def state_bytes(self) -> int:
        """Bytes of changelog files that this checkpoint added."""
        return sum(entry.report.stored_bytes + entry.merged_bytes for entry in self.operators.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of this checkpoint's files."""
        return sum(file.size for file in self.files)

    @property
    def counted_cost(self) -> Cost | None:
        """Of steps 1 to 4; `None` if any was not counted: a driver outside Dagster counts its own alone."""
        return self.cost.total if self.cost and {TRIGGER, RECORD} <= set(self.cost.steps) else None

    @property
    def lists(self) -> dict[str, int]:
        """The objects that list runs of its operators, by name with their checksums."""
        listed = (entry.listed for entry in self.operators.values())
        return {each.name: each.crc32c for each in listed if each is not None}

    @property
    def changelog_files(self) -> list[StreamStateHandle]:
        """Those of its state, each once."""
        found = {each.name: each for entry in self.operators.values() for each in entry.files()}
        return list(found.values())

    def needs(self) -> Iterator[str]:
        """Every other object that its state needs; a name may be repeated."""
        yield from self.lists
        for entry in self.operators.values():
            yield from (stream.name for stream in entry.files())

    def to_json(self) -> dict[str, Any]:
        operators = {name: entry.to_json() for name, entry in sorted(self.operators.items())}
        return {**to_fields(self), "operators": operators}

    @classmethod
    def from_json(
        cls,
        fields: Mapping[str, Any],
        where: str,
        store: ObjectStore,
        lists: RunLists | None = None,
    ) -> Manifest:
        """`store`: has the lists that it names.

        Raises: FormatError; NotFoundError (kind `state_missing`).
        """
        with reading(f"{where} is not a valid manifest"):
            job, operators = str(fields["job"]), plain_object(fields["operators"])
            names = JobNames(job)
            refs = {
                name: (names.run_list(uuid.UUID(entry["list"][0])), int(entry["list"][1]))
                for name, entry in operators.items()
                if "list" in entry
            }
        listed_in = (lists or RunLists()).of(store, job, dict(refs.values()))
        with reading(f"{where} is not a valid manifest"):
            listed = {
                name: listed_in(at, str(operators[name].get("listed_as", name)))
                for name, (at, _) in refs.items()
            }
            entries = {
                name: OperatorEntry.from_json(name, entry, listed.get(name))
                for name, entry in operators.items()
            }
            own = {name: value for name, value in fields.items() if name != "operators"}
            return from_fields(cls, own, operators=entries)


def store_manifest(
    store: ObjectStore, attempt: Attempt, manifest: Manifest, lists: RunLists | None = None
) -> Manifest:
    """Write the manifest once, under the attempt's own name, and before it the list of runs that it begins.
    Repeating it is no error.

    Returns: the manifest that is stored, with its checksum: of another try it may state another cost.
    Raises: ConflictError (kind `other_report`).
    """
    name = attempt.names.manifest(attempt.checkpoint_id, attempt.attempt)
    conflict = ConflictError(
        f"attempt {attempt.attempt} already recorded a different manifest ({name})",
        kind=ErrorKind.OTHER_REPORT,
    )
    lists = lists or RunLists()
    listed = to_be_listed(manifest.operators)
    if listed:
        list_name = attempt.names.run_list(attempt.attempt)
        payload = encode_list(manifest.job, manifest.operators, listed)
        write_once(store, list_name, payload, otherwise=conflict)
        entries = lists.written(list_name, payload, manifest.operators, listed)
        manifest = replace(manifest, operators=entries)
    payload = encode_document(_KIND, _VERSION, manifest.to_json())

    def is_same(there: bytes) -> bool:
        try:
            return _compared(_decoded(store, there, name, lists)) == _compared(manifest)
        except (FormatError, NotFoundError):
            return False

    there, generation = write_once(store, name, payload, otherwise=conflict, is_same=is_same)
    if there != payload:
        return _decoded(store, there, name, lists)
    return replace(manifest, crc32c=crc32c_of(there), generation=generation)


def _compared(manifest: Manifest) -> dict[str, Any]:
    """The content that two tries of step 4 must agree on."""
    return replace(manifest, cost=None).to_json()


def load_manifest(
    store: ObjectStore, name: str, crc32c: int | None = None, lists: RunLists | None = None
) -> Manifest:
    """The manifest in this object, and the runs that it names: always two round trips.

    `crc32c`: of all its bytes, as what names it says, where that is known. `lists`: that the caller has read.

    Raises: NotFoundError (kind `checkpoint_gone`, `state_missing`), FormatError.
    """
    try:
        payload = store.get(name)
    except NotFoundError as error:
        raise NotFoundError(
            f"manifest {name} is missing: its checkpoint was cleaned up or never recorded, or it was lost",
            kind=ErrorKind.CHECKPOINT_GONE,
        ) from error
    return _decoded(store, payload, name, lists, crc32c)


def _decoded(
    store: ObjectStore, payload: bytes, name: str, lists: RunLists | None, crc32c: int | None = None
) -> Manifest:
    found = crc32c_of(payload)
    require_same_document(f"manifest {name}", crc32c, found)
    _, fields = decode_document(_KIND, _VERSION, payload, name)
    return replace(Manifest.from_json(fields, name, store, lists), crc32c=found)
