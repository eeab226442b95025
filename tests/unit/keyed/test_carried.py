"""A manifest repeats the reports before it, so that a long log takes few manifests to read."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import record
from dstl_dagster.checkpoint.verify import verify_checkpoint, verify_state
from dstl_dagster.errors import FormatError
from dstl_dagster.keyed import (
    MAX_CARRIED_BYTES,
    Compaction,
    KeyedState,
    Manifest,
    OperatorEntry,
    key_history,
    operator_layers,
    operator_state,
)
from dstl_dagster.keyed.carried import Carried
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ANY, MemoryObjectStore

if TYPE_CHECKING:
    from tests.unit.conftest import CountingStore, KeyedJob

CHECKPOINTS = 60
NOTED = StateSchema.of(
    pa.schema({"tail": pa.string(), "flights": pa.int64(), "note": pa.string()}), ["tail"], 16
)


def entry(manifest: Manifest, operator: str = "aircraft") -> OperatorEntry:
    return manifest.operators[operator]


def grown(keyed: KeyedJob, checkpoints: int = CHECKPOINTS) -> KeyedJob:
    for number in range(checkpoints):
        keyed.changes([{"tail": f"N{number}", "flights": number}, {"tail": "each", "flights": number}])
    return keyed


def manifests_read(store: CountingStore) -> int:
    return len({name for name in store.read if "/manifests/" in name})


def test_a_long_log_takes_few_manifests_to_read(
    keyed_on: type[KeyedJob], counting_store: CountingStore
) -> None:
    """Of 60 checkpoints all are read, through a few manifests; each of these is bounded."""
    keyed = grown(keyed_on(counting_store))
    last = keyed.coordinator.latest()
    assert last is not None
    counting_store.read.clear()
    state = operator_state(counting_store, last.manifest, "aircraft")
    assert state is not None
    assert [layer.checkpoint_id for layer in state.layers] == list(range(1, CHECKPOINTS + 1))
    assert manifests_read(counting_store) == 6
    assert len(keyed.rows()) == CHECKPOINTS + 1
    sizes = [len(counting_store.get(name)) for name in keyed.names("dstl/orders/manifests/")]
    assert max(sizes) < sizes[0] + MAX_CARRIED_BYTES + 2048


def test_the_bound_matters(
    keyed_on: type[KeyedJob], counting_store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above can fail: without room, each checkpoint's manifest is read."""
    monkeypatch.setattr(record, "MAX_CARRIED_BYTES", 0)
    keyed = grown(keyed_on(counting_store))
    counting_store.read.clear()
    keyed.rows()
    assert manifests_read(counting_store) == CHECKPOINTS


def test_recording_reads_nothing_for_it(keyed_on: type[KeyedJob], counting_store: CountingStore) -> None:
    """What is repeated comes from the parent's manifest, which step 1 has read anyway."""
    keyed = grown(keyed_on(counting_store), 12)
    attempt = keyed.coordinator.trigger()
    report = keyed.report(attempt, [{"tail": "x", "flights": 1}])
    counting_store.read.clear()
    keyed.coordinator.record(attempt, [report])
    assert manifests_read(counting_store) <= 1


def test_history_still_tells_checkpoints_apart(keyed: KeyedJob) -> None:
    """A change is of the checkpoint that made it, whichever manifest repeats it."""
    latest = grown(keyed, 20).coordinator.latest()
    assert latest is not None
    found = key_history(keyed.store, latest.manifest, "aircraft", {"tail": "each"})
    assert [(each.checkpoint_id, each.change) for each in found] == [(n, "upsert") for n in range(1, 21)]


def test_columns_come_along(keyed: KeyedJob) -> None:
    """A repeated report keeps the columns that it was written with, also if the newer ones have others."""
    grown(keyed, 6)
    noted = keyed.changes([{"tail": "noted", "flights": 1, "note": "x"}], schema=NOTED)
    for number in range(4):
        last = keyed.changes([{"tail": f"M{number}", "flights": 2}])
    assert len(entry(last.manifest).carried) > 4
    again = [layer.report for layer in operator_layers(last.manifest, "aircraft", lambda _: None)]
    assert entry(noted.manifest).report in again
    assert {"tail": "noted", "flights": 1, "note": "x"} in keyed.rows(last)


def test_operators_share_the_room(keyed: KeyedJob) -> None:
    """However many operators have a long log, a manifest repeats so much and no more."""
    names = [f"op{number}" for number in range(8)]
    for number in range(12):
        attempt = keyed.coordinator.trigger()
        rows = [{"tail": "a", "flights": number}]
        last = keyed.complete(attempt, *(keyed.report(attempt, rows, operator=name) for name in names))
    assert all(len(keyed.state(last, name).handles) == 12 for name in names)
    repeated = [len(entry(each.manifest, "op0").carried) for each in keyed.coordinator.list()]
    assert 0 < max(repeated) <= 4


def test_nothing_new_after_a_compaction(keyed: KeyedJob) -> None:
    """The report of a batch that leaves the operator idle has no compaction: that is of its parent."""
    parent = entry(grown(keyed, 1).coordinator.latest().manifest).report  # type: ignore[union-attr]
    compacted = dataclasses.replace(parent, compaction=Compaction(len(parent.handles), 0))
    idle = compacted.unchanged()
    assert (idle.handles, idle.compaction) == ((), None)
    assert idle.key_columns == parent.key_columns


def test_what_an_idle_operator_repeats_is_not_lost(keyed: KeyedJob) -> None:
    """A checkpoint that adds nothing to an operator still leads to all of its log."""
    grown(keyed, 7)
    for _ in range(3):
        idle = keyed.complete(keyed.coordinator.trigger())
    assert not entry(idle.manifest).report.handles
    last = keyed.changes([{"tail": "after", "flights": 1}])
    assert len(keyed.rows(idle)) == 8
    assert len(keyed.rows(last)) == 9


def test_clean_up_keeps_what_is_repeated(keyed_on: type[KeyedJob]) -> None:
    """Repeated reports' files stay; manifests that nothing leads to any more are deleted."""
    keyed = grown(keyed_on(MemoryObjectStore(), num_retained=2, reader_grace=timedelta(0)), 30)
    rows = keyed.rows()
    keyed.coordinator.clean_up()
    assert keyed.rows() == rows
    assert len(keyed.names("dstl/orders/manifests/")) < 12
    latest = keyed.coordinator.latest()
    assert latest is not None
    assert verify_checkpoint(keyed.store, latest.manifest).ok
    assert keyed.coordinator.audit().in_order
    assert keyed.coordinator.audit().garbage.objects == 0


def test_verification_finds_damage_in_what_is_repeated(keyed: KeyedJob) -> None:
    """A file that only a repeated report names is checked like any other."""
    latest = grown(keyed, 8).coordinator.latest()
    assert latest is not None
    second = entry(keyed.coordinator.get(4).manifest).report.handles[0]
    name = next(second.streams).name
    keyed.store.put(name, b"damaged", precondition=ANY)
    found = verify_state(keyed.store, latest.manifest).problems
    assert {problem.object_name for problem in found} == {name}


def test_a_repeated_report_that_makes_no_sense_is_refused(keyed: KeyedJob) -> None:
    """It is an error in the manifest, named as such, and a finding of verification."""
    latest = grown(keyed, 8).coordinator.latest()
    assert latest is not None
    held = entry(latest.manifest)
    broken = dataclasses.replace(held, carried=(Carried(7, {"handles": "none"}), *held.carried[1:]))
    manifest = dataclasses.replace(latest.manifest, operators={"aircraft": broken})
    with pytest.raises(FormatError):
        KeyedState.of(keyed.store, manifest, "aircraft")
    assert not verify_state(keyed.store, manifest).ok
    with pytest.raises(FormatError, match="repeated report"):
        OperatorEntry.from_json({**held.to_json(), "carried": [{"report": {}}]})
