"""From a `completed` record to every byte: the record names its manifest's checksum, and a manifest that of
each list of runs. What was replaced is refused, by name, wherever it is read.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from dstl_dagster.checkpoint.inspect.verify import verify_checkpoint
from dstl_dagster.errors import DstlError, ErrorKind, FormatError
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.format.envelope import decode_document, encode_document
from dstl_dagster.keyed import load_list, load_manifest
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


def listed(keyed):
    """The name of a list of runs, after enough changes for one."""
    for flights in range(3, 12):
        keyed.changes([{"tail": "D-1", "flights": flights}])
    ((name, crc),) = fresh(keyed).latest().manifest.lists.items()
    assert keyed.store.stat(name).crc32c == crc
    return name


def test_a_record_names_what_it_needs(keyed):
    """By the CRC-32C of the whole object, as the store has it too."""
    completed = [entry.completed for entry in keyed.coordinator.timeline.tail().checkpoints.values()]
    stored = [keyed.store.stat(record.manifest).crc32c for record in completed]
    assert [record.manifest_crc32c for record in completed] == stored
    assert [load_manifest(keyed.store, record.manifest).crc32c for record in completed] == stored


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


def test_a_list_that_is_damaged_or_gone_is_refused_by_every_reader(keyed):
    """One sentence, which names it."""
    last = 12
    name = listed(keyed)
    for damage, said in ((lambda payload: payload[:-1], "says"), (None, "is gone")):
        latest = fresh(keyed).latest()
        before = keyed.store.get(name)
        if damage is None:
            keyed.store.delete(name, precondition=ANY)
        else:
            keyed.store.put(name, damage(before), precondition=ANY)
        for read in (
            lambda each: each.latest(),
            lambda each: each.get(last),
            lambda each: each.restore(last),
        ):
            with pytest.raises(DstlError, match=f"run list {name}") as refused:
                read(fresh(keyed))
            assert said in str(refused.value)
        found = verify_checkpoint(fresh(keyed)._job, latest)
        assert [(each.object_name, said in each.what) for each in found.problems] == [(name, True)]
        assert {each.checkpoint_id for each in fresh(keyed).audit().damage} >= {last}
        assert fresh(keyed).newest_verified()[0].checkpoint_id < last
        keyed.store.put(name, before, precondition=ANY)


def test_a_list_of_another_job_is_refused(keyed):
    """Copied, with the checksum that its manifest names."""
    name = listed(keyed)
    with pytest.raises(FormatError, match="is of job 'orders', not of 'another'"):
        load_list(keyed.store, "another", name, keyed.store.stat(name).crc32c)


def test_an_older_manifest_is_not_needed(keyed):
    """Whatever became of it: a later checkpoint names what it needs itself."""
    replace_manifest(keyed, 2)
    checkpoint, damaged = fresh(keyed).newest_verified()
    assert checkpoint.checkpoint_id == 3
    assert damaged == ()
    assert keyed.rows(fresh(keyed).get(3)) == [{"tail": "D-1", "flights": 2}]


def test_an_audit_names_a_replaced_manifest(keyed):
    """And does not say what is garbage: that would be by what the replaced one names."""
    name = replace_manifest(keyed, 3)
    audit = fresh(keyed).audit()
    assert [(each.checkpoint_id, each.object_name) for each in audit.damage] == [(3, name)]


def test_a_clean_up_deletes_nothing_by_a_replaced_manifest(keyed):
    """What it does not name any more is still needed."""
    before = [stat.name for stat in keyed.store.list("dstl/orders/attempts/")]
    name = replace_manifest(keyed, 3)
    with pytest.raises(FormatError, match=f"{name}.* Nothing more is deleted.* release its savepoint"):
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
    monkeypatch.setattr("dstl_dagster.keyed.documents.manifest.crc32c_of", lambda _: None)
    assert requests_of_a_checkpoint() == with_it
