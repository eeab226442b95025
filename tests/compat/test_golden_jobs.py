"""A whole job as bytes: readable, resumable, and written the same way again."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, FormatError
from dstl_dagster.format import JobNames
from dstl_dagster.format.envelope import decode_document, encode_document
from dstl_dagster.keyed import Manifest, load_list, write_rows
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ANY
from dstl_dagster.timeline.record_codec import decode_record, encode_record
from tests.compat import golden_job

HERE = Path(__file__).parent
JOB = HERE / "dstl" / "version-1.json"


@pytest.fixture
def old():
    return golden_job.load(JOB)


def test_an_old_job_is_read(old):
    """Every record, what can be restored to, rows, positions, files and checksums are as they were."""
    store, expected = old
    assert json.loads(json.dumps(golden_job.found(store))) == expected


def test_an_old_job_is_resumed(old):
    """The open attempt of a dead owner is taken over; new rows build on the old ones; clean-up and a
    restore to an old checkpoint work.
    """
    store, expected = old
    options = CheckpointOptions(num_retained=3, reader_grace=timedelta(0))
    coordinator = CheckpointCoordinator("orders", store, options, owner="new")
    attempt = coordinator.trigger(take_over=True, idempotency_key="new")
    rows = pa.table({"key": [0], "total": [None]}, golden_job.SCHEMA.columns)
    report = write_rows(rows, attempt, store, operator="totals", schema=golden_job.SCHEMA)
    coordinator.record(attempt, [report], [], {"source": "new"})
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    coordinator.clean_up()
    found = golden_job.found(store)
    newest, before = str(attempt.checkpoint_id), str(expected["latest"])
    assert found["rows"][newest] == {**expected["rows"][before], "0": "None"}
    assert all(found["whole"])
    assert coordinator.audit().garbage.objects == 0
    coordinator.restore(expected["latest"])
    assert coordinator.latest().positions == expected["positions"][before]
    with pytest.raises(ConflictError) as caught:
        coordinator.trigger(idempotency_key="one")
    assert caught.value.kind == "already_applied"


def test_documents_are_written_as_they_were():
    """Byte for byte, so that another implementation of `dstl_dagster/format/README.md` can rely on it."""
    store, _expected = golden_job.load(JOB)
    kinds, lists = set(), []
    for stat in store.list("dstl/orders/"):
        payload = store.get(stat.name)
        if "/timeline/" in stat.name:
            slot, _timeline = JobNames("orders").slot_of(stat.name)
            record = decode_record(payload, slot, stat.name)
            kinds.add(record.kind)
            assert encode_record(record) == payload
        elif "/manifests/" in stat.name:
            version, fields = decode_document("manifest", 1, payload, stat.name)
            manifest = Manifest.from_json(fields, stat.name, store).to_json()
            assert encode_document("manifest", version, manifest) == payload
        elif stat.name.endswith("/runs"):
            lists.append(load_list(store, "orders", stat.name, stat.crc32c))
            entries = {name: listed.entry.to_json() for name, listed in lists[-1].items()}
            assert encode_document("run-list", 1, {"job": "orders", "operators": entries}) == payload
    assert len(kinds) == 11
    assert lists


@pytest.mark.parametrize("part", ["timeline", "archive/attempts", "archive/keys", "hint"])
def test_a_newer_version_is_refused(part):
    """What a later release wrote is not guessed at: it is refused as newer, and nothing is decided."""
    store, expected = golden_job.load(JOB)
    *_, last = store.list(f"dstl/orders/{part}")
    payload = store.get(last.name)
    kind, _version, rest = payload.split(b" ", 2)
    store.put(last.name, b" ".join([kind, b"9", rest]), precondition=ANY)
    coordinator = CheckpointCoordinator("orders", store, owner="one")
    if part in ("hint", "archive/keys"):
        # The hint is never trusted, and an archived key is identified by its name alone.
        assert coordinator.latest().checkpoint_id == expected["latest"]
        return
    with pytest.raises(FormatError) as caught:
        _ask(coordinator, part, last.name)
    assert caught.value.kind == "newer_version"
    assert last.name in str(caught.value)


def _ask(coordinator: CheckpointCoordinator, part: str, name: str) -> None:
    if part == "archive/attempts":
        view = coordinator.timeline.tail()
        view.fate(uuid.UUID(int=int(name.rpartition("/")[2], 16) << 64))
    else:
        coordinator.latest()
