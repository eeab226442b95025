"""A long log becomes a base: nothing older is needed any more, and the state is unchanged."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import (
    Attempt,
    Checkpoint,
    CheckpointCoordinator,
    OperatorReport,
    load_report,
    materialize,
)
from dstl_dagster.errors import ConflictError, FormatError, InvalidInputError, UnavailableError
from dstl_dagster.keyed import (
    BaseAndLog,
    base_and_log,
    due_operators,
    is_due,
    keyed_state,
    with_base,
    write_base,
)
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.state import EncodedChanges, FoldedRun, StateSchema, encode_changes
from dstl_dagster.storage import MemoryObjectStore

if TYPE_CHECKING:
    from tests.unit.conftest import CountingStore, Job, KeyedJob

MIB = 1 << 20


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
        return [list(reader.read(handle)) for handle in entry(checkpoint).report.handles]


@pytest.mark.parametrize(
    ("sizes", "due"),
    [
        (BaseAndLog(0, 16 * MIB, 1), True),
        (BaseAndLog(0, 16 * MIB - 1, 9), False),
        (BaseAndLog(0, 16 * MIB - 1, 10), True),
        (BaseAndLog(1000, 1000, 10), True),
        (BaseAndLog(1001, 1000, 199), False),
        (BaseAndLog(16 * MIB, 16 * MIB, 1), True),
        (BaseAndLog(16 * MIB + 1, 16 * MIB, 1), False),
        (BaseAndLog(10**12, 1, 200), True),
        (BaseAndLog(10**12, 0, 0), False),
    ],
)
def test_when_a_log_is_due(sizes: BaseAndLog, due: bool) -> None:
    """When it is as long as the base, and not both small and in few pieces; or in too many pieces."""
    assert is_due(sizes, CheckpointOptions()) is due


def test_thresholds_are_settings() -> None:
    """Each number comes from its key, and an invalid one is refused by name."""
    options = CheckpointOptions.from_mapping(
        {
            "dstl.state.materialize.enabled": "false",
            "dstl.state.materialize.log-ratio": "0.5",
            "dstl.state.materialize.min-log-size": "1kb",
            "dstl.state.materialize.min-checkpoints": "2",
            "dstl.state.materialize.max-checkpoints": "3",
            "dstl.state.materialize.slice-size": "1kb",
        }
    )
    assert not options.materialize
    assert is_due(BaseAndLog(2048, 1024, 1), options)
    assert is_due(BaseAndLog(200, 100, 2), options)
    assert not is_due(BaseAndLog(200, 100, 1), options)
    assert options.materialize_slice_bytes == 1024
    assert not is_due(BaseAndLog(2049, 1024, 2), options)
    assert is_due(BaseAndLog(10**9, 1, 3), options)
    for wrong in (
        {"log-ratio": "0"},
        {"log-ratio": "nan"},
        {"min-checkpoints": "0"},
        {"max-checkpoints": "0"},
        {"slice-size": "0"},
        {"min-log-sice": "1"},
    ):
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            CheckpointOptions.from_mapping({f"dstl.state.materialize.{key}": v for key, v in wrong.items()})


def same_state_without_older(keyed: KeyedJob) -> None:
    """Writes a history, folds it, and compares: the guarantee that the broken variants break."""
    keyed.changes(ROWS)
    last = keyed.changes([row("N01", 100)], [{"tail": "N02"}])
    before = keyed.rows(last)
    base = forced(keyed)
    assert entry(base).report.base
    assert entry(base).previous is None
    assert keyed.rows(base) == before
    assert keyed.state(base).row({"tail": "N02"}) is None
    rows = [each for table in keyed.state(base).tables() for each in table.to_pylist()]
    held = [run.rows.num_rows for run in keyed.state(base).runs()]
    assert sum(held) == len(rows) == 29
    after = keyed.changes([row("N02", 5)], [{"tail": "N01"}])
    assert entry(after).previous is not None
    assert keyed.rows(after) == sorted(
        [each for each in before if each["tail"] != "N01"] + [row("N02", 5)], key=repr
    )


@pytest.mark.parametrize("split_bytes", [1 << 20, 300])
def test_a_base_is_the_state(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch, split_bytes: int) -> None:
    """The same rows at any number of ranges; no deleted keys; later changes follow it."""
    monkeypatch.setattr(keyed_state, "_SPLIT_BYTES", split_bytes)
    same_state_without_older(keyed)


def test_a_base_that_keeps_tombstoned_rows_is_found(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: it catches a base that keeps deleted keys."""
    monkeypatch.setattr("dstl_dagster.keyed.bases._as_changes", _with_the_dead)
    with pytest.raises(AssertionError):
        same_state_without_older(keyed)


def _with_the_dead(state: keyed_state.KeyedState, run: FoldedRun) -> EncodedChanges:
    return encode_changes(state.schema, run.rows.select(state.schema.columns.names), run.key_groups)


def test_the_same_state_gives_the_same_base(keyed: KeyedJob) -> None:
    """Two bases of one checkpoint hold the same changes, byte for byte, in the same places."""
    last = keyed.changes(ROWS, [{"tail": "gone"}])
    logs = []
    for _ in range(2):
        attempt = keyed.coordinator.trigger()
        base = write_base(keyed.store, attempt, keyed.state(last))
        made = keyed.complete(attempt, base)
        logs.append(changes_of(keyed, made))
        assert (base.upserts, base.deletes) == (0, 0)
    assert logs[0] == logs[1]


def test_a_base_of_nothing_keeps_the_schema(keyed: KeyedJob) -> None:
    """If every row was deleted, the columns are still known, and the next change finds them."""
    keyed.changes([row("a", 1)])
    keyed.changes([], [{"tail": "a"}])
    empty = forced(keyed)
    assert keyed.rows(empty) == []
    assert keyed.state(empty).schema == keyed.SCHEMA
    assert keyed.rows(keyed.changes([row("b", 1)])) == [row("b", 1)]


def test_a_base_has_the_evolved_schema(keyed: KeyedJob) -> None:
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


def test_base_and_changes_are_one_report(keyed: KeyedJob) -> None:
    """A checkpoint's own changes follow the base, and only they count as changes."""
    last = keyed.changes(ROWS)
    attempt = keyed.coordinator.trigger()
    base = write_base(keyed.store, attempt, keyed.state(last))
    changes = keyed.report(attempt, [row("N01", 100)], [{"tail": "N02"}])
    made = keyed.complete(attempt, with_base(base, changes))
    report = OperatorReport.from_json(entry(made).report.to_json())
    assert report.base_handles == base.handles
    assert report.change_handles == changes.handles
    assert made.manifest.changes == 2
    assert keyed.state(made).row({"tail": "N01"}) == row("N01", 100)
    assert keyed.state(made).row({"tail": "N02"}) is None
    assert len(keyed.rows(made)) == 29


def test_a_joined_report_has_the_columns_of_both(keyed: KeyedJob) -> None:
    """Changes with fewer columns than the base before them do not hide the other columns."""
    noted = StateSchema.of(
        pa.schema({"tail": pa.string(), "flights": pa.int64(), "note": pa.string()}), ["tail"], 16
    )
    last = keyed.changes([{"tail": "a", "note": "x"}], schema=noted)
    attempt = keyed.coordinator.trigger()
    base = write_base(keyed.store, attempt, keyed.state(last))
    made = keyed.complete(attempt, with_base(base, keyed.report(attempt, [row("b", 1)])))
    assert [each["note"] for each in keyed.rows(made)] == ["x", None]


def test_changes_below_the_base_are_found(keyed: KeyedJob) -> None:
    """The check above can fail: with the handles in reverse order, the base's older rows win."""
    last = keyed.changes(ROWS)
    attempt = keyed.coordinator.trigger()
    base = write_base(keyed.store, attempt, keyed.state(last))
    joined = with_base(base, keyed.report(attempt, [row("N01", 100)]))
    made = keyed.complete(
        attempt, OperatorReport(**{**vars(joined), "handles": tuple(reversed(joined.handles))})
    )
    assert keyed.state(made).row({"tail": "N01"}) != row("N01", 100)


def test_what_is_not_base_and_changes_is_not_joined(keyed: KeyedJob) -> None:
    """Another operator's changes, two bases, or no base at all are refused."""
    last = keyed.changes(ROWS)
    attempt = keyed.coordinator.trigger()
    base = write_base(keyed.store, attempt, keyed.state(last))
    changes = keyed.report(attempt, [row("a", 1)])
    other = keyed.report(attempt, [row("a", 1)], operator="other")
    for pair in ((base, other), (base, base), (changes, changes), (with_base(base, changes), changes)):
        with pytest.raises(InvalidInputError):
            with_base(*pair)


def test_reports_without_a_base_keep_their_bytes() -> None:
    """The field is absent if false, absent means false, and anything but a flag is refused."""
    plain = OperatorReport("op", ()).to_json()
    assert "base" not in plain
    assert OperatorReport.from_json(plain).base is False
    with pytest.raises(FormatError, match="base"):
        OperatorReport.from_json({**plain, "base": "yes"})
    with pytest.raises(FormatError, match="does not reach its last key group"):
        _ = OperatorReport("op", (), base=True).base_handles


def test_sizes_are_of_base_and_log(keyed: KeyedJob) -> None:
    """Counted from manifests alone: files are not opened; a base resets the log."""
    one = keyed.changes(ROWS)
    two = keyed.changes([row("a", 1)])
    # Nothing is older than the first changes: they are as good as a base.
    assert base_and_log(keyed.store, two.manifest, "aircraft") == BaseAndLog(
        entry(one).report.stored_bytes, entry(two).report.stored_bytes, 1
    )
    base = forced(keyed)
    assert base_and_log(keyed.store, base.manifest, "aircraft") == BaseAndLog(
        entry(base).report.stored_bytes, 0, 0
    )
    after = keyed.changes([row("a", 2)])
    assert base_and_log(keyed.store, after.manifest, "aircraft") == BaseAndLog(
        entry(base).report.stored_bytes, entry(after).report.stored_bytes, 1
    )
    assert base_and_log(keyed.store, after.manifest, "nobody") == BaseAndLog()


def test_what_is_older_than_the_base_goes(keyed_on: type[KeyedJob], counting_store: CountingStore) -> None:
    """With one checkpoint retained, clean-up deletes the old log; a restore reads base and log since."""
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
    left = {name for name in keyed.names() if "/changelog/" in name or "/manifests/" in name}
    assert not old_files & left
    assert len([name for name in left if "/manifests/" in name]) == 3
    store.read.clear()
    assert keyed.rows(last) == sorted([row("a", 11), *(row(f"N{d}", d) for d in range(6))], key=repr)
    assert set(store.read) == left - {last.entry.completed.manifest}


def test_the_old_log_stays_while_a_checkpoint_needs_it(keyed_on: type[KeyedJob]) -> None:
    """A base removes nothing that older kept checkpoints need."""
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
        away.setattr("dstl_dagster.keyed.shared_files.SharedFiles.write_range", unavailable)
        with pytest.raises(UnavailableError):
            materialize(keyed.coordinator, force=True)
    assert [record.kind for record in keyed.coordinator.timeline.records()][-2:] == ["opened", "aborted"]
    assert keyed.rows(keyed.changes([row("a", 1)])) == sorted([*keyed.rows(last), row("a", 1)], key=repr)


def test_a_log_of_own_bytes_is_left_alone(job: Job) -> None:
    """A log without a schema is not keyed state and cannot be folded, so it is never due."""
    coordinator = job.coordinator(materialize_max_checkpoints=1)
    attempt = coordinator.trigger()
    coordinator.record(attempt, {"totals": job.changes(attempt).handles})
    manifest = coordinator.confirm(attempt).manifest
    assert due_operators(job.store, manifest, coordinator.options, force=True) == []
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


def test_a_batch_folds_what_is_due(keyed_on: type[KeyedJob]) -> None:
    """At the threshold the batch's report has a base before its changes, even if it has no changes itself."""
    keyed = keyed_on(MemoryObjectStore(), materialize_max_checkpoints=2)
    bases = []
    for day in range(6):
        batch(keyed, row("a", day), row(f"N{day}", day))
        latest = keyed.coordinator.latest()
        assert latest is not None
        bases.append(entry(latest).report.base)
        assert len(keyed.rows()) == day + 2
        assert keyed.state().row({"tail": "a"}) == row("a", day)
    assert bases == [False, False, False, True, False, True]
    batch(keyed, row("a", 5))
    batch(keyed)
    latest = keyed.coordinator.latest()
    assert latest is not None
    assert entry(latest).report.base
    assert latest.manifest.changes == 0
    assert len(keyed.rows()) == 7


def test_a_batch_folds_nothing_if_disabled(keyed_on: type[KeyedJob]) -> None:
    """The switch overrides the thresholds."""
    keyed = keyed_on(MemoryObjectStore(), materialize_max_checkpoints=1, materialize=False)
    for day in range(3):
        batch(keyed, row("a", day))
    latest = keyed.coordinator.latest()
    assert latest is not None
    assert not entry(latest).report.base


def test_a_batch_whose_base_fails_is_aborted(
    keyed_on: type[KeyedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error leaves the block, and the attempt is aborted as by any other error in it."""
    keyed = keyed_on(MemoryObjectStore(), materialize_max_checkpoints=1)
    batch(keyed, row("a", 1))
    batch(keyed, row("a", 2))

    def unavailable(*_: object, **__: object) -> None:
        raise UnavailableError("the store is away")

    monkeypatch.setattr("dstl_dagster.keyed.shared_files.SharedFiles.write_range", unavailable)
    with pytest.raises(UnavailableError), CheckpointBatch(keyed.coordinator):
        pass
    assert [record.kind for record in keyed.coordinator.timeline.records()][-2:] == ["opened", "aborted"]


def test_sizes_are_known_without_older_manifests(keyed: KeyedJob) -> None:
    """A manifest says what its state costs to read: the same that a walk over all older ones finds, as for
    manifests of the first release, which do not say it.
    """
    keyed.changes([{"tail": "N1", "flights": 1}])
    materialize(keyed.coordinator, force=True)
    keyed.changes([{"tail": "N2", "flights": 1}])
    attempt = keyed.coordinator.trigger()
    keyed.complete(attempt)
    latest = keyed.coordinator.latest()
    assert latest is not None
    entry = latest.manifest.operators["aircraft"]
    assert entry.sizes is not None
    assert entry.sizes.checkpoints == 1
    assert "sizes" not in dataclasses.replace(entry, sizes=None).to_json()
    silent = dataclasses.replace(
        latest.manifest, operators={"aircraft": dataclasses.replace(entry, sizes=None)}
    )
    assert base_and_log(keyed.store, silent, "aircraft") == entry.sizes
