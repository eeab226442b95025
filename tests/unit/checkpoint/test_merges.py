"""Runs are merged: what they replace is not needed any more, and the state is unchanged."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator, OperatorReport, materialize
from dstl_dagster.errors import ConflictError, FormatError, InvalidInputError, UnavailableError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.keyed import Run, due_operators, load_report
from dstl_dagster.keyed.documents.runs import Merge
from dstl_dagster.keyed.merge.policy import DueMerge
from dstl_dagster.keyed.read import keyed_state
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import MemoryObjectStore

if TYPE_CHECKING:
    from tests.unit.conftest import CountingStore, Job, KeyedJob

ALL = KeyGroupRange.of(0, 15)


def row(tail: str, flights: int) -> dict[str, Any]:
    return {"tail": tail, "flights": flights}


ROWS = [row(f"N{number:02}", number) for number in range(30)]


def entry(checkpoint: Checkpoint, operator: str = "aircraft") -> Any:
    return checkpoint.manifest.operators[operator]


def forced(keyed: KeyedJob) -> Checkpoint:
    made = materialize(keyed.coordinator, force=True)
    assert made is not None
    return made


def changes_of(keyed: KeyedJob, checkpoint: Checkpoint) -> list[list[tuple[int, bytes]]]:
    """The log of one checkpoint, by handle."""
    with keyed.state(checkpoint).reading() as reader:
        return [list(reader.read(handle)) for handle in entry(checkpoint).handles]


def test_thresholds_are_settings() -> None:
    """Each number comes from its key, and an invalid one is refused by name."""
    options = CheckpointOptions.from_mapping(
        {
            "dstl.state.materialize.enabled": "false",
            "dstl.state.materialize.log-ratio": "0.5",
            "dstl.state.materialize.max-runs": "3",
        }
    )
    found = options.materialize, options.materialize_log_ratio, options.materialize_max_runs
    assert found == (False, 0.5, 3)
    for wrong in ({"log-ratio": "0"}, {"log-ratio": "nan"}, {"max-runs": "1"}, {"max-rums": "1"}):
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            CheckpointOptions.from_mapping({f"dstl.state.materialize.{key}": v for key, v in wrong.items()})


def same_state_without_older(keyed: KeyedJob) -> None:
    """Writes a history, folds it, and compares: the guarantee that the broken variants break."""
    keyed.changes(ROWS)
    last = keyed.changes([row("N01", 100)], [{"tail": "N02"}])
    before = keyed.rows(last)
    merged = forced(keyed)
    assert [(run.merged, run.whole) for run in entry(merged).runs] == [(True, True)]
    assert keyed.rows(merged) == before
    assert keyed.state(merged).row({"tail": "N02"}) is None
    rows = [each for table in keyed.state(merged).tables() for each in table.to_pylist()]
    held = [run.rows.num_rows for run in keyed.state(merged).runs()]
    assert sum(held) == len(rows) == 29
    after = keyed.changes([row("N02", 5)], [{"tail": "N01"}])
    assert len(entry(after).runs) == 2
    assert keyed.rows(after) == sorted(
        [each for each in before if each["tail"] != "N01"] + [row("N02", 5)], key=repr
    )


@pytest.mark.parametrize("split_bytes", [1 << 20, 300])
def test_a_merge_of_all_is_the_state(
    keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch, split_bytes: int
) -> None:
    """The same rows at any number of ranges; no deleted keys; later changes follow it."""
    monkeypatch.setattr(keyed_state, "_SPLIT_BYTES", split_bytes)
    same_state_without_older(keyed)


def test_a_merge_of_all_that_keeps_tombstones_is_found(
    keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above can fail: it catches a last run with deleted keys."""
    monkeypatch.setattr("dstl_dagster.state.LastChanges.alive", lambda self: self)
    with pytest.raises(AssertionError):
        same_state_without_older(keyed)


def test_a_merge_above_older_runs_keeps_tombstones(keyed: KeyedJob) -> None:
    """What it deletes is still there below it; a merge of key groups without rows has no file."""
    keyed.changes(ROWS)
    keyed.changes([row("N01", 100)])
    last = keyed.changes([row("N01", 101)], [{"tail": "N02"}])
    before = keyed.rows(last)
    merged = keyed.merging(first=2)
    oldest, newest = entry(merged).runs
    assert (oldest.first, oldest.whole) == (1, True)
    assert (newest.first, newest.last, newest.merged, newest.whole) == (2, 3, True, False)
    assert (newest.upserts, newest.deletes) == (1, 1)
    assert keyed.rows(merged) == before
    assert keyed.rows(keyed.merging()) == before
    only_n01 = [{"tail": "N01"}]
    gone = keyed.changes([], only_n01)
    assert keyed.rows(gone) == [each for each in before if each["tail"] != "N01"]


def test_a_merge_of_some_key_groups_leaves_the_others(keyed: KeyedJob) -> None:
    """Of each run the rest stays, with its share of the bytes; the order of changes is kept."""
    keyed.changes(ROWS)
    last = keyed.changes([row("N01", 100)], [{"tail": "N02"}], partitions=1)
    before = keyed.rows(last)
    part = keyed.merging([row("N03", 7)], key_groups=KeyGroupRange.of(3, 9))
    held = [
        [str(handle.key_group_range) for handle in run.handles] for run in entry(part).runs if not run.merged
    ]
    assert held[0][0] == "[0, 2]"
    assert held[0][-1] == "[10, 15]"
    assert keyed.rows(part) == sorted(
        [row("N03", 7), *(each for each in before if each["tail"] != "N03")], key=repr
    )
    rest = keyed.merging(key_groups=KeyGroupRange.of(0, 2))
    assert keyed.rows(keyed.merging(key_groups=KeyGroupRange.of(10, 15))) == keyed.rows(rest)
    whole = keyed.coordinator.latest()
    assert whole is not None
    assert all(run.merged for run in entry(whole).runs if run.first == 0)


def test_a_part_without_changes_is_not_named() -> None:
    """Of a run with changes in few key groups, merges leave the part where these are, with all its bytes."""
    handle = ChangelogStateHandle.of_files([("file", 0)], KeyGroupRange.of(0, 99)).holding([40, 41, 70])
    run = Run(1, 1, (dataclasses.replace(handle, state_size=300, share_bytes=30),))
    (left,) = run.without(KeyGroupRange.of(50, 60)).without(KeyGroupRange.of(70, 99)).handles
    assert (left.key_group_range, left.held) == (KeyGroupRange.of(0, 49), handle.held)
    assert (left.state_size, left.share_bytes) == (200, 20)
    (whole,) = run.without(KeyGroupRange.of(71, 80)).handles
    assert (whole.key_group_range, whole.state_size) == (KeyGroupRange.of(0, 70), 300)
    assert not Run(1, 1, (left,)).without(KeyGroupRange.of(30, 45)).handles


def test_the_same_runs_give_the_same_merge(keyed: KeyedJob) -> None:
    """Two merges of one checkpoint hold the same changes, byte for byte, in the same places."""
    last = keyed.changes(ROWS, [{"tail": "gone"}])
    logs = []
    for _ in range(2):
        attempt = keyed.coordinator.trigger()
        report = keyed.merged(attempt, entry(last).report.unchanged(), last, DueMerge(ALL, first=0))
        made = keyed.complete(attempt, report)
        logs.append(changes_of(keyed, made))
        assert (made.manifest.changes, made.manifest.rows.exact) == (0, 30)
    assert logs[0] == logs[1]


def test_a_merge_of_nothing_keeps_the_schema(keyed: KeyedJob) -> None:
    """If every row was deleted, the columns are still known, and the next change finds them."""
    keyed.changes([row("a", 1)])
    keyed.changes([], [{"tail": "a"}])
    empty = forced(keyed)
    assert keyed.rows(empty) == []
    assert keyed.state(empty).schema == keyed.SCHEMA
    assert keyed.rows(keyed.changes([row("b", 1)])) == [row("b", 1)]


def test_a_merge_has_the_evolved_schema(keyed: KeyedJob) -> None:
    """It has the columns of every older report, though none of them is read any more."""
    noted = StateSchema.of(
        pa.schema({"tail": pa.string(), "flights": pa.int64(), "note": pa.string()}), ["tail"], 16
    )
    keyed.changes([{"tail": "a", "note": "x"}], schema=noted)
    keyed.changes([row("b", 1)])
    base = forced(keyed)
    assert keyed.rows(base) == [
        {"tail": "a", "flights": None, "note": "x"},
        {"tail": "b", "flights": 1, "note": None},
    ]


def test_merge_and_changes_are_one_report(keyed: KeyedJob) -> None:
    """A checkpoint's own changes come after what it merged, and only they count as changes."""
    keyed.changes(ROWS)
    made = keyed.merging([row("N01", 100)], [{"tail": "N02"}])
    merged, own = entry(made).runs
    assert (merged.merged, own.merged) == (True, False)
    assert entry(made).report.handles == own.handles
    assert entry(made).merged_bytes == merged.stored_bytes
    assert made.manifest.changes == 2
    assert keyed.state(made).row({"tail": "N01"}) == row("N01", 100)
    assert keyed.state(made).row({"tail": "N02"}) is None
    assert len(keyed.rows(made)) == 29


def test_a_joined_report_has_the_columns_of_both(keyed: KeyedJob) -> None:
    """Changes with fewer columns than the state below them do not hide the other columns."""
    noted = StateSchema.of(
        pa.schema({"tail": pa.string(), "flights": pa.int64(), "note": pa.string()}), ["tail"], 16
    )
    keyed.changes([{"tail": "a", "note": "x"}], schema=noted)
    made = keyed.merging([row("b", 1)])
    assert [each["note"] for each in keyed.rows(made)] == ["x", None]


def test_changes_below_the_merge_are_found(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: with the runs in reverse order, older rows win."""
    keyed.changes(ROWS)
    made = keyed.merging([row("N01", 100)])
    monkeypatch.setattr(
        type(entry(made)),
        "handles",
        property(lambda self: [h for run in self.runs[::-1] for h in run.handles]),
    )
    assert keyed.state(made).row({"tail": "N01"}) != row("N01", 100)


def test_what_cannot_be_merged_is_refused(job: Job) -> None:
    """A merge of state that is not there, of no key groups, and of more than there are."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    changes = job.changes(attempt)
    run = Run(0, 1, changes.handles, merged=True, whole=True)
    with pytest.raises(InvalidInputError, match="no state yet"):
        coordinator.record(attempt, [dataclasses.replace(changes, merges=(Merge(ALL, run),))])
    for wrong in (
        lambda: Merge(KeyGroupRange.EMPTY, run),
        lambda: Merge(ALL, dataclasses.replace(run, merged=False)),
    ):
        with pytest.raises(InvalidInputError, match="a merge is of some key groups"):
            wrong()
    with pytest.raises(InvalidInputError, match="some of its 128 key groups"):
        dataclasses.replace(changes, merges=(Merge(KeyGroupRange.of(0, 128), run),))


def test_a_report_with_merges_is_read_again(keyed: KeyedJob) -> None:
    """As it was stored, and refused if it is not valid."""
    last = keyed.changes(ROWS)
    attempt = keyed.coordinator.trigger()
    report = keyed.merged(attempt, entry(last).report.unchanged(), last, DueMerge(ALL, first=0))
    assert OperatorReport.from_json(report.to_json()) == report
    plain = report.to_json()
    plain["merges"][0]["run"]["runs"][0][2] = 7
    with pytest.raises(FormatError, match="not valid"):
        OperatorReport.from_json(plain)


def test_the_size_of_a_state_is_that_of_its_runs(keyed: KeyedJob) -> None:
    """Counted from the manifest alone: files are not opened."""
    one = keyed.changes(ROWS)
    two = keyed.changes([row("a", 1)])
    assert entry(two).state_bytes == entry(one).report.stored_bytes + entry(two).report.stored_bytes
    merged = forced(keyed)
    assert entry(merged).state_bytes == entry(merged).merged_bytes


def test_what_was_merged_goes(keyed_on: type[KeyedJob], counting_store: CountingStore) -> None:
    """With one checkpoint retained, clean-up deletes the old runs, and all older manifests."""
    store = counting_store
    keyed = keyed_on(store, num_retained=1, reader_grace=timedelta(0))
    for day in range(6):
        keyed.changes([row("a", day), row(f"N{day}", day)])
    old_files = {name for name in keyed.names() if "/changelog/" in name}
    keyed.coordinator.clean_up()
    assert old_files <= set(keyed.names())
    forced(keyed)
    keyed.changes([row("a", 10)])
    last = keyed.changes([row("a", 11)])
    keyed.coordinator.clean_up()
    left = {name for name in keyed.names() if "/changelog/" in name}
    assert not old_files & left
    assert len([name for name in keyed.names() if "/manifests/" in name]) == 1
    store.read.clear()
    assert keyed.rows(last) == sorted([row("a", 11), *(row(f"N{d}", d) for d in range(6))], key=repr)
    assert set(store.read) == left


def test_the_old_log_stays_while_a_checkpoint_needs_it(keyed_on: type[KeyedJob]) -> None:
    """A merge removes nothing that older kept checkpoints need."""
    keyed = keyed_on(MemoryObjectStore(), num_retained=2)
    keyed.changes(ROWS)
    two = keyed.changes([row("a", 1)])
    before = keyed.rows(two)
    forced(keyed)
    keyed.coordinator.clean_up()
    assert keyed.rows(two) == before


def test_materialize_makes_a_checkpoint_of_its_own(keyed: KeyedJob) -> None:
    """By the public steps: positions are unchanged, and a second call has nothing to do."""
    coordinator = keyed.coordinator
    assert materialize(coordinator) is None
    attempt = coordinator.trigger()
    coordinator.record(attempt, [keyed.report(attempt, ROWS)], (), {"days": "monday"})
    coordinator.confirm(attempt)
    assert materialize(coordinator) is None
    seen: list[tuple[int, int]] = []
    made = materialize(coordinator, ["aircraft"], force=True, progress=lambda *at: seen.append(at))
    assert made is not None
    assert (made.checkpoint_id, made.committed, made.positions) == (2, True, {"days": "monday"})
    assert seen == [(1, 1)]
    assert materialize(coordinator, force=True) is None
    with pytest.raises(InvalidInputError, match="no operator 'nobody'"):
        materialize(coordinator, ["nobody"], force=True)


def test_materialize_waits_for_its_turn(keyed: KeyedJob) -> None:
    """While another owner's attempt is open, it is refused."""
    keyed.changes(ROWS)
    CheckpointCoordinator(keyed.coordinator.job, keyed.store, owner="rival").trigger()
    with pytest.raises(ConflictError) as refused:
        materialize(keyed.coordinator, force=True)
    assert refused.value.kind == "attempt_open"


def test_a_failed_materialisation_aborts_its_attempt(
    keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage is raised, the attempt is aborted, and the job resumes from where it was."""
    last = keyed.changes(ROWS)

    def unavailable(*_: object, **__: object) -> None:
        raise UnavailableError("the store is away")

    with monkeypatch.context() as away:
        away.setattr("dstl_dagster.keyed.write.shared_files.SharedFiles.write_range", unavailable)
        with pytest.raises(UnavailableError):
            materialize(keyed.coordinator, force=True)
    assert [record.kind for record in keyed.coordinator.timeline.records()][-2:] == ["opened", "aborted"]
    assert keyed.rows(keyed.changes([row("a", 1)])) == sorted([*keyed.rows(last), row("a", 1)], key=repr)


def test_a_log_of_own_bytes_is_left_alone(job: Job) -> None:
    """A log without a schema is not keyed state and cannot be merged, so it is never due."""
    coordinator = job.coordinator(materialize_max_runs=2)
    attempt = coordinator.trigger()
    coordinator.record(attempt, {"totals": job.changes(attempt).handles})
    manifest = coordinator.confirm(attempt).manifest
    assert due_operators(manifest, coordinator.options, force=True) == []
    with CheckpointBatch(coordinator):
        pass


def batch(keyed: KeyedJob, *rows: dict[str, Any]) -> Attempt:
    """What a Spark job's batch does, with these rows."""
    with CheckpointBatch(keyed.coordinator) as opened:
        if rows:
            opened.add(keyed.report(opened.attempt, rows))
    report = load_report(keyed.store, opened.attempt)
    keyed.complete(opened.attempt, *report.operators)
    return opened.attempt


def test_a_batch_merges_what_is_due(keyed_on: type[KeyedJob]) -> None:
    """Its report has a merge below its changes; a batch without changes merges nothing."""
    keyed = keyed_on(MemoryObjectStore(), materialize_max_runs=3)
    merged = []
    for day in range(9):
        batch(keyed, row("a", day), row(f"N{day}", day))
        latest = keyed.coordinator.latest()
        assert latest is not None
        merged.append(bool(entry(latest).merged_bytes))
        assert len(entry(latest).runs) <= 4
        assert len(keyed.rows()) == day + 2
        assert keyed.state().row({"tail": "a"}) == row("a", day)
    assert merged == [False, False, False, True, False, True, False, True, False]
    before = keyed.coordinator.latest()
    batch(keyed)
    latest = keyed.coordinator.latest()
    assert before is not None
    assert latest is not None
    assert entry(latest).runs == entry(before).runs
    assert latest.manifest.changes == 0


def test_a_batch_merges_nothing_if_disabled(keyed_on: type[KeyedJob]) -> None:
    """The switch overrides the thresholds; many runs move into a list, and are read all the same."""
    keyed = keyed_on(MemoryObjectStore(), materialize_max_runs=2, materialize=False)
    for day in range(12):
        batch(keyed, row("a", day))
    latest = keyed.coordinator.latest()
    assert latest is not None
    assert len(entry(latest).runs) == 12
    assert keyed.rows() == [row("a", 11)]


def test_a_batch_whose_merge_fails_is_aborted(
    keyed_on: type[KeyedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error leaves the block, and the attempt is aborted as by any other error in it."""
    keyed = keyed_on(MemoryObjectStore(), materialize_max_runs=2)
    batch(keyed, row("a", 1))
    batch(keyed, row("a", 2))

    def unavailable(*_: object, **__: object) -> None:
        raise UnavailableError("the store is away")

    monkeypatch.setattr("dstl_dagster.keyed.write.shared_files.SharedFiles.write_range", unavailable)
    with pytest.raises(UnavailableError), CheckpointBatch(keyed.coordinator) as opened:
        opened.add(keyed.report(opened.attempt, [row("a", 3)]))
    assert [record.kind for record in keyed.coordinator.timeline.records()][-2:] == ["opened", "aborted"]
