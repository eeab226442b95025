"""Finding the record of a checkpoint that was subsumed long ago."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dstl_dagster.checkpoint import Timeline
from dstl_dagster.errors import NotFoundError
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.timeline import Completed


@pytest.fixture
def coordinator(job):
    """40 checkpoints of which two are retained, with aborts and restores between and snapshots over them."""
    made = job.coordinator(num_retained=2, snapshot_interval=8, reader_grace=timedelta(0), commit_threads=1)
    for number in range(40):
        for _ in range(number % 7 * (number % 3 == 0)):
            made.abort(made.trigger())
        attempt = made.trigger()
        made.record(attempt, positions={"n": number})
        made.confirm(attempt)
        made.compose_commit()
        made.clean_up()
        if number % 10 == 9:
            made.restore(attempt.checkpoint_id - 1)
    return made


def test_every_checkpoint_that_ever_completed_is_found(job, coordinator):
    """Each by its own record, whether the view still knows it or not."""
    completed = [record for record in coordinator.timeline.records() if isinstance(record, Completed)]
    assert [record.checkpoint_id for record in completed] == list(range(1, 41))
    timeline = Timeline("orders", job.store)
    assert 1 not in timeline.tail().checkpoints
    assert [timeline.completed(each.checkpoint_id) for each in completed] == completed


def test_the_search_is_binary(job, coordinator):
    """A timeline of hundreds of slots costs a few requests, not hundreds."""
    watched = FaultStore(job.store)
    timeline = Timeline("orders", watched, threads=1)
    assert timeline.tail().slot > 200
    before = len(watched.requests)
    timeline.completed(7)
    assert len(watched.requests) - before < 40


@pytest.mark.parametrize("checkpoint_id", [-1, 0, 41])
def test_what_never_completed_is_not_found(job, coordinator, checkpoint_id):
    """No record of another checkpoint stands in for it."""
    with pytest.raises(NotFoundError, match=f"no completed checkpoint {checkpoint_id}"):
        Timeline("orders", job.store).completed(checkpoint_id)
