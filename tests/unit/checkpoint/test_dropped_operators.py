"""A position says how much of a source is in the state: it goes with the last operator that this wrote."""

from __future__ import annotations

import pytest

from dstl_dagster.checkpoint import Batch, Claim, Opening, change_names
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.keyed import NameChange
from dstl_dagster.timeline import BatchKey


def _recorded(job, coordinator, operator, positions):
    attempt = coordinator.trigger()
    coordinator.record(attempt, [job.changes(attempt, operator)], positions=positions)
    coordinator.confirm(attempt)


def _batched(claim):
    def written(job, coordinator, operator, positions):
        batch = Batch.open(coordinator, Opening(claim=claim))
        batch.add(job.changes(batch.attempt, operator))
        for source, position in positions.items():
            batch.move_position(source, position)
        batch.complete()

    return written


@pytest.mark.parametrize(
    "written",
    [_recorded, _batched(None), _batched(Claim("op:update", "op:update"))],
    ids=["recorded", "a driver's batch", "an op's batch"],
)
def test_a_position_goes_with_the_operators_that_its_batches_wrote(written, job):
    """Of a driver that says nothing but positions, and of an op that moves other ones than its own."""
    coordinator = job.coordinator()
    for day, operator in enumerate(("totals", "other", "totals")):
        written(job, coordinator, operator, {"topic": day})
    change_names(coordinator, coordinator.latest(), NameChange({"other": None}))
    assert coordinator.latest().positions == {"topic": 2}
    assert coordinator.latest().manifest.sources["topic"].operators == ("totals",)
    change_names(coordinator, coordinator.latest(), NameChange({"totals": None}))
    assert coordinator.latest().manifest.sources == {}
    written(job, coordinator, "totals", {"topic": 0})
    assert coordinator.latest().positions == {"topic": 0}


def _apply(job, coordinator, key, *operators, claim=None):
    """As a driver does that names its batches; the checkpoint that holds this one."""
    applied = coordinator.applied_batch(BatchKey.of(key), claim)
    if applied is not None:
        return applied.checkpoint_id
    attempt = coordinator.trigger(idempotency_key=key)
    coordinator.record(attempt, [job.changes(attempt, each) for each in operators])
    return coordinator.confirm(attempt).checkpoint_id


@pytest.mark.parametrize("key", ["day 1", BatchKey("day 1", "feed")], ids=["a key alone", "a named source"])
def test_a_key_goes_with_the_operators_that_its_batches_wrote(key, job):
    """Also of a driver that makes no claim: its batch, whose rows are gone, is not taken for applied."""
    coordinator = job.coordinator()
    assert [_apply(job, coordinator, key, "totals") for _ in range(2)] == [1, 1]
    change_names(coordinator, coordinator.latest(), NameChange({"totals": None}))
    assert coordinator.latest().manifest.sources == {}
    assert [_apply(job, coordinator, key, "totals") for _ in range(2)] == [3, 3]
    assert set(coordinator.latest().manifest.operators) == {"totals"}


def test_a_name_that_ends_as_an_id_does_is_another_source(job):
    """The batch of one is not taken for that of the other, whichever name it has."""
    coordinator = job.coordinator()
    keys = [BatchKey("day 1", source) for source in ("feed@1", "feed", "feed@2", "feed@0")]
    assert [_apply(job, coordinator, key, "totals") for key in [*keys, *keys]] == [1, 2, 3, 4] * 2
    assert coordinator.latest().manifest.sources.keys() == {key.source for key in keys}


def test_a_key_that_wrote_what_was_dropped_is_refused(job):
    """The source goes on, as it wrote another operator too: a batch of before the drop has lost rows."""
    coordinator = job.coordinator()
    _apply(job, coordinator, "day 1", "totals", "other")
    change_names(coordinator, coordinator.latest(), NameChange({"other": None}))
    with pytest.raises(ConflictError, match=r"operator 'other'.* was dropped in checkpoint 2") as refused:
        _apply(job, coordinator, "day 1", "totals")
    assert refused.value.kind == ErrorKind.UNCLAIMED
    assert _apply(job, coordinator, "day 2", "totals") == 3


def test_a_key_is_of_the_source_that_the_last_checkpoint_has(job):
    """Another coordinator has completed a checkpoint, and dropped the source, since this one has looked."""
    coordinator, other = job.coordinator(), job.coordinator("other")
    _apply(job, coordinator, "day 1", "totals")
    change_names(other, other.latest(), NameChange({"totals": None}))
    attempt = coordinator.trigger(idempotency_key="day 1")
    coordinator.record(attempt, [job.changes(attempt)])
    assert coordinator.confirm(attempt).checkpoint_id == 3
    assert coordinator.latest().manifest.sources[""].operators == ("totals",)
