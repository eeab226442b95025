"""Every durable document with arbitrary content under a valid length and checksum: decoded, or a FormatError.

A checksum detects damage, not content that a reader does not expect: from a later release, an edit by hand, a
bug in a writer. So each document is changed here, and its checksum recomputed.

The long form tries 1.1 million, new ones in every run, about five milliseconds of processor time each:

    python -m pytest -v -n 2 --hypothesis-profile=fuzz tests/property/test_document_fuzz.py

It tells each kind of document as it is done.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import FormatError
from dstl_dagster.format import ChangelogStateHandle, ColumnIds, JobNames, KeyGroupRange, to_fields
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.format.envelope import decode_document
from dstl_dagster.keyed import (
    AttemptReport,
    FileReport,
    Manifest,
    Measure,
    NameChange,
    OperatorEntry,
    OperatorReport,
    Run,
    Source,
    StateRows,
    load_list,
    schema_of,
)
from dstl_dagster.keyed.documents.manifest import load_manifest
from dstl_dagster.keyed.documents.reports import load_report
from dstl_dagster.keyed.documents.runs import Merge
from dstl_dagster.recoverable import Component, GSBlobIdentifier, GSCommitRecoverable, GSResumeRecoverable
from dstl_dagster.recoverable.serializers import GSCommitRecoverableSerializer, GSResumeRecoverableSerializer
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ANY, MemoryObjectStore
from dstl_dagster.storage.local.records import _from_text
from dstl_dagster.timeline import Attempt, BatchKey
from dstl_dagster.timeline import records as timeline_records
from dstl_dagster.timeline.archive import Archive
from dstl_dagster.timeline.record_codec import _KINDS, decode_record, view_from_plain
from dstl_dagster.timeline.records import BlockedFile, FinalFile, Resolution
from tests.profiles import examples, limit

pytestmark = limit()

Plain = Any
ID = uuid.UUID(int=0x1234567890ABCDEF << 64 | 5)
NAMES = JobNames("job")
ATTEMPT = Attempt(3, ID, 2, "job", "memory://fuzz")
SCHEMA = StateSchema.of(pa.schema({"id": pa.int64(), "words": pa.list_(pa.string())}), ["id"], 16, ["id"])
HANDLE = {
    "storage_identifier": "filesystem",
    "state_handle_id": str(ID),
    "key_group_range": [0, 15],
    "state_size": 7,
    "checkpointed_size": 7,
    "share_bytes": None,
    "slices": 1,
    "held": [[0, 3], [7, 7]],
    "files": [
        {"kind": "object", "name": "a", "size": 5, "generation": 1, "crc32c": 2, "stored_bytes": 9},
        {"kind": "local", "name": "/b", **dict.fromkeys(("size", "generation", "crc32c", "stored_bytes"))},
    ],
    "entries": [[0, 0], [1, 3]],
}

COLUMN_IDS = ColumnIds({"words": "text"}, {"note#2": "note"})
OPERATOR = OperatorReport(
    "op",
    (ChangelogStateHandle.from_json(HANDLE),),
    ("id",),
    16,
    SCHEMA.arrow_message,
    2,
    1,
    1,
    column_ids=COLUMN_IDS,
    partition_columns=("id",),
    merges=(Merge(KeyGroupRange.of(2, 5), Run(1, 2, (), merged=True, upserts=5, deletes=1)),),
)
RUN = Run(3, 3, OPERATOR.handles, whole=True, upserts=2, deletes=1)
FILE = FileReport(
    GSCommitRecoverable(GSBlobIdentifier("bucket", "out"), (ID,)),
    (Component("bucket", "part", 1, 2, 3),),
    rows=1,
    format="text",
)
MEASURE = Measure("keys", {"zone": "UTC"}, {"start": 1})
SOURCES = {"source": Source({"at": [1, 2.5]}, MEASURE, "asset:a", ("op",))}
REPORT = AttemptReport((OPERATOR,), (FILE,), SOURCES, 1.5, names=NameChange({"op": "new"}, {"old": None}))
ROWS = StateRows(1, 3)
ENTRIES = {"op": OperatorEntry(dataclasses.replace(OPERATOR, merges=(), handles=()), (RUN,), ROWS)}
MANIFEST = Manifest(
    "job",
    3,
    ID,
    2,
    {"op": OperatorEntry(dataclasses.replace(OPERATOR, merges=()), (RUN,), ROWS, 7)},
    (FILE,),
    SOURCES,
    1.5,
    "ticket 7",
)

_VALUES: dict[str, Any] = {
    "decision_id": ID,
    "attempt": ID,
    "recorded_at": datetime(2024, 1, 1, tzinfo=UTC),
    "files": (FinalFile("bucket", "out", "print"),),
    "published": ("out",),
    "blocked": (BlockedFile("out", "foreign", 5),),
    "seconds": 1.5,
    "manifest_crc32c": 0x1234ABCD,
    "resolution": next(iter(Resolution)),
    "checkpoint_ids": (1, 2),
    "view": {},
    "slot": 4,
    "checkpoint_id": 3,
    "parent": 2,
    "base": 1,
    "batch": BatchKey("day", "source", "from/to", "run"),
    "applied": (BatchKey("day before"),),
    "foreign_generation": 5,
    "manifest_generation": 6,
    "until": datetime(2026, 11, 25, tzinfo=UTC),
}


def record(kind: type[timeline_records.TimelineRecord]) -> timeline_records.TimelineRecord:
    fields = [each.name for each in dataclasses.fields(kind)]
    return kind(**{name: _VALUES.get(name, "text") for name in fields})


def view() -> Plain:
    """As in a snapshot: a committed and resolved checkpoint, an open attempt, a savepoint."""
    plain = {kind: to_fields(record(made)) for kind, made in _KINDS.items()}
    return {
        "open_attempt": plain["opened"],
        "checkpoints": [
            {
                "completed": plain["completed"],
                "committed": plain["committed"],
                "subsumed": plain["subsumed"],
                "resolved": [plain["resolved"]],
            }
        ],
        "last_completed_id": 3,
        "replaced_id": None,
        "highest_id": 3,
        "abandoned": [[1, 2]],
        "savepoints": {"kept": 3},
        "savepoint_ends": {"kept": "2026-11-25T00:00:00+00:00"},
        "retractions": [{"first_id": 1, "last_id": 2, "after_slot": 3, "restored_slot": 4}],
    }


def enveloped(kind: str, body: bytes) -> bytes:
    return f"dstl/{kind} 1 {len(body)} {google_crc32c.value(body):08x}\n".encode() + body


def fields_of(body: bytes) -> Plain:
    return decode_document("it", 1, enveloped("it", body), "it")[1]


def stored(name: str, payload: bytes) -> MemoryObjectStore:
    store = MemoryObjectStore()
    store.put(name, payload, precondition=ANY)
    return store


def read_manifest(body: bytes) -> None:
    manifest = load_manifest(stored("it", enveloped("manifest", body)), "it")
    for entry in manifest.operators.values():
        schema_of(entry.report)


def read_list(body: bytes) -> None:
    payload = enveloped("run-list", body)
    found = load_list(stored("it", payload), "job", "it", crc32c(payload))
    for listed in found.values():
        schema_of(listed.entry.report)


def read_report(body: bytes) -> None:
    name = NAMES.report(ID)
    report = load_report(stored(name, enveloped("report", body)), ATTEMPT)
    for operator in report.operators:
        schema_of(operator)


def read_ending(body: bytes) -> None:
    store = stored(NAMES.archived_attempt(ID.int >> 64), enveloped("archived", body))
    Archive(store, NAMES).fate_of_half(ID.int >> 64)


def read_answer(body: bytes) -> None:
    store = stored(NAMES.archived_request(ID), enveloped("archived", body))
    Archive(store, NAMES).slot_of_request(ID)


def read_hint(body: bytes) -> None:
    """A hint is checked before use, so no content of it is an error."""
    store = MemoryObjectStore()
    attempt = CheckpointCoordinator("job", store).trigger()
    store.put(NAMES.hint, enveloped("hint", body), precondition=ANY)
    other = CheckpointCoordinator("job", store)
    other.abort(attempt)
    assert other.latest() is None


def plain_of(value: Any) -> Plain:
    return value.to_json()


Case = tuple[Plain, Callable[[bytes], object]]
ENDING = {"attempt": str(ID), "checkpoint_id": 3, "ending": "aborted", "slot": 4, "note": "why"}
LOCAL = {
    "version": 1,
    "name": "it",
    "generations": [
        {
            "generation": 1,
            "crc32c": 2,
            "updated": "2024-01-01T00:00:00+00:00",
            "metadata": {"a": "b"},
            "file": {"inode": 1, "size": 2, "modified_nanos": 3},
            "foreign": False,
        }
    ],
}
DOCUMENTS: dict[str, Case] = {
    **{
        f"record {kind}": (
            record(made).to_json(),
            lambda body: decode_record(enveloped("record", body), 4, "it"),
        )
        for kind, made in _KINDS.items()
    },
    "view of a snapshot": (view(), lambda body: view_from_plain(fields_of(body), 5)),
    "manifest": (plain_of(MANIFEST), read_manifest),
    "run list": (
        {"job": "job", "operators": {name: entry.as_listed().to_json() for name, entry in ENTRIES.items()}},
        read_list,
    ),
    "report": (plain_of(REPORT), read_report),
    "handle": (HANDLE, lambda body: ChangelogStateHandle.from_json(fields_of(body))),
    "ending": (ENDING, read_ending),
    "answer": ({"slot": 4}, read_answer),
    "hint": ({"slot": 1}, read_hint),
    "schema": (
        {
            "key_columns": ["id"],
            "max_parallelism": 16,
            "arrow": base64.b64encode(SCHEMA.arrow_message).decode(),
            "column_ids": COLUMN_IDS.to_json(),
            "partition_columns": ["id"],
        },
        lambda body: StateSchema.from_bytes(enveloped("state-schema", body)),
    ),
    "local record": (LOCAL, lambda body: _from_text(body, "it.json", "it")),
}

KEYED_BY_NAMES = {"operators", "sources", "savepoints", "savepoint_ends", "metadata", "ids", "dropped"}

RAW = [
    "1e999",
    "-1e999",
    "NaN",
    "1" + "0" * 400,
    "9" * 5000,
    "[" * 3000 + "]" * 3000,
    '"\\ud800"',
    "-0.0",
    "1.5",
    "{",
]
junk = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 2**63, 2**200, "", "\x00", [], {}, [[]], [None], {"": None}]),
    st.sampled_from(range(len(RAW))).map(lambda index: f"@{index}@"),
    st.text(max_size=8),
    st.integers(),
)
changes = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["replace", "remove", "add", "flip"]), junk),
    min_size=1,
    max_size=3,
)


def places(plain: Plain) -> list[tuple[Any, Any]]:
    """Every place in the tree, as (container, key or index)."""
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    found = []
    for key, value in inner:
        found += [(plain, key), *places(value)]
    return found


def changed(plain: Plain, wrong: list[tuple[int, str, Plain]]) -> bytes:
    """The document's JSON with these changes; `@n@` stands for `RAW[n]`."""
    tree = json.loads(json.dumps([plain]))
    for number, how, given_value in wrong:
        value = copy.deepcopy(given_value)
        every = places(tree)
        if not every:
            break
        holder, key = every[number % len(every)]
        if how == "flip" and isinstance(holder[key], str) and len(holder[key]) > 40:
            octets = bytearray(base64.b64decode(holder[key] + "==="))
            octets[number % len(octets)] ^= 1 + number % 255
            holder[key] = base64.b64encode(octets).decode()
        elif how == "remove" and holder is not tree:
            del holder[key]
        elif how == "add" and isinstance(holder[key], dict):
            holder[key]["unknown"] = value
        elif how == "add" and isinstance(holder[key], list):
            holder[key].append(value)
        else:
            holder[key] = value
    text = json.dumps(tree[0])
    for index, raw in enumerate(RAW):
        text = text.replace(f'"@{index}@"', raw)
    return text.encode()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_unchanged_document_is_read(name: str) -> None:
    """Each document is valid before it is changed."""
    plain, read = DOCUMENTS[name]
    read(json.dumps(plain).encode())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_list_or_an_object_is_not_taken_for_an_empty_one(name: str) -> None:
    """A text, a list or an object that has nothing, where another of them belongs."""
    plain, read = DOCUMENTS[name]
    tree = json.loads(json.dumps(plain))
    taken = []
    for holder, key in places(tree):
        value = holder[key]
        if not isinstance(value, list | dict) or key in ("position", "at"):  # a position is the user's
            continue
        for wrong in ("", [], {}):
            holder[key] = wrong
            if type(wrong) is not type(value):
                with contextlib.suppress(FormatError):
                    read(json.dumps(tree).encode())
                    taken.append((key, wrong))
        holder[key] = value
    assert taken == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_field_of_a_later_release_is_ignored(name: str) -> None:
    """In each object whose keys are fields; what must not be ignored has a higher version."""
    plain, read = DOCUMENTS[name]
    tree = json.loads(json.dumps(plain))
    for holder, key in [*places(tree), ([tree], 0)]:
        if isinstance(holder[key], dict) and key not in KEYED_BY_NAMES:
            holder[key]["of_a_later_release"] = [1]
    read(json.dumps(tree).encode())


@pytest.mark.parametrize("name", DOCUMENTS)
@examples(50)
@given(wrong=changes)
def test_only_format_errors_are_raised(name: str, wrong: list[tuple[int, str, Plain]]) -> None:
    """Values of other types, missing or unknown fields, numbers out of range, deep nesting."""
    plain, read = DOCUMENTS[name]
    with contextlib.suppress(FormatError):
        read(changed(plain, wrong))


COMMIT = GSCommitRecoverable(GSBlobIdentifier("bücket", "out \U0001f600"), (ID, ID))
RESUME = GSResumeRecoverable(COMMIT.final_blob_identifier, (ID,), 17, True)
RECOVERABLES: dict[str, tuple[Any, Any]] = {
    "commit": (GSCommitRecoverableSerializer.INSTANCE, COMMIT),
    "resume": (GSResumeRecoverableSerializer.INSTANCE, RESUME),
}


@pytest.mark.parametrize("name", RECOVERABLES)
@examples(50)
@given(
    flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    end=st.integers(0, 200),
)
def test_recoverables_are_read_or_refused(name: str, flips: list[tuple[int, int]], end: int) -> None:
    """They have no checksum, so any bytes may reach the decoder."""
    serializer, value = RECOVERABLES[name]
    octets = bytearray(serializer.serialize(value))
    for place, octet in flips:
        octets[place % len(octets)] = octet
    with contextlib.suppress(FormatError):
        serializer.deserialize(0, bytes(octets[: max(1, end)]))
