"""From a `completed` record to every byte: the record names its manifest's checksum, and each manifest that
of the older one it needs. What was replaced is refused, by name, wherever it is read.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from dstl_dagster.errors import ErrorKind, FormatError
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.format.envelope import decode_document, encode_document
from dstl_dagster.keyed import load_manifest
from dstl_dagster.keyed.history import key_history
from dstl_dagster.storage import ANY, MemoryObjectStore
from dstl_dagster.timeline import Completed, Snapshot, Timeline
from tests.unit.checkpoint.counting import Counted


@pytest.fixture
def keyed(keyed_on):
    """Three checkpoints, each with a change of the same row."""
    keyed = keyed_on(Counted(MemoryObjectStore()), snapshot_interval=8)
    for flights in range(3):
        keyed.changes([{"tail": "D-1", "flights": flights}])
    return keyed


def manifest_name(keyed, checkpoint_id):
    return keyed.coordinator.timeline.tail().checkpoints[checkpoint_id].completed.manifest


def replace_manifest(keyed, checkpoint_id):
    """Another valid manifest under the same name: its own first line has a checksum that fits."""
    name = manifest_name(keyed, checkpoint_id)
    version, fields = decode_document("manifest", 2, keyed.store.get(name), name)
    fields["positions"] = {"source": "replaced"}
    keyed.store.put(name, encode_document("manifest", version, fields), precondition=ANY)
    return name


def fresh(keyed):
    return type(keyed)(keyed.store, snapshot_interval=8).coordinator


def test_a_record_and_each_manifest_name_what_they_need(keyed):
    """By the CRC-32C of the whole object, as the store has it too."""
    completed = [entry.completed for entry in keyed.coordinator.timeline.tail().checkpoints.values()]
    stored = [keyed.store.stat(record.manifest).crc32c for record in completed]
    assert [record.manifest_crc32c for record in completed] == stored
    manifests = [load_manifest(keyed.store, record.manifest) for record in completed]
    previous = [manifest.operators[keyed.OPERATOR].previous_crc32c for manifest in manifests]
    assert previous == [None, *stored[:-1]]


def test_a_step_that_read_the_manifest_names_what_it_read(keyed):
    """Step 5 of a process that has nothing but the attempt."""
    attempt = keyed.coordinator.trigger()
    keyed.coordinator.record(attempt, [keyed.report(attempt, [{"tail": "D-2", "flights": 1}])])
    record = fresh(keyed).confirm(attempt).entry.completed
    assert record.manifest_crc32c == crc32c(keyed.store.get(record.manifest))


@pytest.mark.parametrize(
    "read",
    [
        lambda keyed, name: fresh(keyed).latest(),
        lambda keyed, name: fresh(keyed).get(3),
        lambda keyed, name: fresh(keyed).list(),
        lambda keyed, name: fresh(keyed).verify(3),
        lambda keyed, name: fresh(keyed).restore(3),
        lambda keyed, name: fresh(keyed).open(),
    ],
    ids=["latest", "get", "list", "verify", "restore", "open"],
)
def test_a_replaced_manifest_is_refused(keyed, read):
    """One sentence: which object, what it should be and what it is."""
    crc = fresh(keyed).get(3).entry.completed.manifest_crc32c
    name = replace_manifest(keyed, 3)
    with pytest.raises(FormatError) as refused:
        read(keyed, name)
    assert refused.value.kind == ErrorKind.FORMAT
    for said in (name, f"{crc:08x}", f"{keyed.store.stat(name).crc32c:08x}"):
        assert said in str(refused.value)


def test_a_damaged_manifest_is_refused_the_same_way(keyed):
    name = manifest_name(keyed, 3)
    keyed.store.put(name, keyed.store.get(name)[:-1], precondition=ANY)
    with pytest.raises(FormatError, match="what names it says"):
        fresh(keyed).latest()


def test_a_replaced_older_manifest_is_refused_by_every_reader(keyed):
    """No record is asked: the manifest that needs it names its checksum."""
    latest = fresh(keyed).latest().manifest
    name = replace_manifest(keyed, 2)
    with pytest.raises(FormatError, match=name):
        keyed.state(fresh(keyed).get(3))
    with pytest.raises(FormatError, match=name):
        key_history(keyed.store, latest, keyed.OPERATOR, {"tail": "D-1"})
    found = fresh(keyed).verify(3)
    assert [(each.object_name, "what names it says" in each.what) for each in found.problems] == [
        (name, True)
    ]


def test_a_restore_finds_the_newest_that_was_not_replaced(keyed):
    replace_manifest(keyed, 2)
    checkpoint, damaged = fresh(keyed).newest_verified()
    assert checkpoint.checkpoint_id == 1
    assert [each.checkpoint_id for each in damaged] == [3, 2]


def test_an_audit_names_a_replaced_manifest(keyed):
    """And does not say what is garbage: that would be by what the replaced one names."""
    name = replace_manifest(keyed, 3)
    audit = fresh(keyed).audit()
    assert [(each.checkpoint_id, each.object_name) for each in audit.damage] == [(3, name)]


def test_a_clean_up_deletes_nothing_by_a_replaced_manifest(keyed):
    """What it does not name any more is still needed."""
    before = [stat.name for stat in keyed.store.list("dstl/orders/attempts/")]
    name = replace_manifest(keyed, 2)
    with pytest.raises(FormatError, match=name):
        type(keyed)(keyed.store, num_retained=1, reader_grace=timedelta(0)).coordinator.clean_up()
    assert [stat.name for stat in keyed.store.list("dstl/orders/attempts/")] == before


def test_a_snapshot_carries_it(keyed):
    """The copy of a record is the record."""
    for flights in range(3, 8):
        keyed.changes([{"tail": "D-1", "flights": flights}])
    records = list(Timeline("orders", keyed.store).records())
    assert any(isinstance(record, Snapshot) for record in records)
    wanted = {
        record.checkpoint_id: record.manifest_crc32c for record in records if isinstance(record, Completed)
    }
    found = Timeline("orders", keyed.store).tail()
    assert found.snapshot_slot
    assert {each: entry.completed.manifest_crc32c for each, entry in found.checkpoints.items()} == wanted
    assert None not in wanted.values()


def test_it_costs_no_request(keyed, monkeypatch):
    """It is known where a manifest is written or read."""

    def requests_of_a_checkpoint():
        coordinator = fresh(keyed)
        keyed.store.spent()
        attempt = coordinator.trigger()
        coordinator.record(attempt, [keyed.report(attempt, [{"tail": "D-2", "flights": 1}])])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        coordinator.latest()
        return keyed.store.spent()

    monkeypatch.setattr(Timeline, "_add_snapshot_if_due", lambda *_: None)
    fresh(keyed).timeline.tail()
    with_it = requests_of_a_checkpoint()
    monkeypatch.setattr("dstl_dagster.keyed.manifest.crc32c_of", lambda _: None)
    assert requests_of_a_checkpoint() == with_it


# -- records of other releases


def test_an_earlier_release_passes_over_what_a_manifest_says_of_an_older_one(keyed):
    """`previous_crc32c` is one more field of an operator, which its reader does not look at."""
    manifest = fresh(keyed).latest().manifest
    assert manifest.operators[keyed.OPERATOR].to_json()["previous_crc32c"]
    assert keyed.store.get(manifest_name(keyed, 3)).startswith(b"dstl/manifest 1 ")
