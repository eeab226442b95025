"""What retention keeps: by number, by age, whichever keeps more; and savepoints that end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, InvalidInputError
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock

HOUR = 3600.0


class Hourly:
    """A job with a checkpoint an hour."""

    def __init__(self, **options):
        self.clock = VirtualClock()
        self.store = MemoryObjectStore(clock=self.clock)
        self.options = options

    def coordinator(self):
        options = CheckpointOptions(**{"reader_grace": timedelta(0), **self.options})
        return CheckpointCoordinator("orders", self.store, options, clock=self.clock, owner="test")

    def run(self, count):
        coordinator = self.coordinator()
        for _ in range(count):
            attempt = coordinator.trigger()
            coordinator.record(attempt)
            coordinator.confirm(attempt)
            coordinator.compose_commit()
            self.clock.advance(HOUR)
        return self

    def kept(self):
        return [each.checkpoint_id for each in self.coordinator().list()]


@pytest.mark.parametrize(
    ("num_retained", "hours", "kept"),
    [
        (3, 0.0, [8, 9, 10]),
        (3, 5.5, [5, 6, 7, 8, 9, 10]),
        (8, 2.5, [3, 4, 5, 6, 7, 8, 9, 10]),
        (1, 0.0, [10]),
    ],
)
def test_whichever_keeps_more(num_retained, hours, kept):
    """The number, or the age since another checkpoint took the place."""
    job = Hourly(num_retained=num_retained, min_age=timedelta(hours=hours)).run(10)
    job.coordinator().clean_up()
    assert job.kept() == kept


def test_where_the_job_stood_is_known_for_all_of_the_age():
    """Also right at its beginning, when the checkpoint that was the last one is older than that."""
    job = Hourly(num_retained=1, min_age=timedelta(hours=5.5)).run(10)
    coordinator = job.coordinator()
    coordinator.clean_up()
    begin = job.clock.now() - timedelta(hours=5.5)
    at = coordinator.at(begin)
    assert at.entry.completed.recorded_at <= begin
    assert at.checkpoint_id == 5


def test_age_alone_deletes_nothing():
    """A job that stands still for a year keeps its last checkpoints."""
    job = Hourly(num_retained=3, min_age=timedelta(hours=2)).run(4)
    job.clock.advance(365 * 24 * HOUR)
    job.coordinator().clean_up()
    assert job.kept() == [2, 3, 4]


@pytest.mark.parametrize("snapshot_interval", [8, 1000])
def test_a_savepoint_ends(snapshot_interval):
    """The first clean-up after that time releases it by a record, and only then its checkpoint goes."""
    job = Hourly(num_retained=2, snapshot_interval=snapshot_interval).run(1)
    end = job.clock.now() + timedelta(hours=10)
    assert job.coordinator().savepoint(1, "mark", until=end).savepoint_ends == {"mark": end}
    job.coordinator().savepoint(1, "no-end") if snapshot_interval == 8 else None
    job.run(5)
    job.coordinator().clean_up()
    assert 1 in job.kept()
    job.clock.advance(10 * HOUR)
    assert 1 in job.kept()
    planned = job.coordinator().clean_up(dry_run=True)
    assert (1 in planned.subsumed) == (snapshot_interval != 8)
    job.coordinator().clean_up()
    kinds = [record.kind for record in job.coordinator().timeline.records() if record.kind != "snapshot"]
    if snapshot_interval == 8:
        assert job.kept()[0] == 1
        assert kinds[-1] == "released"
        assert job.coordinator().get(1).savepoints == ("no-end",)
    else:
        assert kinds[-2:] == ["released", "subsumed"]
        assert job.kept() == [5, 6]


def test_the_end_of_a_savepoint_may_change():
    """Asked for again it has another end, or none; the same request again writes nothing."""
    job = Hourly().run(1)
    coordinator = job.coordinator()
    first, second = (job.clock.now() + timedelta(hours=hours) for hours in (1, 2))
    coordinator.savepoint(1, "mark", until=first)
    slot = coordinator.timeline.tail().slot
    coordinator.savepoint(1, "mark", until=first)
    assert coordinator.timeline.tail().slot == slot
    assert coordinator.savepoint(1, "mark", until=second).savepoint_ends == {"mark": second}
    assert coordinator.savepoint(1, "mark").savepoint_ends == {}
    job.clock.advance(5 * HOUR)
    coordinator.clean_up()
    assert coordinator.get(1).savepoints == ("mark",)


def test_an_end_without_a_zone_is_refused():
    """It could be another hour elsewhere."""
    job = Hourly().run(1)
    with pytest.raises(InvalidInputError, match="needs a time zone"):
        job.coordinator().savepoint(1, "mark", until=datetime(2026, 1, 1))


def test_an_end_does_not_move_a_name():
    """To another checkpoint."""
    job = Hourly().run(2)
    coordinator = job.coordinator()
    coordinator.savepoint(1, "mark", until=datetime(2100, 1, 1, tzinfo=UTC))
    with pytest.raises(ConflictError, match="already retains checkpoint 1"):
        coordinator.savepoint(2, "mark", until=datetime(2100, 1, 1, tzinfo=UTC))


def test_a_negative_age_is_refused():
    """As it is read."""
    with pytest.raises(InvalidInputError, match=r"min-age: .* a duration cannot be negative"):
        CheckpointOptions(min_age=timedelta(hours=-1))


@pytest.mark.parametrize("number", [0, -1])
def test_a_clean_up_that_retains_none_is_refused(job, number):
    """It would go on without the last checkpoint, or, as by no number at all, by the option."""
    coordinator = job.coordinator()
    for position in range(3):
        job.checkpoint(coordinator, position)
    with pytest.raises(InvalidInputError, match="num-retained"):
        coordinator.clean_up(num_retained=number)
    assert len(coordinator.list()) == 3
