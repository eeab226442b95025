"""Correcting a batch: back to before it, then it and all after it again; interrupted anywhere, it goes on."""

from __future__ import annotations

import json
import sys
import uuid

import pytest
from click.testing import CliRunner

from dstl_dagster.checkpoint import Opening
from dstl_dagster.cli import main
from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.jobs import correct, plan_correction
from dstl_dagster.storage import LocalObjectStore, MemoryObjectStore
from dstl_dagster.timeline import BatchKey

DAYS = [f"2001-01-{day:02d}" for day in range(1, 7)]


class Days:
    """A job whose state is the list of the days it has seen, and how it saw them."""

    def __init__(self, keyed, version: int = 0) -> None:
        self.keyed, self.coordinator, self.version = keyed, keyed.coordinator, version

    def run(self, day: str) -> None:
        attempt = self.coordinator.trigger(idempotency_key=day)
        before = self.keyed.rows() if self.coordinator.latest() else []
        assert [row["tail"] for row in before] == [each for each in DAYS if each < day]
        self.keyed.complete(attempt, self.keyed.report(attempt, [{"tail": day, "flights": self.version}]))

    def versions(self) -> list[int]:
        return [row["flights"] for row in self.keyed.rows()]


@pytest.fixture
def days(keyed_on):
    made = Days(keyed_on(MemoryObjectStore(), snapshot_interval=8))
    for day in DAYS[:5]:
        made.run(day)
    made.version = 1
    return made


def test_a_day_and_those_after_it_run_again(days):
    """With progress, in order, on the state of the day before."""
    seen = []
    plan = plan_correction(days.coordinator, DAYS[2])
    assert (plan.restore_to, plan.batches) == (2, tuple(DAYS[2:5]))
    correct(days.coordinator, plan, days.run, progress=lambda *each: seen.append(each))
    assert days.versions() == [0, 0, 1, 1, 1]
    assert seen == [(1, 3, DAYS[2]), (2, 3, DAYS[3]), (3, 3, DAYS[4])]


@pytest.mark.parametrize("good", [0, 1, 2])
@pytest.mark.parametrize("again", ["same day", "next day", "same request"])
def test_an_interrupted_correction_goes_on(days, good, again):
    """By the same day anew, by the day that failed, or by a retry: no day is left out."""
    request_id = uuid.uuid4() if again == "same request" else None

    def dying(day: str) -> None:
        if day == DAYS[2 + good]:
            raise RuntimeError("killed")
        days.run(day)

    plan = plan_correction(days.coordinator, DAYS[2])
    with pytest.raises(RuntimeError):
        correct(days.coordinator, plan, dying, request_id=request_id)
    ran = []

    def noting(day: str) -> None:
        ran.append(day)
        days.run(day)

    day = DAYS[2 + good] if again == "next day" else DAYS[2]
    correct(days.coordinator, plan_correction(days.coordinator, day), noting, request_id=request_id)
    assert days.versions() == [0, 0, 1, 1, 1]
    assert ran == (DAYS[2:5] if again == "same day" else DAYS[2 + good : 5])


def test_an_earlier_day_corrected_in_the_middle_of_it_runs_them_all(days):
    """Also those that the first correction had not run again."""
    days.coordinator.restore(3)
    plan = plan_correction(days.coordinator, DAYS[1])
    assert (plan.restore_to, plan.batches) == (1, tuple(DAYS[1:5]))
    correct(days.coordinator, plan, days.run)
    assert days.versions() == [0, 1, 1, 1, 1]


def test_a_day_that_was_replaced_is_corrected_from_before_it(days):
    """A checkpoint holds it, and the next one holds it anew: between the two is nothing to go back to."""
    attempt, _ = days.coordinator.open(Opening(DAYS[4], anew=True))
    days.keyed.complete(attempt, days.keyed.report(attempt, [{"tail": DAYS[4], "flights": 7}]))
    assert days.versions() == [0, 0, 0, 0, 7]
    plan = plan_correction(days.coordinator, DAYS[4])
    assert (plan.restore_to, plan.batches) == (4, (DAYS[4],))
    correct(days.coordinator, plan, days.run)
    assert days.versions() == [0, 0, 0, 0, 1]


def test_a_day_of_two_sources_is_corrected_in_both(keyed_on):
    """One has it in an earlier checkpoint than the other."""
    keyed = keyed_on(MemoryObjectStore())
    for day in DAYS[:2]:
        for source in ("orders", "returns"):
            keyed.complete(keyed.coordinator.trigger(idempotency_key=BatchKey(day, source)))
    plan = plan_correction(keyed.coordinator, DAYS[1])
    assert plan.restore_to == 2
    assert [each.source.partition("@")[0] for each in plan.keys] == ["orders", "returns"]


def test_a_source_that_is_behind_another_one_runs_in_its_order(keyed_on):
    """It had its first day after the other one had all: its second is not before it."""
    keyed = keyed_on(MemoryObjectStore())
    for source in ("orders", "returns"):
        for day in DAYS[:3]:
            keyed.complete(keyed.coordinator.trigger(idempotency_key=BatchKey(day, source)))
    plan = plan_correction(keyed.coordinator, DAYS[1])
    assert (plan.restore_to, plan.batches) == (1, (DAYS[0], DAYS[1], DAYS[2]))


def test_a_source_that_began_with_the_day_begins_again(keyed_on):
    """Under another id, as it stands on another checkpoint; the correction may be interrupted."""
    keyed, ran = keyed_on(MemoryObjectStore()), []

    def run(day):
        for source in ("orders", "returns"):
            keyed.complete(keyed.coordinator.trigger(idempotency_key=BatchKey(day, source)))

    def dying(day):
        if day == DAYS[1]:
            raise RuntimeError("killed")
        run(day)

    for day in DAYS[:3]:
        run(day)
    with pytest.raises(RuntimeError):
        correct(keyed.coordinator, plan_correction(keyed.coordinator, DAYS[0]), dying)
    plan = plan_correction(keyed.coordinator, DAYS[1])
    assert plan.batches == tuple(DAYS[1:3])
    correct(keyed.coordinator, plan, lambda day: ran.append(day) or run(day))
    assert ran == DAYS[1:3]


def test_a_partition_of_a_table_runs_again_once(keyed_on):
    """Each run of it was a batch of its own, and none of them comes again."""
    keyed, ran = keyed_on(MemoryObjectStore()), []

    def run(day):
        ran.append(day)
        keyed.complete(keyed.coordinator.trigger(idempotency_key=BatchKey(day, "table", f"run:{len(ran)}")))

    for day in (DAYS[0], DAYS[0], DAYS[1]):
        run(day)
    correct(keyed.coordinator, plan_correction(keyed.coordinator, DAYS[0]), run)
    assert ran[3:] == DAYS[:2]


@pytest.mark.parametrize("snapshot_interval", [8, 9, 10, 32])
def test_a_table_that_is_left_out_stops_it(keyed_on, snapshot_interval):
    """Another source has the same days: the table's rows are undone, and nothing writes them again."""
    keyed = keyed_on(MemoryObjectStore(), snapshot_interval=snapshot_interval)

    def run(day, *sources):
        for source in sources:
            window = f"run:{keyed.coordinator.timeline.tail().slot}" if source == "table" else ""
            keyed.complete(keyed.coordinator.trigger(idempotency_key=BatchKey(day, source, window)))

    for day in DAYS[:3]:
        run(day, "orders", "table")
    plan = plan_correction(keyed.coordinator, DAYS[1])
    with pytest.raises(NotFoundError, match=r"of source 'table' of job .* ran, but no checkpoint"):
        correct(keyed.coordinator, plan, lambda day: run(day, "orders"))
    run(DAYS[1], "table")
    plan = plan_correction(keyed.coordinator, DAYS[2])
    assert plan.batches == (DAYS[2],)
    correct(keyed.coordinator, plan, lambda day: run(day, "orders", "table"))


def test_only_some_days_may_be_wanted(days):
    """Up to one of those that follow."""
    assert plan_correction(days.coordinator, DAYS[2], DAYS[3]).batches == (DAYS[2], DAYS[3])
    with pytest.raises(InvalidInputError, match="'2001-01-01' does not follow '2001-01-03'"):
        plan_correction(days.coordinator, DAYS[2], DAYS[0])


def test_a_day_that_never_ran_cannot_be_corrected(days):
    with pytest.raises(NotFoundError, match="'2001-01-06'"):
        plan_correction(days.coordinator, DAYS[5])


def test_the_first_day_is_corrected_by_beginning_anew(days):
    """Readers see the state as it was until the first day has run."""
    seen = []

    def run(day):
        seen.append(
            sorted(row["tail"] for row in days.coordinator.read_state("aircraft").to_arrow().to_pylist())
        )
        days.run(day)

    plan = plan_correction(days.coordinator, DAYS[0])
    assert (plan.restore_to, plan.batches) == (0, tuple(DAYS[:5]))
    correct(days.coordinator, plan, run)
    assert seen == [DAYS[:5], DAYS[:1], DAYS[:2], DAYS[:3], DAYS[:4]]
    assert days.versions() == [1] * 5


@pytest.mark.parametrize(("day", "saved", "back"), [(2, None, 0), (2, 1, 1), (3, 1, 1), (4, None, 4)])
def test_a_day_long_ago_is_corrected_from_the_newest_checkpoint_before_it(days, day, saved, back):
    """Those in between run again too, also after an interruption."""
    if saved is not None:
        days.coordinator.savepoint(saved, "kept")
    days.coordinator.clean_up(num_retained=2)
    plan = plan_correction(days.coordinator, DAYS[day])
    assert (plan.restore_to, plan.batches) == (back, tuple(DAYS[back:5]))
    days.coordinator.restore(back)
    days.run(DAYS[back])
    again = plan_correction(days.coordinator, DAYS[day if day > back else 4])
    assert (again.restore_to is None) == (DAYS[day] > DAYS[back])
    correct(days.coordinator, plan_correction(days.coordinator, DAYS[day]), days.run)
    assert [row["tail"] for row in days.keyed.rows()] == DAYS[:5]


def test_checkpoints_of_nobodys_batch_are_named(days):
    """A change of columns after the day is taken back, and is not made again."""
    attempt = days.coordinator.trigger()
    days.keyed.complete(attempt)
    assert plan_correction(days.coordinator, DAYS[4]).not_batches == (6,)


def test_a_run_that_leaves_no_checkpoint_stops_it(days):
    """A command that succeeds without doing the day would otherwise skip it."""
    with pytest.raises(NotFoundError, match=f"^batch '{DAYS[3]}' of job .* ran, but no checkpoint holds"):
        correct(days.coordinator, plan_correction(days.coordinator, DAYS[3]), lambda _: None)


WORKER = """
import sys
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.storage import open_store

uri, day, bad = sys.argv[1:]
if day == bad:
    sys.exit(3)
coordinator = CheckpointCoordinator("orders", open_store(uri), owner="worker")
attempt = coordinator.trigger(idempotency_key=day)
coordinator.record(attempt, [])
coordinator.confirm(attempt)
coordinator.compose_commit()
"""


def test_the_command_runs_another_for_each_day(tmp_path, keyed_on):
    """It stops where that fails, with the way to go on; without one it lists the days."""
    store = LocalObjectStore(tmp_path / "store", durable=False)
    days = Days(keyed_on(store))
    for day in DAYS[:4]:
        days.run(day)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)

    def run(*arguments, code=0):
        where = {"DSTL_STORE": store.uri, "DSTL_JOB": "orders"}
        result = CliRunner().invoke(main, ["checkpoints", "correct", *arguments], env=where)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    shown = run(DAYS[2], "--dry-run").stdout
    assert "goes back to checkpoint 2" in shown
    assert "2001-01-03, 2001-01-04" in shown
    assert json.loads(run(DAYS[2], "--dry-run", "--json").stdout)["restore_to"] == 2
    worker = ["--", sys.executable, str(script), store.uri, "{batch}"]
    assert "{batch}" in run(DAYS[2], "--yes", "--", "true", code=2).stderr
    assert "'no-such'" in run(DAYS[2], "--yes", "--", "no-such", "{batch}", code=2).stderr
    assert days.coordinator.latest().checkpoint_id == 4, "nothing was restored"
    failed = run(DAYS[2], "--yes", *worker, DAYS[3], code=1)
    assert f"1 of 2: {DAYS[2]} is in checkpoint 5" in failed.stdout
    assert f"dstl checkpoints correct {DAYS[3]}" in failed.stderr
    assert "1 of 1" in run(DAYS[3], "--yes", *worker, "none").stdout
    assert f"run again, in order: {DAYS[3]}" in run(DAYS[3], "--yes").stdout
    assert days.coordinator.latest().checkpoint_id == 5
