"""The kinds of keyed state and its files: each from invalid rows or an invalid file."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa
import pytest

from dstl_dagster.errors import ErrorKind
from dstl_dagster.format.changelog_file.footer import TRAILER_BYTES
from dstl_dagster.format.changelog_file.reader import ChangelogFileReader
from dstl_dagster.keyed import due_operators
from dstl_dagster.keyed.read.export import export_checkpoint
from dstl_dagster.keyed.read.keyed_state import KeyedState
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.state import StateSchema, refuse_raw_text
from dstl_dagster.storage import FileRanges

if TYPE_CHECKING:
    from tests.unit.errors.conftest import Case, Scenario

ROW = {"tail": "N1", "flights": 1}
_VERSION_AT = 24  # of a changelog file's trailer: dstl_dagster/format/changelog_file/footer.py


def _read(case: Case) -> None:
    latest = case.coordinator().latest()
    assert latest is not None
    state = KeyedState.of(case.store, latest.manifest, "totals")
    assert state is not None
    assert list(state.tables())


def _export(case: Case, operator: str) -> None:
    export_checkpoint(case.store, case.checkpoint().manifest, operator, case.folder.as_uri())


def _state_missing(case: Case) -> None:
    for _ in range(12):
        case.checkpoint()
    for name in case.names("/runs"):
        case.delete(name)
    _read(case)


def _not_keyed(case: Case) -> None:
    coordinator = case.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, {"totals": case.rows(attempt).handles})
    coordinator.confirm(attempt)
    _read(case)


def _no_operator(case: Case) -> None:
    due_operators(case.checkpoint().manifest, CheckpointOptions(), ["another"])


def _keys_frozen(case: Case) -> None:
    case.checkpoint()
    coordinator = case.coordinator()
    attempt = coordinator.trigger()
    columns = pa.schema({"tail": pa.string(), "flights": pa.int64()})
    report = case.rows(attempt, ROW, schema=StateSchema.of(columns, ["tail", "flights"], 16))
    coordinator.record(attempt, [report])


def _schema_change(_: Case) -> None:
    was = StateSchema.of(pa.schema({"tail": pa.string(), "flights": pa.int64()}), ["tail"], 16)
    was.evolved_to(StateSchema.of(pa.schema({"tail": pa.string(), "flights": pa.string()}), ["tail"], 16))


def _duplicate_key(case: Case) -> None:
    case.rows(case.coordinator().trigger(), ROW, ROW)


def _unsupported_type(_: Case) -> None:
    StateSchema.of(pa.schema({"tail": pa.string(), "share": pa.float64()}), ["share"], 16)


def _file(case: Case) -> bytearray:
    """The changelog file of a checkpoint."""
    case.checkpoint()
    (name,) = case.names("/changelog/")
    return bytearray(case.store.get(name))


def _read_file(case: Case, payload: bytes) -> None:
    path = case.folder / "changelog"
    path.write_bytes(payload)
    with FileRanges(path) as source:
        reader = ChangelogFileReader(source)
        assert [reader.change_set(offset) for offset in reader.offsets()]


def _checksum(case: Case) -> None:
    payload = _file(case)
    payload[len(payload) // 3] ^= 1
    _read_file(case, payload)


def _version(case: Case) -> None:
    """The last bytes of the file as a later release may write them."""
    payload = _file(case)
    trailer = payload[-TRAILER_BYTES:]
    checksum_at = TRAILER_BYTES - 12  # the checksum and the magic are the last fields
    trailer[_VERSION_AT] += 1
    trailer[checksum_at:-8] = struct.pack("<I", google_crc32c.value(bytes(trailer[:checksum_at])))
    _read_file(case, payload[:-TRAILER_BYTES] + trailer)


def _target_not_empty(case: Case) -> None:
    (case.folder / "totals").mkdir()
    (case.folder / "totals" / "notes.txt").write_text("mine")
    _export(case, "totals")


def _not_utf8(case: Case) -> None:
    raw = pa.array([b"K\xf6ln"], pa.binary()).view(pa.string())
    refuse_raw_text(pa.table({"city": raw}), "take it as bytes")


SCENARIOS: list[tuple[str, Scenario]] = [
    (ErrorKind.NO_STATE, lambda case: _export(case, "another")),
    (ErrorKind.STATE_MISSING, _state_missing),
    (ErrorKind.INVALID_INPUT, _not_keyed),
    (ErrorKind.NO_STATE, _no_operator),
    (ErrorKind.SCHEMA_CHANGE, _keys_frozen),
    (ErrorKind.SCHEMA_CHANGE, _schema_change),
    (ErrorKind.DUPLICATE_KEY, _duplicate_key),
    (ErrorKind.UNSUPPORTED_TYPE, _unsupported_type),
    (ErrorKind.FORMAT, _checksum),
    (ErrorKind.NEWER_VERSION, _version),
    (ErrorKind.FOREIGN_OBJECT, _target_not_empty),
    (ErrorKind.UNSUPPORTED_TYPE, _not_utf8),
]


@pytest.mark.parametrize(("kind", "scenario"), SCENARIOS)
def test_a_kind_is_raised(kind: str, scenario: Scenario, check_kind: Callable[[str, Scenario], None]) -> None:
    """What the docstring of the kind says happens: this kind, and one of its classes."""
    check_kind(kind, scenario)


def test_no_kind_is_left_out(documented: dict[str, dict[str, set[str]]]) -> None:
    """Every kind of the section has a scenario."""
    assert {kind for kind, _ in SCENARIOS} >= set(documented["State"])
