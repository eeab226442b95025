"""`at`: one meaning of a checkpoint's id, a partition, a savepoint and a time, wherever one is named."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from dstl_dagster.timeline import AsOf

DAYS = ("2001-01-01", "2001-01-02", "2001-01-03", "2001-01-04")
START = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Days:
    """A job whose checkpoint n holds day n and completed n hours after `START`."""

    def __init__(self, **options: object) -> None:
        self.clock = VirtualClock(START)
        self.coordinator = CheckpointCoordinator(
            "orders",
            MemoryObjectStore(),
            {"dstl.checkpoint.snapshot-interval": "8", **options},
            clock=self.clock,
        )

    def add(self, day: str) -> int:
        self.clock.advance(3600)
        attempt = self.coordinator.trigger(idempotency_key=day)
        self.coordinator.record(attempt, [], [], {"days": day})
        self.coordinator.confirm(attempt)
        self.coordinator.compose_commit()
        return attempt.checkpoint_id

    def at(self, at: object = None) -> int:
        return self.coordinator.at(at).checkpoint_id  # type: ignore[arg-type] # also what is refused


@pytest.fixture
def days() -> Days:
    made = Days()
    for day in DAYS:
        made.add(day)
    return made


@pytest.mark.parametrize(
    ("at", "checkpoint_id"),
    [
        (None, 4),
        (2, 2),
        ("checkpoint:2", 2),
        ("2001-01-03", 3),
        (date(2001, 1, 3), 3),
        ("partition:2001-01-03", 3),
        ("2026-11-22T14:30", 2),
        ("2026-11-22 14:30:00Z", 2),
        ("2026-11-22T16:30+02:00", 2),
        ("2026-11-22T16:00", 4),
        (START + timedelta(hours=1), 1),
    ],
)
def test_a_checkpoint_is_named_in_each_of_the_ways(days, at, checkpoint_id):
    """An id, a partition, a time; text without a zone is UTC."""
    assert days.at(at) == checkpoint_id


def test_a_savepoint_names_its_checkpoint_and_a_prefix_settles_a_doubt(days):
    """A savepoint called like a batch is refused, unless both are the same checkpoint."""
    days.add("backfill")
    days.coordinator.savepoint(2, "before-migration")
    days.coordinator.savepoint(1, "backfill")
    assert days.at("before-migration") == days.at("savepoint:before-migration") == 2
    with pytest.raises(
        InvalidInputError, match=r"savepoint \(checkpoint 1\) and a partition \(checkpoint 5\)"
    ):
        days.at("backfill")
    assert (days.at("savepoint:backfill"), days.at("partition:backfill")) == (1, 5)


@pytest.mark.parametrize(
    "name",
    [
        *("2", "007", "20261124", "2026-11-24", "2026-11", "20261124T1800", "2026-11-24T18:00Z"),
        *("2026-13-45", "2026-W48", "checkpoint:2", "partition:x", "time:x", "savepoint:x", "chk-00000002"),
    ],
)
def test_a_savepoint_has_no_name_that_means_something_else(days, name):
    """`savepoint 2 3` and then `restore 3` went to checkpoint 3; a day was never found."""
    with pytest.raises(InvalidInputError, match="it reads as"):
        days.coordinator.savepoint(2, name)
    assert days.coordinator.timeline.tail().savepoints == {}


def test_a_savepoint_may_have_a_name_with_numbers(days):
    """They only have to stand beside a word."""
    for name in ("v2", "2026-11-24-before", "2x", "release-2", "1.5"):
        days.coordinator.savepoint(2, name)
        assert days.at(name) == 2


@pytest.fixture
def numbered() -> Days:
    """The partitions "3", "2", "1" and 20240101, in this order: checkpoints 1 to 4."""
    made = Days()
    for key in ("3", "2", "1", "20240101"):
        made.add(key)
    return made


@pytest.mark.parametrize(("key", "checkpoint_id"), [("3", 1), ("2", 2), ("1", 3), ("20240101", 4)])
def test_text_is_a_partition_and_a_number_an_id(numbered, key, checkpoint_id):
    """`at=context.partition_key`, whatever the keys look like."""
    assert numbered.at(key) == numbered.at(f"partition:{key}") == checkpoint_id
    assert numbered.at(checkpoint_id) == checkpoint_id


def test_digits_of_an_argument_are_what_exists(numbered):
    """The one of both; and where both are, and differ, only a prefix says which."""
    assert numbered.at(AsOf.of_text("20240101")) == numbered.at(AsOf.of_text("4")) == 4
    assert numbered.at(AsOf.of_text("2")) == 2
    with pytest.raises(InvalidInputError, match=r"say checkpoint:3 or partition:3"):
        numbered.at(AsOf.of_text("3"))
    assert numbered.at(AsOf.of_text("partition:3")) == 1
    assert numbered.at(AsOf.of_text("checkpoint:3")) == 3
    for nothing in ("5", "20240102"):
        with pytest.raises(NotFoundError, match="those up to 4"):
            numbered.at(AsOf.of_text(nothing))


def test_a_partition_that_has_not_run_is_not_the_checkpoint_of_its_digits(days):
    """The error says how that one is named."""
    with pytest.raises(NotFoundError, match="say 3, a number, or checkpoint:3") as caught:
        days.at("3")
    assert caught.value.kind == "no_checkpoint"


@pytest.mark.parametrize("at", ["", " ", 0, -1, True, 1.5, "checkpoint:x", "savepoint:", "time:soon", b"1"])
def test_what_names_no_checkpoint_is_refused(days, at):
    """Before anything is read."""
    with pytest.raises(InvalidInputError):
        AsOf.of(at)


@pytest.mark.parametrize("at", ["", "0", "00", "checkpoint:x", "savepoint:", "time:soon"])
def test_what_names_no_checkpoint_is_refused_of_an_argument(at):
    """As in Python."""
    with pytest.raises(InvalidInputError):
        AsOf.of_text(at)


def test_a_time_without_a_zone_is_refused_in_python():
    """`datetime.now()` is local: hours off, without a sign of it."""
    with pytest.raises(InvalidInputError, match="no time zone"):
        AsOf.of(datetime(2026, 11, 22, 14))


@pytest.mark.parametrize("at", ["2026-11-22T16:01", "time:2026-11-23", START + timedelta(hours=5)])
def test_the_future_is_refused(days, at):
    """It would be the last checkpoint now, and another one later."""
    with pytest.raises(InvalidInputError, match=r'is in the future, .*say "latest"'):
        days.at(at)


def test_a_day_that_has_not_run_is_not_taken_for_a_time(days):
    """It is later than all checkpoints, so as a time it would silently be the last one."""
    with pytest.raises(NotFoundError, match="its midnight say time:2026-12-01") as caught:
        days.at("2026-12-01")
    assert caught.value.kind == "no_checkpoint"


def test_a_restored_chain_decides(days):
    """A partition that a restore abandoned is in no checkpoint until it runs again, whatever its time."""
    days.coordinator.restore(2)
    with pytest.raises(NotFoundError, match="restore abandoned"):
        days.at("2001-01-03")
    assert days.at("2026-11-22T15:30") == 2
    assert days.add("2001-01-03") == 5
    assert (days.at("2001-01-03"), days.at("2026-11-22T15:30"), days.at("2026-11-22T17:00")) == (5, 2, 5)


def test_before_the_first_checkpoint_there_is_none(days):
    """And it says when the first one was."""
    with pytest.raises(NotFoundError, match="its first is of 2026-11-22 13:00:00 UTC") as caught:
        days.at("2026-11-22T12:30")
    assert caught.value.kind == "no_checkpoint"


def test_what_was_cleaned_up_is_never_replaced_by_an_older_checkpoint():
    """A savepoint keeps day 1; where the job stood on days 2 to 5 is gone, and none of it is day 1's."""
    days = Days(**{"execution.checkpointing.num-retained": "1", "dstl.checkpoint.reader-grace": "0 s"})
    for number in range(1, 9):
        days.add(f"2001-01-{number:02d}")
        days.coordinator.savepoint(1, "first")
        days.coordinator.clean_up()
    for hours in (2, 5):
        with pytest.raises(NotFoundError) as caught:
            days.at(START + timedelta(hours=hours))
        assert caught.value.kind == "checkpoint_gone"
    with pytest.raises(NotFoundError, match=r"^2001-01-05 is checkpoint 5: .*cleaned up"):
        days.at("2001-01-05")
    assert (days.at("first"), days.at("2001-01-08"), days.at("2026-11-22T20:00")) == (1, 8, 8)


def test_a_job_without_a_checkpoint_says_so():
    """However one is named."""
    for at in (None, "2001-01-01", "2026-11-22T12:30"):
        with pytest.raises(NotFoundError, match="there is no job 'orders' in memory://"):
            Days().at(at)
