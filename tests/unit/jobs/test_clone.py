"""A clone is a job of its own with another's state, positions and batches; a swap is one record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pyarrow as pa
import pytest
from click.testing import CliRunner

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli import main
from dstl_dagster.errors import (
    ConflictError,
    DstlError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.jobs import clone_job, drop_job, plan_correction, swap_job
from dstl_dagster.keyed import diff_checkpoints
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import (
    ABSENT,
    GCSObjectStore,
    Generation,
    LocalObjectStore,
    MemoryObjectStore,
    ObjectStore,
)
from dstl_dagster.testing.gcs_server import GCSServer
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.contract.test_gcs_store import make_client
from tests.unit.conftest import CountingStore, KeyedJob

OWNER = "dstl-jobs-clone:me"
OPERATOR = KeyedJob.OPERATOR


class Days:
    """A job that counts flights by aircraft, a batch a day."""

    def __init__(self, store: ObjectStore, job: str = "live", **options: object) -> None:
        self.keyed, self.schema = KeyedJob(store), KeyedJob.SCHEMA
        self.keyed.coordinator = CheckpointCoordinator(
            job,
            store,
            CheckpointOptions(**options),  # type: ignore[arg-type] # given by the tests
            owner="test",
        )

    @property
    def coordinator(self) -> CheckpointCoordinator:
        return self.keyed.coordinator

    def run(self, *days: int, flights: int = 1) -> None:
        for day in days:
            attempt = self.coordinator.trigger(idempotency_key=f"day-{day}")
            rows = [{"tail": f"N{day}", "flights": flights}, {"tail": "all", "flights": 100 * day + flights}]
            self.coordinator.record(
                attempt, [self.keyed.report(attempt, rows, schema=self.schema)], [], {"inbox": day}
            )
            self.coordinator.confirm(attempt)
            self.coordinator.compose_commit()

    def rows(self) -> dict[str, int]:
        found = self.coordinator.read_state(OPERATOR).to_arrow().to_pylist()
        return {row["tail"]: row["flights"] for row in found}


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def live(store: MemoryObjectStore) -> Days:
    days = Days(store)
    days.run(1, 2, 3, 4)
    return days


def test_a_clone_is_a_job_of_its_own(store: MemoryObjectStore, live: Days) -> None:
    """It goes on after the drop of the other one, and neither shows in the other."""
    live.coordinator.savepoint(3, "good")
    made = clone_job(store, "live", "fixed", at="good", owner=OWNER)
    assert (made.checkpoint_id, made.parent, dict(made.positions), made.committed) == (
        3,
        None,
        {"inbox": 3},
        True,
    )
    fixed = Days(store, "fixed")
    assert fixed.rows() == {"N1": 1, "N2": 1, "N3": 1, "all": 301}
    fixed.run(4, flights=7)
    assert live.rows()["N4"] == 1
    drop_job(store, "live", owner=OWNER, clock=VirtualClock())
    fixed.coordinator.clean_up()
    assert fixed.coordinator.verify().ok
    assert fixed.rows() == {"N1": 1, "N2": 1, "N3": 1, "N4": 7, "all": 407}


def test_a_clone_holds_the_batches_of_its_checkpoint(store: MemoryObjectStore, live: Days) -> None:
    """And none that a restore has abandoned, also once they are in the archive."""
    live.coordinator.restore(2)
    live.run(5)
    clone_job(store, "live", "fixed", owner=OWNER)
    fixed = Days(store, "fixed", snapshot_interval=8)
    for number in range(12):
        held = [day for day in range(1, 9) if fixed.coordinator.applied(f"day-{day}") is not None]
        assert held == [1, 2, 5], number
        with pytest.raises(ConflictError, match="day-2' is already in checkpoint 5"):
            fixed.coordinator.trigger(idempotency_key="day-2")
        fixed.coordinator.savepoint(5, f"s{number}")
        fixed.coordinator.release(f"s{number}")
    attempt = fixed.coordinator.applied_attempt("day-2")
    assert attempt is not None
    assert (attempt.checkpoint_id, attempt.idempotency_key) == (5, "day-2")
    fixed.run(3, 4)
    correction = plan_correction(fixed.coordinator, "day-2")
    assert (correction.restore_to, correction.batches) == (
        0,
        ("day-1", "day-2", "day-5", "day-3", "day-4"),
    )
    assert fixed.coordinator.plan_restore(0).batches == correction.batches


def test_a_clone_of_what_a_restore_abandoned(store: MemoryObjectStore, live: Days) -> None:
    """Holds the batches of that checkpoint, and none that came in their place: the state has them."""
    live.coordinator.savepoint(4, "bad")
    live.coordinator.restore(2)
    live.run(5)
    clone_job(store, "live", "bad", at="savepoint:bad", owner=OWNER)
    live.coordinator.restore(0)
    clone_job(store, "live", "last", owner=OWNER)
    for job, days in (("bad", [1, 2, 3, 4]), ("last", [1, 2, 5])):
        clone = Days(store, job)
        held = [day for day in range(9) if clone.coordinator.applied(f"day-{day}") is not None]
        assert held == days, clone.rows()


def test_ids_that_a_clone_never_had(store: MemoryObjectStore, live: Days) -> None:
    """Are named so, and not as cleaned up."""
    clone_job(store, "live", "fixed", owner=OWNER)
    fixed = Days(store, "fixed")
    fixed.run(5)
    assert [each.checkpoint_id for each in fixed.coordinator.list()] == [4, 5]
    with pytest.raises(NotFoundError, match="never had a checkpoint 2") as never:
        fixed.coordinator.get(2)
    assert never.value.kind == "no_checkpoint"


def test_another_store(tmp_path) -> None:
    """Gets its own copy of everything; in one bucket the service makes it."""
    with GCSServer() as server:
        server.create_bucket("from")
        client = make_client(server)
        bucket, folder = GCSObjectStore(client, "from"), LocalObjectStore(tmp_path)
        live = Days(bucket)
        live.run(1, 2, 3, 4)
        for to in (bucket, folder, MemoryObjectStore()):
            clone_job(bucket, "live", "fixed", to=to, owner=OWNER)
            fixed = Days(to, "fixed")
            fixed.run(5)
            assert fixed.coordinator.verify().ok
            assert fixed.rows() == {**live.rows(), "N5": 1, "all": 501}
        swap_job(bucket, "live", "fixed", owner=OWNER)
        assert live.rows() == fixed.rows()
        client.close()


def test_a_checkpoint_that_goes_while_it_is_cloned(store: MemoryObjectStore, live: Days, monkeypatch) -> None:
    """Its savepoint is released, say: the error says what became of it, and no job is begun."""
    live.coordinator.savepoint(1, "kept")
    copy = MemoryObjectStore.copy

    def after_a_clean_up(*what, **how):
        monkeypatch.setattr(MemoryObjectStore, "copy", copy)
        live.coordinator.release("kept")
        live.keyed.merging()
        options = CheckpointOptions(num_retained=1, reader_grace=timedelta(0))
        CheckpointCoordinator("live", store, options).clean_up()
        return copy(*what, **how)

    monkeypatch.setattr(MemoryObjectStore, "copy", after_a_clean_up)
    with pytest.raises(NotFoundError, match="the state of job 'live' at checkpoint 1 was deleted") as gone:
        clone_job(store, "live", "beside", at="savepoint:kept", owner=OWNER)
    assert gone.value.kind == "checkpoint_gone"
    assert CheckpointCoordinator("beside", store).latest() is None


def test_files_outside_of_the_attempts_are_copied_too(store: MemoryObjectStore) -> None:
    """Of writers that outlive their attempts, or of another program: each file keeps a name of its own."""
    named = {f"{folder}/changelog/1": 0 for folder in ("flink/a", "flink/b")}
    for name in named:
        with FsStateChangelogStorage("live", store, base_path=name) as storage:
            writer = storage.create_writer("totals", KeyGroupRange.of(0, 3))
            writer.append(0, name.encode())
            found = writer.persist(writer.initial_sequence_number(), 1).result()
            (stream,) = found.job_manager_owned_snapshot.stream_state_handles()
            writer.close()
        store.put(name, store.get(stream.name), precondition=ABSENT)
    handle = ChangelogStateHandle.of_files([*named.items()], KeyGroupRange.of(0, 3))
    live = CheckpointCoordinator("live", store)
    attempt = live.trigger()
    live.record(attempt, {"totals": [handle]})
    live.confirm(attempt)
    made = clone_job(store, "live", "beside", owner=OWNER)
    (copied,) = made.manifest.operators["totals"].handles
    reader = FsStateChangelogStorage("beside", store).create_reader()
    assert [bytes(each.change).decode() for each in reader.read(copied)] == [*named]
    assert {each.name for each in copied.streams}.isdisjoint(named)


def test_a_clone_that_went_on_is_not_begun_again(store: MemoryObjectStore, live: Days) -> None:
    """A repeat right after finds it done."""
    made = clone_job(store, "live", "fixed", owner=OWNER)
    assert clone_job(store, "live", "fixed", owner=OWNER).attempt == made.attempt
    Days(store, "fixed").run(5)
    with pytest.raises(ConflictError, match="job 'fixed' is there already"):
        clone_job(store, "live", "fixed", owner=OWNER)


def test_a_job_that_is_there_is_refused(store: MemoryObjectStore, live: Days) -> None:
    Days(store, "fixed").run(1)
    with pytest.raises(ConflictError, match="job 'fixed' is there already"):
        clone_job(store, "live", "fixed", owner=OWNER)
    with pytest.raises(NotFoundError, match="no job 'life'"):
        clone_job(store, "life", "other", owner=OWNER)


def test_a_damaged_file_begins_no_job(store: MemoryObjectStore, live: Days) -> None:
    name = next(stat.name for stat in store.list("dstl/live/attempts/") if "/changelog/" in stat.name)
    content = bytearray(store.get(name))
    content[5] ^= 1
    store.delete(name, precondition=_generation(store, name))
    store.put(name, bytes(content), precondition=ABSENT)
    with pytest.raises(FormatError, match="is damaged"):
        clone_job(store, "live", "fixed", owner=OWNER)
    assert Days(store, "fixed").coordinator.latest() is None


def _generation(store: ObjectStore, name: str):
    stat = store.stat(name)
    assert stat is not None
    return Generation(stat.generation)


class Dying(MemoryObjectStore):
    """Fails for ever after so many changes."""

    lives: int | None = None

    def _live(self) -> None:
        if self.lives is not None:
            if not self.lives:
                raise UnavailableError("killed")
            self.lives -= 1

    def put(self, name, payload, **how):
        self._live()
        return super().put(name, payload, **how)

    def copy(self, source, target, **how):
        self._live()
        return super().copy(source, target, **how)


def deaths(store: Dying, act) -> Iterator[int]:
    """`act` as it dies after each number of changes, until it does not."""
    for lives in range(100):
        store.lives = lives
        try:
            act()
        except DstlError:
            store.lives = None
            yield lives
        else:
            store.lives = None
            return
    raise AssertionError("it never ends")


def test_a_clone_that_is_killed_goes_on(store: MemoryObjectStore) -> None:
    """At every change; and its first clean-up leaves nothing of those before."""
    dying = Dying()
    Days(dying).run(1, 2)
    died = [*deaths(dying, lambda: clone_job(dying, "live", "fixed", owner=OWNER))]
    assert len(died) > 5
    fixed = Days(dying, "fixed", reader_grace=timedelta(0))
    assert fixed.rows() == {"N1": 1, "N2": 1, "all": 201}
    fixed.coordinator.clean_up()
    left = {stat.name for stat in dying.list("dstl/fixed/attempts/")}
    assert left == {*fixed.coordinator.at().manifest.needs()}


def test_a_clone_that_is_killed_goes_on_after_the_job_did(live: Days, store: MemoryObjectStore) -> None:
    """With the job's last checkpoint then; another owner's is left alone."""
    CheckpointCoordinator("fixed", store, owner=f"{OWNER}/live@4/0").trigger()  # and no more
    live.run(5)
    CheckpointCoordinator("other", store, owner=f"{OWNER}/a step").trigger()
    for new, owner in (("fixed", "dstl-jobs-clone:m"), ("other", OWNER)):
        with pytest.raises(ConflictError, match="is being made by attempt"):
            clone_job(store, "live", new, owner=owner)
    clone_job(store, "live", "fixed", owner=OWNER)
    assert Days(store, "fixed").rows() == live.rows()


def test_a_swap_is_one_checkpoint(store: MemoryObjectStore, live: Days) -> None:
    """With the clone's rows, positions and batches, and taken back by a restore."""
    clone_job(store, "live", "fixed", at=2, owner=OWNER)
    fixed, before = Days(store, "fixed"), live.rows()
    fixed.run(3, 4, 5, flights=9)
    made = swap_job(store, "live", "fixed", owner=OWNER)
    assert (made.checkpoint_id, made.parent, dict(made.positions)) == (5, 4, {"inbox": 5})
    assert live.rows() == fixed.rows() == {"N1": 1, "N2": 1, "N3": 9, "N4": 9, "N5": 9, "all": 509}
    with pytest.raises(ConflictError, match="'day-5' is already in checkpoint 5"):
        live.coordinator.trigger(idempotency_key="day-5")
    drop_job(store, "fixed", owner=OWNER, clock=VirtualClock())
    live.run(6)
    assert live.coordinator.verify().ok
    live.coordinator.restore(4)
    assert live.rows() == before
    assert live.coordinator.applied("day-5") is None
    live.run(5)
    assert live.rows() == {**before, "N5": 1, "all": 501}


def test_a_correction_does_not_take_a_swap_back(store: MemoryObjectStore, live: Days) -> None:
    """By a checkpoint of the state that it replaced: all batches run again where no later one is there."""
    clone_job(store, "live", "fixed", at=1, owner=OWNER)
    Days(store, "fixed").run(2, 3, 4, 5, flights=9)
    swapped = swap_job(store, "live", "fixed", owner=OWNER).checkpoint_id
    live.run(6, 7)
    planned = {day: plan_correction(live.coordinator, f"day-{day}") for day in (3, 5, 6, 7)}
    assert {day: plan.restore_to for day, plan in planned.items()} == {3: 0, 5: 0, 6: swapped, 7: swapped + 1}
    assert planned[5].batches == tuple(f"day-{day}" for day in range(1, 8))
    live.coordinator.savepoint(4, "before")
    live.coordinator.clean_up(num_retained=1)
    assert plan_correction(live.coordinator, "day-7").restore_to == 0
    live.coordinator.restore(4)
    live.run(5, 6)
    assert plan_correction(live.coordinator, "day-6").restore_to == swapped + 3


def test_a_clone_of_the_same_name_is_swapped_too(store: MemoryObjectStore, live: Days) -> None:
    """Also if it has the checkpoint id of the one that was swapped before: a second try to mend a day."""
    for flights in (7, 9):
        clone_job(store, "live", "fixed", at=3, owner=OWNER)
        fixed = Days(store, "fixed")
        fixed.run(4, 5, flights=flights)
        made = swap_job(store, "live", "fixed", owner=OWNER)
        assert live.rows() == fixed.rows()
        assert swap_job(store, "live", "fixed", owner=OWNER).attempt == made.attempt
        drop_job(store, "fixed", owner=OWNER, clock=VirtualClock())


def test_a_swap_with_less_is_refused(store: MemoryObjectStore, live: Days) -> None:
    """No batch is lost by it, nor does a source go back."""
    clone_job(store, "live", "fixed", at=2, owner=OWNER)
    fixed = Days(store, "fixed")
    fixed.run(3)
    with pytest.raises(ConflictError, match="does not hold day-4"):
        swap_job(store, "live", "fixed", owner=OWNER)
    fixed.run(4)
    attempt = live.coordinator.trigger()
    live.coordinator.record(attempt, [], [], {"inbox": 99})
    live.coordinator.confirm(attempt)
    live.coordinator.compose_commit()
    with pytest.raises(ConflictError, match="source 'inbox' stands at 4 there, and at 99 here"):
        swap_job(store, "live", "fixed", owner=OWNER)
    live.coordinator.restore(4)
    attempt = live.coordinator.trigger()
    live.coordinator.record(attempt, [], [], {"inbox": 4, "letters": 7})
    live.coordinator.confirm(attempt)
    live.coordinator.compose_commit()
    fixed.run(5)
    with pytest.raises(ConflictError, match="does not have source 'letters', which stands at 7 here"):
        swap_job(store, "live", "fixed", owner=OWNER)
    with pytest.raises(InvalidInputError, match="cannot take its own place"):
        swap_job(store, "live", "live", owner=OWNER)


@pytest.mark.parametrize(
    ("keys", "tail", "key_groups"),
    [(["tail", "flights"], "string", 16), (["tail"], "binary", 16), (["tail"], "string", 8)],
)
def test_a_swap_with_other_keys_is_refused(
    store: MemoryObjectStore, live: Days, keys: list[str], tail: str, key_groups: int
) -> None:
    """The next batch of the job could not write them."""
    fixed, before = Days(store, "fixed"), live.rows()
    columns = pa.schema({"tail": pa.type_for_alias(tail), "flights": pa.int64()})
    fixed.schema = StateSchema.of(columns, keys, key_groups)
    fixed.run(1, 2, 3, 4)
    here = "here they are tail string in 16 key groups"
    with pytest.raises(InvalidInputError, match=here) as refused:
        swap_job(store, "live", "fixed", owner=OWNER)
    assert refused.value.kind == "schema_change"
    live.run(5)
    assert live.rows() == {**before, "N5": 1, "all": 501}


def test_a_swap_beside_a_batch(store: MemoryObjectStore, live: Days) -> None:
    """Is refused while an attempt is open: what that writes builds on the state before."""
    clone_job(store, "live", "fixed", owner=OWNER)
    Days(store, "live").coordinator.trigger(idempotency_key="day-5")
    with pytest.raises(ConflictError, match="is being made by attempt"):
        swap_job(store, "live", "fixed", owner=OWNER)


def test_a_swap_that_is_killed_changes_all_or_nothing() -> None:
    dying = Dying()
    live = Days(dying)
    live.run(1, 2)
    clone_job(dying, "live", "fixed", at=1, owner=OWNER)
    fixed = Days(dying, "fixed")
    fixed.run(2, flights=9)
    before, after = live.rows(), fixed.rows()
    seen = [live.rows() for _ in deaths(dying, lambda: swap_job(dying, "live", "fixed", owner=OWNER))]
    assert {json.dumps(rows) for rows in seen} == {json.dumps(before), json.dumps(after)}
    assert Days(dying).rows() == after
    assert [each.checkpoint_id for each in live.coordinator.list()] == [1, 2, 3]


def test_what_both_have_is_not_read_to_compare_them(counting_store: CountingStore) -> None:
    """A copy of a file is known by its last name."""
    live = Days(counting_store)
    live.run(1, 2)
    clone_job(counting_store, "live", "fixed", owner=OWNER)
    counting_store.read.clear()
    older = live.coordinator.at().manifest
    newer = Days(counting_store, "fixed").coordinator.at().manifest
    assert [*diff_checkpoints(counting_store, older, newer, OPERATOR)] == []
    assert counting_store.changelog_files == 0


def test_the_commands(tmp_path) -> None:
    """Clone, compare, swap, drop: the recompute of the documentation."""
    uri, run = tmp_path.as_uri(), CliRunner().invoke
    Days(LocalObjectStore(tmp_path)).run(1, 2, 3)
    cloned = run(main, ["jobs", "clone", "live", "fixed", "--at", "1", "--store", uri])
    assert cloned.exit_code == 0, cloned.output
    assert "job 'fixed' begins with checkpoint 1 of 'live'" in cloned.output
    Days(LocalObjectStore(tmp_path), "fixed").run(2, 3, flights=5)
    diff = [
        "checkpoints",
        "diff",
        "latest",
        "latest",
        "--newer-job",
        "fixed",
        "--job",
        "live",
        "--store",
        uri,
    ]
    assert "0 added, 3 changed, 0 removed" in run(main, diff).output
    swapped = run(main, ["jobs", "swap", "live", "fixed", "--yes", "--json", "--store", uri])
    assert json.loads(swapped.output)["checkpoint_id"] == 4
    assert "0 added, 0 changed, 0 removed" in run(main, diff).output
