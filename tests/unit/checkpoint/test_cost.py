"""What a checkpoint cost: counted by step, stored once, and never a reason for another request."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator, Opening, materialize
from dstl_dagster.errors import ConflictError, ErrorKind, FormatError
from dstl_dagster.format.envelope import decode_document
from dstl_dagster.keyed import Manifest, Source, load_manifest, load_report, store_manifest
from dstl_dagster.settings import CheckpointOptions, StoragePrices
from dstl_dagster.storage import CheckpointCost, Cost, LocalObjectStore, MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.unit.checkpoint.counting import Counted
from tests.unit.conftest import KeyedJob


@pytest.fixture
def store():
    return Counted(MemoryObjectStore())


def handed_over(job, coordinator):
    """Steps 1 to 3 of a batch, in a process that ends then."""
    batch = Batch.open(coordinator)
    batch.add(job.changes(batch.attempt))
    batch.hand_over()
    return batch.attempt


def recorded(coordinator, attempt):
    """Step 4, in another process."""
    cost = coordinator.running_cost()
    report = load_report(coordinator.store, attempt)
    return coordinator.record_report(attempt, report, cost=cost)


def test_each_step_has_its_requests(store, job_of):
    """Those that the store saw, of the process that did the step; what tasks did is handed in."""
    job = job_of(store)
    first = job.coordinator()
    batch = Batch.open(first, Opening("monday"))
    opened = store.spent()
    batch.add(job.changes(batch.attempt))
    store.spent()  # of a task: not through the batch's coordinator
    batch.meter.add(Cost(class_a=7, bytes_up=70))
    batch.hand_over()
    stored = store.spent()
    manifest = recorded(job.coordinator(), batch.attempt)
    assert {name: step.requests for name, step in manifest.cost.steps.items()} == {
        "trigger": opened,
        "persist": stored + 7,
        "record": store.spent(),
    }
    assert manifest.cost.total.bytes_up > 70


def test_a_batch_completed_in_one_process_counts_too(store, job_of):
    """Without a report in between; steps 5 and 6 come after the manifest, and are in no step."""
    job = job_of(store)
    coordinator = job.coordinator()
    batch = Batch.open(coordinator)
    batch.add(job.changes(batch.attempt))
    cost = batch.complete().manifest.cost
    assert [*cost.steps] == ["trigger", "persist", "record"]
    assert cost.steps["persist"].requests == 0
    assert coordinator.cost.requests > cost.total.requests


def test_counting_asks_for_nothing(job_of, monkeypatch):
    """Two checkpoints with and without it: as many requests of each kind."""
    seen = []
    for counting in (True, False):
        if not counting:
            monkeypatch.setattr("dstl_dagster.checkpoint.job.metered", lambda store, _: store)
        store = Counted(MemoryObjectStore())
        job = job_of(store)
        for _ in range(2):
            attempt = handed_over(job, job.coordinator())
            manifest = recorded(job.coordinator(), attempt)
            assert (manifest.cost.total.class_b > 1) is counting  # one is step 4's own
            job.coordinator().confirm(attempt)
            job.coordinator().compose_commit()
        seen.append(store.requests)
    assert seen[0] == seen[1]


def test_a_second_try_of_step_4_keeps_what_the_first_stored(store, job_of):
    """It reads and asks other things, so its own count differs; the stored manifest is the one."""
    job = job_of(store)
    attempt = handed_over(job, job.coordinator())
    first = recorded(job.coordinator(), attempt)
    again = job.coordinator()
    again.latest()
    assert again.record_report(attempt, load_report(store, attempt)) == first
    done = again.confirm(attempt)
    assert done.manifest == first == job.coordinator().get(1).manifest


def test_a_manifest_that_differs_otherwise_is_refused(store, job_of):
    """Only the cost may differ."""
    job = job_of(store)
    attempt = handed_over(job, job.coordinator())
    manifest = recorded(job.coordinator(), attempt)
    with pytest.raises(ConflictError) as refused:
        store_manifest(store, attempt, dataclasses.replace(manifest, sources={"source": Source(1)}))
    assert refused.value.kind == ErrorKind.OTHER_REPORT


def test_an_earlier_release_can_read_the_documents(store, job_of):
    """The cost is one more field, in documents of the version that it knows."""
    job = job_of(store)
    attempt = handed_over(job, job.coordinator())
    recorded(job.coordinator(), attempt)
    names = attempt.names
    for kind, name in (
        ("report", names.report(attempt.attempt)),
        ("manifest", names.manifest(1, attempt.attempt)),
    ):
        version, fields = decode_document(kind, 1, store.get(name), name)
        assert version == 1
        assert fields.pop("cost")


def test_documents_without_a_cost_are_read(store, job_of):
    """Of a driver that counted nothing."""
    job = job_of(store)
    attempt = handed_over(job, job.coordinator())
    fields = recorded(job.coordinator(), attempt).to_json()
    fields["cost"] = None
    assert Manifest.from_json(fields, "somewhere", store).cost is None


@pytest.mark.parametrize(
    "broken",
    [
        {"steps": 1},
        [{"step": "trigger", "seconds": -1}],
        [{"step": "trigger", "seconds": 1, "class_a": -1}],
        [{"seconds": 1}],
        "text",
    ],
)
def test_a_cost_that_is_none_is_refused(store, job_of, broken):
    """As any other field is."""
    job = job_of(store)
    attempt = handed_over(job, job.coordinator())
    fields = recorded(job.coordinator(), attempt).to_json()
    with pytest.raises(FormatError):
        Manifest.from_json({**fields, "cost": broken}, "somewhere", store)


def test_a_cost_survives_its_json_form():
    cost = CheckpointCost({"record": Cost(1, 2, 3, 4, 5, 6, 7, 8, 0.1234567)})
    assert CheckpointCost.from_json(json.loads(json.dumps(cost.to_json()))) == cost


def test_seconds_are_those_of_the_clock(store):
    clock = VirtualClock()
    coordinator = CheckpointCoordinator("orders", store, clock=clock)
    cost = coordinator.running_cost()
    clock.advance(2)
    assert cost.so_far() == Cost(seconds=2.0)


def test_a_folder_has_no_price(tmp_path, store):
    """Its requests are told; money is of a bucket, at the prices of the job's options."""
    cost = Cost(class_a=1000, class_b=1000, free=9, bytes_down=1 << 30)
    folder = CheckpointCoordinator("orders", LocalObjectStore(tmp_path / "store"))
    assert cost.usd(folder.prices) == 0
    bucket = CheckpointCoordinator("orders", store)
    assert cost.usd(bucket.prices) == pytest.approx(0.0054)
    prices = StoragePrices(class_a_per_thousand=0.01, egress_per_gib=0.12)
    bucket = CheckpointCoordinator("orders", store, CheckpointOptions(prices=prices))
    assert cost.usd(bucket.prices) == pytest.approx(0.1304)


def test_the_manifest_in_the_store_is_the_returned_one(store, job_of):
    job = job_of(store)
    attempt = handed_over(job, job.coordinator())
    manifest = recorded(job.coordinator(), attempt)
    assert load_manifest(store, attempt.names.manifest(1, attempt.attempt)) == manifest


def test_a_checkpoint_of_bases_counts_its_steps(store):
    """No batch of rows opened it; it reads the state and writes it again."""
    job = KeyedJob(store)
    job.changes([{"tail": "N1", "flights": 1}])
    made = materialize(job.coordinator, force=True)
    steps = made.manifest.cost.steps
    assert [*steps] == ["trigger", "persist", "record"]
    assert steps["persist"].class_b > 0
    assert steps["persist"].uploads == 1
