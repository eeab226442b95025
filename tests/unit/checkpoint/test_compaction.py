"""A long log is compacted part by part: few files make it up, and what they stand for is not read again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dstl_dagster.checkpoint import Checkpoint, OperatorReport, load_report, materialize
from dstl_dagster.checkpoint.references import References
from dstl_dagster.checkpoint.verify import verify_checkpoint
from dstl_dagster.errors import FormatError, InvalidInputError
from dstl_dagster.format import JobNames, KeyGroupRange
from dstl_dagster.format.envelope import decode_document
from dstl_dagster.keyed import (
    BaseAndLog,
    Compaction,
    Uncovered,
    compacted,
    diff_checkpoints,
    key_groups_to_compact,
    key_history,
    with_base,
    write_base,
)
from dstl_dagster.keyed.compaction import compaction_turn
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.state import encode_changes
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


def with_compaction(keyed: KeyedJob, first: int, last: int, *changes: Any) -> Checkpoint:
    """One checkpoint with a compaction of these key groups, and these changes after it."""
    latest = keyed.coordinator.latest()
    assert latest is not None
    attempt = keyed.coordinator.trigger()
    made = compacted(keyed.store, attempt, latest.manifest, "aircraft", groups(first, last))
    assert made is not None
    own = keyed.report(attempt, *changes) if changes else None
    return keyed.complete(attempt, with_base(made, own))


def sliced(keyed: KeyedJob, first: int, last: int) -> Checkpoint:
    attempt = keyed.coordinator.trigger()
    base = write_base(keyed.store, attempt, keyed.state(), key_groups=groups(first, last))
    return keyed.complete(attempt, base)


def files_of(checkpoint: Checkpoint) -> set[str]:
    return {stream.name for handle in entry(checkpoint).report.handles for stream in handle.streams}


def rows_with(*changed: dict[str, Any], without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    rows = {row["tail"]: row for row in [*ROWS, *changed]}
    return sorted((row for tail, row in rows.items() if tail not in without), key=repr)


# -- when, and what


def test_parts_take_turns() -> None:
    """Every fourth checkpoint with changes, a quarter of the key groups."""
    turns = [compaction_turn(checkpoints, 128) for checkpoints in range(21)]
    due = {at: turn for at, turn in enumerate(turns) if turn.number_of_key_groups}
    assert due == {
        4: groups(32, 63),
        8: groups(64, 95),
        12: groups(96, 127),
        16: groups(0, 31),
        20: groups(32, 63),
    }
    assert compaction_turn(4, 2) == groups(1, 1)
    assert compaction_turn(4, 1) == groups(0, 0)


@pytest.mark.parametrize(
    ("sizes", "own_bytes", "due"),
    [
        (BaseAndLog(8 * KIB, 4, 4), 1, groups(32, 63)),
        (BaseAndLog(8 * KIB, 4, 5), 1, KeyGroupRange.EMPTY),
        # A base that is folded as one slice, and a checkpoint that changed nothing.
        (BaseAndLog(2 * KIB - 1, 4, 4), 1, KeyGroupRange.EMPTY),
        (BaseAndLog(8 * KIB, 4, 4), 0, KeyGroupRange.EMPTY),
        # Too few checkpoints until the log is folded.
        (BaseAndLog(8 * KIB, 4, 4), 8 * KIB // 32, groups(32, 63)),
        (BaseAndLog(8 * KIB, 4, 4), 8 * KIB // 32 + 1, KeyGroupRange.EMPTY),
        # Folding is behind by two slices of 16 key groups: it comes first.
        (BaseAndLog(8 * KIB, 2 * KIB - 1, 4), 1, groups(32, 63)),
        (BaseAndLog(8 * KIB, 2 * KIB, 4), 1, KeyGroupRange.EMPTY),
    ],
)
def test_which_part_is_due(sizes: BaseAndLog, own_bytes: int, due: KeyGroupRange) -> None:
    """One of many small logs of a large state, and never before folding has kept pace."""
    assert key_groups_to_compact(sizes, own_bytes, 128, OPTIONS) == due


def test_a_short_round_is_not_compacted() -> None:
    """A log that is folded after a few checkpoints has few files."""
    often = CheckpointOptions(materialize_slice_bytes=KIB, materialize_max_checkpoints=31)
    assert key_groups_to_compact(BaseAndLog(8 * KIB, 4, 4), 1, 128, often) == KeyGroupRange.EMPTY


def test_one_checkpoint_is_not_compacted(keyed: KeyedJob) -> None:
    """Nor are an operator's first changes, which count as a base, or what is compacted already."""
    keyed.changes(ROWS)
    keyed.changes(ROWS[:20])
    latest = keyed.coordinator.latest()
    assert latest is not None
    attempt = keyed.coordinator.trigger()
    assert compacted(keyed.store, attempt, latest.manifest, "aircraft", groups(0, LAST)) is None
    keyed.coordinator.abort(attempt, "nothing to do")
    keyed.changes(ROWS[:20])
    made = with_compaction(keyed, 0, LAST)
    attempt = keyed.coordinator.trigger()
    assert compacted(keyed.store, attempt, made.manifest, "aircraft", groups(0, LAST)) is None


def test_large_changes_are_not_compacted(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than is held in memory at a time is in large files already."""
    keyed.changes(ROWS)
    keyed.changes(ROWS[:20])
    last = keyed.changes(ROWS[:20])
    monkeypatch.setattr("dstl_dagster.keyed.keyed_state._SPLIT_BYTES", 200)
    attempt = keyed.coordinator.trigger()
    assert compacted(keyed.store, attempt, last.manifest, "aircraft", groups(0, LAST)) is None


# -- what it means


def deleted_and_written(keyed: KeyedJob) -> list[Checkpoint]:
    """The load, two changes of the same keys, and a compaction of half of the key groups."""
    return [
        keyed.changes(ROWS),
        keyed.changes([{"tail": f"N{number:02}", "flights": 100} for number in range(20)]),
        keyed.changes(
            [{"tail": "N00", "flights": 200}], [{"tail": f"N{number:02}"} for number in range(1, 40)]
        ),
        with_compaction(keyed, 0, 7, [{"tail": "N01", "flights": 300}]),
    ]


WANTED = rows_with(
    {"tail": "N00", "flights": 200},
    {"tail": "N01", "flights": 300},
    without=tuple(f"N{number:02}" for number in range(2, 40)),
)


def test_a_compaction_changes_no_row(keyed: KeyedJob) -> None:
    """Tombstones stay: the load below is not in it. Changes of the key groups that it holds are not read."""
    load, one, two, made = deleted_and_written(keyed)
    assert keyed.rows(made) == WANTED
    assert entry(made).report.compacted_handles == entry(made).report.handles[:1]
    assert {each.key_group_range for each in entry(made).report.compacted_handles} == {groups(0, 7)}
    handles = keyed.state(made).handles
    # One part of the load for each task; of the two changes, the upper half; of this one, what it wrote.
    ranges = [each.key_group_range for each in handles]
    assert ranges[:5] == [groups(0, 7), groups(8, 15), groups(8, 15), groups(8, 15), groups(0, 7)]
    assert verify_checkpoint(keyed.store, made.manifest).ok
    assert not list(
        diff_checkpoints(keyed.store, two.manifest, with_compaction_only(keyed).manifest, "aircraft")
    )
    assert keyed.rows(load) == ROWS
    assert len(keyed.rows(one)) == 60


def with_compaction_only(keyed: KeyedJob) -> Checkpoint:
    """From the same parent as the last compaction, without changes."""
    keyed.coordinator.restore(3)
    return with_compaction(keyed, 8, LAST)


def test_a_compaction_without_tombstones_is_found(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail."""

    def the_dead_dropped(schema: Any, run: Any) -> Any:
        alive = run.alive()
        return encode_changes(schema, alive.rows.select(schema.columns.names), alive.key_groups)

    monkeypatch.setattr("dstl_dagster.keyed.compaction._as_changes", the_dead_dropped)
    made = deleted_and_written(keyed)[-1]
    assert keyed.rows(made) != WANTED


def test_slices_and_compactions_of_the_same_key_groups(keyed: KeyedJob) -> None:
    """A slice ends what is older of its key groups; a compaction after it holds what came since."""
    deleted_and_written(keyed)
    sliced(keyed, 4, 11)
    keyed.changes([{"tail": f"N{number:02}", "flights": 400} for number in range(60)])
    keyed.changes([], [{"tail": f"N{number:02}"} for number in range(30)])
    made = with_compaction(keyed, 0, LAST)
    wanted = [{"tail": f"N{number:02}", "flights": 400} for number in range(30, 60)]
    assert keyed.rows(made) == wanted
    # The load; the first compaction; the slice; the second compaction. No change is read by itself.
    last = [each.key_group_range for each in keyed.state(made).handles]
    assert last == [groups(0, 3), groups(12, 15), groups(0, 3), groups(4, 11), groups(0, 15)]
    whole = materialize(keyed.coordinator, force=True)
    assert whole is not None
    assert keyed.rows(whole) == wanted


def test_the_history_of_a_key_tells_what_a_compaction_holds(keyed: KeyedJob) -> None:
    """Of what it stands for only the outcome, also that a key was deleted."""
    made = deleted_and_written(keyed)[-1]
    past = [key_history(keyed.store, made.manifest, "aircraft", {"tail": row["tail"]}) for row in ROWS[2:40]]
    held = [found for found in past if found[-1].change == "from before"]
    assert 5 < len(held) < len(past)
    for found in held:
        in_load = [(1, "upsert"), (4, "from before")]
        assert [(each.checkpoint_id, each.change) for each in found] == in_load
        assert found[-1].row is None


def test_clean_up_deletes_what_a_compaction_replaced(keyed_on: type[KeyedJob]) -> None:
    """A change goes once compactions hold all of its key groups; the load and the compactions stay."""
    keyed = keyed_on(MemoryObjectStore(), num_retained=1, reader_grace=timedelta(0))
    load, one, two, half = deleted_and_written(keyed)
    keyed.coordinator.clean_up()
    assert (files_of(one) | files_of(two)) & set(keyed.names())
    other = with_compaction(keyed, 8, LAST)
    keyed.coordinator.clean_up()
    names = set(keyed.names())
    assert not (files_of(one) | files_of(two)) & names
    held = {stream.name for stream in entry(half).report.compacted_handles[0].streams}
    assert files_of(load) | held | files_of(other) <= names
    assert keyed.rows() == WANTED


def test_a_reader_and_clean_up_agree(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean-up keeps exactly the files that readers open; a clean-up that takes a compaction for a base does
    not, and is found.
    """
    made = deleted_and_written(keyed)[-1]
    opened = {stream.name for handle in keyed.state(made).handles for stream in handle.streams}

    def kept() -> set[str]:
        names = References(keyed.store, JobNames("orders")).needed_by(made.entry.completed.manifest)
        return {name for name in names if "/changelog/" in name}

    assert kept() == opened | files_of(made)
    monkeypatch.setattr(
        Uncovered,
        "compacted_in",
        lambda mine, ranges: mine - Uncovered.of(groups(0, 7)) if list(ranges) else mine,
    )
    assert kept() < opened


def test_what_two_walks_need() -> None:
    """Together all that one needs; of what one has walked the other needs what was passed over."""
    all_of, low = Uncovered.of(groups(0, 15)), Uncovered.of(groups(0, 7))
    passed = all_of.compacted_in([groups(0, 7)])
    assert not passed.for_changes().meets(groups(0, 7))
    assert (passed | all_of) == all_of
    assert (all_of - passed) == low
    assert not passed - all_of
    assert (passed - Uncovered.of(groups(4, 15))) == Uncovered.of(groups(0, 3)).compacted_in([groups(0, 3)])
    assert passed.before(groups(0, 3), 16) == Uncovered.of(groups(4, 15)).compacted_in([groups(4, 7)])


# -- documents


def test_an_old_release_refuses_a_compaction(keyed: KeyedJob) -> None:
    """While a manifest has one, or repeats one; a whole base ends that."""
    made = deleted_and_written(keyed)[-1]
    after = keyed.changes([ROWS[0]])
    assert entry(after).carried[0].has_compaction
    whole = materialize(keyed.coordinator, force=True)
    assert whole is not None
    names = [each.entry.completed.manifest for each in (made, after, whole)]
    assert [int(keyed.store.get(name).split(b" ", 2)[1]) for name in names] == [4, 4, 1]
    with pytest.raises(FormatError, match="version 4"):
        decode_document("manifest", 3, keyed.store.get(names[0]), "it")


def test_a_report_of_a_compaction_survives_json(keyed: KeyedJob) -> None:
    """With what belongs to it and what to the changes."""
    report = entry(deleted_and_written(keyed)[-1]).report
    again = OperatorReport.from_json(report.to_json())
    assert again == report
    assert again.compacted_handles + again.change_handles == report.handles
    assert again.change_handles


@pytest.mark.parametrize(
    "wrong", [{"base": True}, {"base_range": [0, 7]}, {"compaction": {"handles": 0, "replaced_bytes": 0}}]
)
def test_a_compaction_that_is_none_is_refused(keyed: KeyedJob, wrong: dict[str, Any]) -> None:
    """Beside a base, or of no handles."""
    report = entry(deleted_and_written(keyed)[-1]).report
    with pytest.raises(FormatError):
        OperatorReport.from_json({**report.to_json(), **wrong})
    with pytest.raises(InvalidInputError, match="compaction"):
        OperatorReport("op", (), compaction=Compaction(1, 0))


def test_a_manifest_repeats_what_is_needed(keyed: KeyedJob) -> None:
    """Changes that a compaction holds are not repeated, nor are those parts of a report."""
    deleted_and_written(keyed)
    keyed.changes(ROWS[:8])
    with_compaction(keyed, 0, LAST, [ROWS[1]])
    keyed.changes(ROWS[:8])
    made = with_compaction(keyed, 0, LAST)
    after = keyed.changes([ROWS[0]])
    assert [each.checkpoint_id for each in entry(after).carried] == [8, 6, 4]
    assert [len(each.fields["handles"]) for each in entry(after).carried] == [1, 1, 2]
    assert keyed.rows(after) == keyed.rows(made)


# -- batches


def test_batches_compact_and_fold(keyed_on: type[KeyedJob], counting_store: CountingStore) -> None:
    """A checkpoint does one of both, and reads few files; the state is right at each."""
    keyed = keyed_on(
        counting_store, materialize_slice_bytes=600, materialize_max_checkpoints=60, num_retained=200
    )
    wanted = {row["tail"]: row["flights"] for row in ROWS}
    keyed.changes(ROWS)
    kinds, most = [], 0
    for day in range(70):
        counting_store.read.clear()
        with CheckpointBatch(keyed.coordinator) as opened:
            own = [{"tail": f"N{(7 * day + 11 * each) % 80:02}", "flights": 100 + day} for each in range(4)]
            opened.add(keyed.report(opened.attempt, own[:3], own[3:]))
        most = max(most, len({name for name in counting_store.read if "/changelog/" in name}))
        made = keyed.complete(opened.attempt, *load_report(keyed.store, opened.attempt).operators)
        wanted.update({row["tail"]: row["flights"] for row in own[:3]})
        wanted.pop(own[3]["tail"], None)
        if day % 5 == 0 or day > 60:
            assert {row["tail"]: row["flights"] for row in keyed.rows()} == wanted
        report = entry(made).report
        kinds.append("compaction" if report.compaction else "base" if report.base_range else "")
    assert kinds.count("compaction") >= 12
    assert kinds.count("base") >= 8
    assert most <= 45  # instead of 120: each checkpoint writes two files
    latest = keyed.coordinator.latest()
    assert latest is not None
    assert verify_checkpoint(keyed.store, latest.manifest).ok
