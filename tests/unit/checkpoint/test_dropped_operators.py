"""A position says how much of a source is in the state: it goes with the last operator that this wrote."""

from __future__ import annotations

import pytest

from dstl_dagster.checkpoint import Batch, Claim, NameChange, change_names


def _recorded(job, coordinator, operator, positions):
    attempt = coordinator.trigger()
    coordinator.record(attempt, [job.changes(attempt, operator)], positions=positions)
    coordinator.confirm(attempt)


def _batched(claim):
    def written(job, coordinator, operator, positions):
        batch = Batch.open(coordinator, claim=claim)
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
