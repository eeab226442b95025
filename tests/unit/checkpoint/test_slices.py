"""A large state is folded in slices: each key group is its newest base and the changes since."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dstl_dagster.checkpoint import Checkpoint, OperatorReport, load_report, materialize, record
from dstl_dagster.checkpoint.references import References, roots_of
from dstl_dagster.checkpoint.verify import verify_checkpoint
from dstl_dagster.errors import FormatError, InvalidInputError
from dstl_dagster.format import JobNames, KeyGroupRange
from dstl_dagster.format.envelope import decode_document
from dstl_dagster.keyed import (
    AttemptReport,
    BaseAndLog,
    Manifest,
    OperatorEntry,
    RecentManifests,
    Uncovered,
    base_and_log,
    compared_runs,
    due_key_groups,
    operator_layers,
    store_report,
    with_base,
    write_base,
)
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.storage import MemoryObjectStore

if TYPE_CHECKING:
    from tests.unit.conftest import CountingStore, KeyedJob

KIB = 1 << 10
LAST = 15
ROWS = [{"tail": f"N{number:02}", "flights": number} for number in range(60)]
OPTIONS = CheckpointOptions(materialize_slice_bytes=KIB, materialize_min_log_bytes=0)


def groups(first: int, last: int) -> KeyGroupRange:
    return KeyGroupRange.of(first, last)


def entry(checkpoint: Checkpoint) -> Any:
    return checkpoint.manifest.operators["aircraft"]


def sliced(keyed: KeyedJob, first: int, last: int, *changes: Any) -> Checkpoint:
    """One checkpoint with a slice of a base, and these changes after it."""
    latest = keyed.coordinator.latest()
    attempt = keyed.coordinator.trigger()
    base = write_base(keyed.store, attempt, keyed.state(latest), key_groups=groups(first, last))
    own = keyed.report(attempt, *changes) if changes else None
    return keyed.complete(attempt, with_base(base, own))


def files_of(checkpoint: Checkpoint) -> set[str]:
    return {stream.name for handle in entry(checkpoint).report.handles for stream in handle.streams}


# -- which key groups are due


def test_slices_take_turns_until_the_whole_is_due() -> None:
    """A round of 8 slices is over when the log has grown to the base; then the next one begins."""
    sizes = BaseAndLog(base_bytes=8 * KIB)
    folded = []
    for _ in range(64):
        due = due_key_groups(sizes, 256, 128, OPTIONS)
        if due.number_of_key_groups:
            folded.append(due)
            sizes = dataclasses.replace(
                sizes,
                in_slices=True,
                folded_key_groups=due.end_key_group + 1,
                folded_bytes=sizes.folded_bytes + KIB,
            )
            if due.end_key_group == 127:
                sizes = BaseAndLog(sizes.folded_bytes, in_slices=True)
        sizes = dataclasses.replace(sizes, log_bytes=sizes.log_bytes + 256, checkpoints=sizes.checkpoints + 1)
    starts = [each.start_key_group for each in folded]
    assert all(each.number_of_key_groups == 16 for each in folded)
    # 64 checkpoints wrote twice the base's bytes of changes, and at most so much of the base was rewritten.
    assert starts == [0, 16, 32, 48, 64, 80, 96, 112, 0, 16, 32, 48, 64, 80, 96]


@pytest.mark.parametrize(
    ("sizes", "own_bytes", "due"),
    [
        (BaseAndLog(8 * KIB, KIB - 1, 1), 0, KeyGroupRange.EMPTY),
        (BaseAndLog(8 * KIB, KIB, 1), 0, groups(0, 15)),
        (BaseAndLog(8 * KIB, KIB, 0), 0, KeyGroupRange.EMPTY),
        # Far behind, at most a slice; but who changes half of the state folds half of it.
        (BaseAndLog(8 * KIB, 80 * KIB, 9), 0, groups(0, 15)),
        (BaseAndLog(8 * KIB, 80 * KIB, 9), 4 * KIB, groups(0, 63)),
        (BaseAndLog(8 * KIB, 80 * KIB, 9), 80 * KIB, groups(0, 127)),
        # By the number of checkpoints alone.
        (BaseAndLog(8 * KIB, 1, 25), 0, groups(0, 15)),
        (BaseAndLog(8 * KIB, 1, 24), 0, KeyGroupRange.EMPTY),
        # The last slice of a round is what is left.
        (BaseAndLog(8 * KIB, 8 * KIB, 9, 120, 7, in_slices=True), 0, groups(120, 127)),
        # Small, or without any base: all at once, when all is due.
        (BaseAndLog(2 * KIB - 1, 2 * KIB - 2, 9), 0, KeyGroupRange.EMPTY),
        (BaseAndLog(2 * KIB - 1, 2 * KIB - 1, 9), 0, groups(0, 127)),
        (BaseAndLog(0, 80 * KIB, 1), 0, groups(0, 127)),
        # However large: 128 slices.
        (BaseAndLog(10**12, 10**12, 9), 0, groups(0, 0)),
    ],
)
def test_which_slice_is_due(sizes: BaseAndLog, own_bytes: int, due: KeyGroupRange) -> None:
    """Those whose turn it is, by bytes or checkpoints; about as much as the checkpoint itself writes."""
    assert due_key_groups(sizes, own_bytes, 128, OPTIONS) == due


def test_few_key_groups_make_few_slices() -> None:
    """A slice has a key group or more."""
    assert due_key_groups(BaseAndLog(10**9, 10**9, 9), 0, 2, OPTIONS) == groups(0, 0)
    assert due_key_groups(BaseAndLog(10**9, 10**9, 9), 0, 1, OPTIONS) == groups(0, 0)


# -- the sizes


def test_sizes_follow_the_round(keyed: KeyedJob) -> None:
    """How far the round is, what its slices have written, and from its end on the log anew."""
    one = keyed.changes(ROWS)
    base_bytes = entry(one).report.stored_bytes
    keyed.changes([ROWS[0]])
    half = sliced(keyed, 0, 7)
    sizes = entry(half).sizes
    assert (sizes.base_bytes, sizes.checkpoints, sizes.folded_key_groups) == (base_bytes, 1, 8)
    assert sizes.folded_bytes == entry(half).report.stored_bytes
    whole = sliced(keyed, 8, LAST, [ROWS[1]])
    written = sum(handle.streams.__next__().stored_bytes or 0 for handle in entry(whole).report.base_handles)
    assert entry(whole).sizes == BaseAndLog(
        sizes.folded_bytes + written,
        entry(whole).report.stored_bytes - written,
        1,
        in_slices=True,
    )
    out_of_turn = entry(sliced(keyed, 4, 5)).sizes
    assert out_of_turn == entry(whole).sizes
    made = materialize(keyed.coordinator, force=True)
    assert made is not None
    assert entry(made).sizes == BaseAndLog(entry(made).report.stored_bytes)


def test_force_folds_what_slices_left(keyed: KeyedJob) -> None:
    """Also right after a round, when no changes came since; but bases alone are left alone."""
    keyed.changes(ROWS)
    keyed.changes([ROWS[0]])
    sliced(keyed, 0, 7)
    sliced(keyed, 8, LAST)
    assert materialize(keyed.coordinator, force=True) is None
    keyed.changes([ROWS[1]])
    sliced(keyed, 0, 7)
    assert materialize(keyed.coordinator, force=True) is not None


# -- documents


def version_of(keyed: KeyedJob, name: str) -> int:
    return int(keyed.store.get(name).split(b" ", 2)[1])


def test_an_old_release_refuses_slices(keyed: KeyedJob) -> None:
    """A report and a manifest with a slice have a version that earlier releases do not read; those without
    keep theirs, and their bytes.
    """
    plain = keyed.changes(ROWS)
    made = sliced(keyed, 0, 7)
    after = keyed.changes([ROWS[0]])
    whole = materialize(keyed.coordinator, force=True)
    assert whole is not None
    versions = [version_of(keyed, each.entry.completed.manifest) for each in (plain, made, after, whole)]
    assert versions == [1, 3, 3, 1]
    with pytest.raises(FormatError, match="version 3") as refused:
        decode_document("manifest", 2, keyed.store.get(made.entry.completed.manifest), "it")
    assert refused.value.kind == "newer_version"
    attempt = keyed.coordinator.trigger()
    base = write_base(keyed.store, attempt, keyed.state(), key_groups=groups(0, 7))
    store_report(keyed.store, attempt, AttemptReport((base,)))
    assert version_of(keyed, attempt.names.report(attempt.attempt)) == 3
    assert set(entry(plain).sizes.to_json()) == {"base_bytes", "log_bytes", "checkpoints"}
    assert "base_range" not in entry(plain).report.to_json()


def test_a_report_of_a_slice_survives_json(keyed: KeyedJob) -> None:
    """With its range, and what belongs to the base and what to the changes."""
    keyed.changes(ROWS)
    report = entry(sliced(keyed, 4, 11, [ROWS[0]])).report
    again = OperatorReport.from_json(report.to_json())
    assert again == report
    assert (again.based, again.base, len(again.base_handles)) == (groups(4, 11), False, 1)
    assert again.change_handles == report.handles[1:]


@pytest.mark.parametrize("wrong", [{"base": True}, {"base_range": [0, 16]}, {"base_range": [0, -1]}])
def test_a_slice_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    """Beside a whole base, beyond the last key group, or of nothing."""
    fields = {**OperatorReport("op", (), max_parallelism=16).to_json(), "base_range": [0, 7], **wrong}
    with pytest.raises(FormatError):
        OperatorReport.from_json(fields)
    with pytest.raises(InvalidInputError, match="slice"):
        OperatorReport("op", (), max_parallelism=16, base_range=groups(0, 16))


# -- reading


def test_batches_fold_slice_after_slice(keyed_on: type[KeyedJob]) -> None:
    """No checkpoint folds all; the state is right at each, and only what was folded leaves the log."""
    keyed = keyed_on(
        MemoryObjectStore(), materialize_slice_bytes=600, materialize_max_checkpoints=12, num_retained=50
    )
    wanted = {row["tail"]: row["flights"] for row in ROWS}
    keyed.changes(ROWS)
    made = []
    for day in range(40):
        with CheckpointBatch(keyed.coordinator) as opened:
            opened.add(
                keyed.report(
                    opened.attempt, [{"tail": f"N{day:02}", "flights": 100 + day}], [{"tail": f"N{day + 10}"}]
                )
            )
        report = load_report(keyed.store, opened.attempt)
        made.append(keyed.complete(opened.attempt, *report.operators))
        wanted[f"N{day:02}"] = 100 + day
        wanted.pop(f"N{day + 10}", None)
        assert {row["tail"]: row["flights"] for row in keyed.rows()} == wanted
    based = [entry(each).report.based for each in made]
    folded = [each for each in based if each.number_of_key_groups]
    assert len(folded) > 8
    assert all(each.number_of_key_groups < 16 for each in folded)
    assert all(verify_checkpoint(keyed.store, each.manifest).ok for each in made[-3:])
    held = [layer.checkpoint_id for layer in operator_layers(made[-1].manifest, "aircraft", lambda _: None)]
    assert len(held) <= 24


def test_a_small_state_is_folded_early(keyed_on: type[KeyedJob], counting_store: CountingStore) -> None:
    """A job that rewrites a few rows each day: the log stays a small multiple of the state, and a reader
    fetches a dozen manifests at most.
    """
    keyed = keyed_on(counting_store, num_retained=100)
    for day in range(60):
        with CheckpointBatch(keyed.coordinator) as opened:
            opened.add(keyed.report(opened.attempt, [{**row, "flights": day} for row in ROWS]))
        made = keyed.complete(opened.attempt, *load_report(keyed.store, opened.attempt).operators)
        sizes = entry(made).sizes
        assert sizes.log_bytes <= 16 * sizes.base_bytes  # ten checkpoints that rewrite all, in two files each
        counting_store.read.clear()
        assert len(keyed.rows(made)) == len(ROWS)
        assert len({name for name in counting_store.read if "/manifests/" in name}) <= 11
    folded = [each.checkpoint_id for each in keyed.coordinator.list() if entry(each).report.base]
    assert folded == [12, 22, 32, 42, 52]


@pytest.mark.parametrize("remembers", [True, False])
def test_folds_of_one_process_fetch_no_manifest_twice(
    remembers: bool,
    keyed_on: type[KeyedJob],
    counting_store: CountingStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the coordinator wrote itself it never fetches, as a stream's does batch after batch."""
    monkeypatch.setattr(record, "MAX_CARRIED_BYTES", 0)  # a chain that names each manifest
    if not remembers:  # as in a process for each batch
        monkeypatch.setattr(RecentManifests, "keep", lambda *_: None)
    keyed = keyed_on(counting_store, num_retained=2)
    folds = 0
    for day in range(60):
        with CheckpointBatch(keyed.coordinator) as opened:
            opened.add(keyed.report(opened.attempt, [{**row, "flights": day} for row in ROWS]))
            counting_store.read.clear()
        fetched = [name for name in counting_store.read if "/manifests/" in name]
        made = keyed.complete(opened.attempt, *load_report(keyed.store, opened.attempt).operators)
        folded = bool(entry(made).report.base)
        assert bool(fetched) == (folded and not remembers)
        folds += folded
    assert folds == 5


def test_few_manifests_of_many_operators_stay_in_memory() -> None:
    """Within a batch 32, of any size; between batches only as many as have 4,000 operators together."""
    entry = OperatorEntry(OperatorReport("o", ()), None)
    sizes = [3000, 500, 100, 2000, 1900]
    recent = RecentManifests()
    for number, size in enumerate(sizes):
        operators = {f"o{each}": entry for each in range(size)}
        recent.keep(f"m{number}", Manifest("job", number, uuid.UUID(int=number), None, operators))
    assert all(recent.find(f"m{number}") for number in range(5))
    recent.shrink()
    assert [number for number in range(5) if recent.find(f"m{number}")] == [2, 3, 4]
    for number in range(5, 40):
        recent.keep(f"m{number}", Manifest("job", number, uuid.UUID(int=number), None))
    assert [number for number in range(40) if recent.find(f"m{number}")] == list(range(8, 40))


def test_a_fold_reads_only_its_slice(keyed_on: type[KeyedJob], counting_store: CountingStore) -> None:
    """Of bases, the files of these key groups; of the log, what its handles share with them."""
    keyed = keyed_on(counting_store)
    keyed.changes(ROWS)
    first = sliced(keyed, 0, 7)
    second = sliced(keyed, 8, LAST)
    change = keyed.changes([ROWS[0], ROWS[1], ROWS[2]])
    counting_store.read.clear()
    sliced(keyed, 0, 7)
    read = {name for name in counting_store.read if "/changelog/" in name}
    assert read & files_of(first)
    assert not read & files_of(second)
    assert read <= files_of(first) | files_of(change)


def test_unchanged_key_groups_are_not_compared(keyed: KeyedJob) -> None:
    """A slice in between leaves the other key groups' files as they were: they are not read for a diff."""
    keyed.changes(ROWS)
    before = keyed.state()
    sliced(keyed, 0, 3)
    assert compared_runs(before, keyed.state()) == [groups(0, 3)]


# -- clean-up


def test_clean_up_deletes_what_slices_replaced(keyed_on: type[KeyedJob]) -> None:
    """Once all key groups have newer bases, the old base goes; until then it stays."""
    keyed = keyed_on(MemoryObjectStore(), num_retained=1, reader_grace=timedelta(0))
    one = keyed.changes(ROWS)
    rows = keyed.rows()
    sliced(keyed, 0, 7)
    keyed.coordinator.clean_up()
    assert keyed.rows() == rows
    assert files_of(one) & set(keyed.names())
    sliced(keyed, 8, LAST)
    keyed.coordinator.clean_up()
    assert keyed.rows() == rows
    assert not files_of(one) & set(keyed.names())


def two_roots(keyed: KeyedJob) -> list[Any]:
    """Two checkpoints whose parents are gone, which need the same manifest for different key groups."""
    keyed.changes(ROWS)
    low = sliced(keyed, 0, 7)
    keyed.coordinator.savepoint(low.checkpoint_id, "low")
    keyed.coordinator.restore(1)
    keyed.coordinator.clean_up()
    high = sliced(keyed, 8, LAST)
    keyed.coordinator.savepoint(high.checkpoint_id, "high")
    return [low.entry, high.entry]


def both_sides(keyed: KeyedJob) -> tuple[set[str], set[str]]:
    """What clean-up keeps for the two roots together, and what each of them needs."""
    low, high = two_roots(keyed)
    needed = [low, high]
    together = References(keyed.store, JobNames("orders")).older(needed)
    assert len(roots_of(needed)) == 2
    alone = [
        set(References(keyed.store, JobNames("orders")).needed_by(each.completed.manifest)) for each in needed
    ]
    return set(together), alone[0] | alone[1]


def test_two_roots_need_one_manifest_for_different_key_groups(keyed: KeyedJob) -> None:
    """The first one to be walked does not hide what the second one needs."""
    together, alone = both_sides(keyed)
    assert together == alone


def test_a_walk_that_forgets_key_groups_is_found(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: if a manifest counts as walked whoever walked it, files are missed."""
    monkeypatch.setattr(Uncovered, "__sub__", lambda mine, other: Uncovered(0) if other else mine)
    together, alone = both_sides(keyed)
    assert together != alone


def test_a_large_slice_is_written_in_ranges(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fits in memory; together they are the slice."""
    keyed.changes(ROWS)
    monkeypatch.setattr("dstl_dagster.keyed.keyed_state._SPLIT_BYTES", 200)
    made = sliced(keyed, 4, 11)
    ranges = [handle.key_group_range for handle in entry(made).report.base_handles]
    assert len(ranges) > 1
    assert [group for each in ranges for group in each] == list(range(4, 12))
    assert keyed.rows(made) == keyed.rows(keyed.coordinator.get(1))
    assert base_and_log(keyed.store, made.manifest, "aircraft") == entry(made).sizes
