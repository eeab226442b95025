"""A job with two operators that lives through random steps, beside dictionaries that say what it must hold.

Owns the steps, the model, and what is compared with it. Does not own how often it is played
(`test_state_model`). Sizes are tiny, so that some tens of checkpoints have all that a large state has:
classes of runs, lists, idle operators, files that several key groups share.
"""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dstl_dagster.checkpoint import (
    Batch,
    Checkpoint,
    CheckpointCoordinator,
    Opening,
    change_columns,
    materialize,
)
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.format.changelog_file import encoding
from dstl_dagster.jobs import clone_job, drop_job, swap_job, write_frame
from dstl_dagster.keyed import (
    KeyedState,
    MergedRange,
    RunMerge,
    StateScan,
    diff_checkpoints,
    key_history,
    write_rows,
)
from dstl_dagster.keyed.documents import entries
from dstl_dagster.keyed.merge import merge
from dstl_dagster.keyed.read import keyed_state
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.spark.dataframes.run_merges import MergeRunsTask, from_outcome
from dstl_dagster.state import ColumnChanges, ExactValues, PartitionRows, StateSchema, changes
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock

STEPS = 30
KEY_GROUPS = 7
OPERATORS = ("busy", "rare")
KEYS = [None, "", *(f"name {number}" for number in range(78))]
NARROW = pa.schema({"part": pa.string(), "name": pa.string(), "value": pa.int64()})
NOTED = NARROW.append(pa.field("note", pa.string()))

MOST_MORE_RUNS = 6
"""Of a key group, above `max_runs`: that came while others were merged, and those of other classes."""

MOST_BYTES = 3
"""Merged for a byte of changes."""

Key = str | None
Rows = dict[Key, tuple[int, str | None]]
"""Value and note by key."""


def part_of(key: Key) -> str | None:
    """The partition of a key: its last digit."""
    return key and key[-1]


def columns_of(key: Key, operator: str) -> dict[str, Any]:
    """The key columns. The state of one of the operators has partitions."""
    return {"part": part_of(key), "name": key} if operator == "rare" else {"name": key}


class Wrong(AssertionError):  # noqa: N818 - what it says
    """The job does not hold what the model says."""


@dataclass
class Said:
    """The model at one checkpoint: the rows of each operator, and which of them has a note."""

    rows: dict[str, Rows] = field(default_factory=dict)
    noted: frozenset[str] = frozenset()

    def copy(self) -> Said:
        return Said({name: dict(rows) for name, rows in self.rows.items()}, self.noted)


class World:
    """One life. `choose` decides everything."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.store = MemoryObjectStore()
        self.job = "job"
        self.options = CheckpointOptions(
            num_retained=choose.choice([1, 1, 2, 5]),
            reader_grace=timedelta(0),
            snapshot_interval=choose.choice([8, 1000]),
            materialize_max_runs=choose.choice([2, 3, 5]),
            materialize_log_ratio=choose.choice([0.5, 1.0, 3.0, 30.0]),
        )
        self.coordinator = self.process()
        self.said: dict[int, Said] = {}
        self.savepoints: set[str] = set()
        self.own_bytes: Counter[str] = Counter()
        self.merged_bytes: Counter[str] = Counter()
        self.number = 0
        self.clones = 0

    def process(self, owner: str = "test") -> CheckpointCoordinator:
        return CheckpointCoordinator(self.job, self.store, self.options, owner=owner)

    def live(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (10, lambda: self.write("busy")),
            (3, lambda: self.write("rare")),
            (2, lambda: self.write(*OPERATORS)),
            (1, self.files_only),
            (1, self.merge_all),
            (1, self.drop_note),
            (1, self.aborted),
            (1, self.taken_over),
            (2, self.restore),
            (1, self.savepoint),
            (1, self.release),
            (3, self.clean_up),
            (1, self.clone),
            (1, self.swap),
        ]
        weights, acts = zip(*steps, strict=True)
        for _ in range(STEPS):
            if self.choose.random() < 0.3:
                self.coordinator = self.process()  # another one, which has read nothing yet
            self.choose.choices(acts, weights)[0]()
            if self.choose.random() < 0.4:
                self.check_last()
        self.clean_up()
        for each in self.process().list():
            self.check(each)
        self.check_differences()

    # -- steps

    def write(self, *operators: str, take_over: bool = False, complete: bool = True) -> None:
        batch = Batch.open(self.coordinator, Opening(take_over=take_over))
        said = self.parent(batch)
        for operator in operators:
            self._write(batch, operator, said)
        tasks = Tasks()
        if self.number % 2:
            batch.merge_executor = tasks
        batch.merge_due_runs()
        if complete:
            self.done(batch.complete(), said)
        else:
            batch.abort("by choice")
        tasks.end_late()

    def _write(self, batch: Batch, operator: str, said: Said) -> None:
        choose = self.choose
        keys = choose.sample(KEYS, choose.choice([0, 1, 1, 1, 2, 5, 12]))
        replaced = None
        if choose.random() < 0.2:
            keys = [KEYS[4]]  # a hot one
        if choose.random() < (0.05 if said.rows.get(operator) else 0.5):
            keys = KEYS
        noted = operator in said.noted or choose.random() < 0.2
        before = batch.schema(operator)
        key_columns = list(columns_of("", operator))
        schema = StateSchema.of(NOTED if noted else NARROW, key_columns, KEY_GROUPS, key_columns[:-1])
        schema = schema if before is None else before.evolved_to(schema)
        rows = []
        held = said.rows.setdefault(operator, {})
        if before is not None and operator == "rare" and choose.random() < 0.3:
            replaced = part_of(choose.choice(KEYS)) or ""
            keys = [key for key in keys if part_of(key) == replaced]
            for key in [key for key in held if part_of(key) == replaced]:
                del held[key]
        for key in keys:
            self.number += 1
            gone = choose.random() < 0.3
            note = choose.randbytes(choose.choice([0, 1, 100])).hex() if noted else None
            rows.append((key, self.number, note, gone))
            held.pop(key, None)
            if not gone:
                held[key] = (self.number, note)
        if noted:
            said.noted |= {operator}
        columns = [[each[place] for each in rows] for place in range(4)]
        arrays = [pa.array(map(part_of, columns[0]), pa.string()), pa.array(columns[0], pa.string())]
        arrays += [pa.array(columns[1], pa.int64()), pa.array(columns[2], pa.string())]
        table = pa.table(arrays, schema=NOTED).select((NOTED if noted else NARROW).names)
        deleted = pa.array(columns[3], pa.bool_())
        partitions = choose.randint(1, KEY_GROUPS)
        if replaced is not None:
            scope = PartitionRows({"part": ExactValues((replaced,))}, frozenset([(0,)]), "the part")
            table = table.filter(pc.invert(deleted))
            batch.add(write_frame(table, batch, operator=operator, keys=key_columns, replace=scope))
            return
        batch.add(
            write_rows(
                table,
                batch.attempt,
                self.store,
                operator=operator,
                schema=schema,
                deleted=deleted,
                partitions=partitions,
            )
        )

    def parent(self, batch: Batch) -> Said:
        return Said() if batch.parent is None else self.said[batch.parent.checkpoint_id].copy()

    def done(self, checkpoint: Checkpoint, said: Said, *, forced: bool = False) -> None:
        self.said[checkpoint.checkpoint_id] = said
        for name, entry in checkpoint.manifest.operators.items():
            self.own_bytes[name] += entry.report.stored_bytes
            self.merged_bytes[name] += 0 if forced else entry.merged_bytes

    def files_only(self) -> None:
        batch = Batch.open(self.coordinator)
        self.done(batch.complete(), self.parent(batch))

    def merge_all(self) -> None:
        latest = self.coordinator.latest()
        if latest is None or not latest.manifest.operators:
            return
        names = self.choose.sample(sorted(latest.manifest.operators), 1)
        made = materialize(self.coordinator, names, force=True)
        if made is not None:
            self.done(made, self.said[latest.checkpoint_id].copy(), forced=True)

    def drop_note(self) -> None:
        latest = self.coordinator.latest()
        said = None if latest is None else self.said[latest.checkpoint_id].copy()
        if latest is None or said is None or not said.noted:
            return
        operator = min(said.noted)
        said.noted -= {operator}
        said.rows[operator] = {key: (value, None) for key, (value, _) in said.rows[operator].items()}
        self.done(change_columns(self.coordinator, latest, operator, ColumnChanges.of(["note"])), said)

    def aborted(self) -> None:
        self.write("busy", complete=False)

    def taken_over(self) -> None:
        rival = self.process("rival").trigger()
        self.coordinator = self.process()
        self.write("busy", take_over=rival.attempt)

    def restore(self) -> None:
        listed = self.coordinator.list()
        if listed:
            self.coordinator.restore(self.choose.choice(listed).checkpoint_id)

    def savepoint(self) -> None:
        listed = self.coordinator.list()
        if listed:
            name = f"s{len(self.savepoints)}"
            self.coordinator.savepoint(self.choose.choice(listed).checkpoint_id, name)
            self.savepoints.add(name)

    def release(self) -> None:
        if self.savepoints:
            self.coordinator.release(self.choose.choice(sorted(self.savepoints)))

    def clean_up(self) -> None:
        self.coordinator.clean_up()
        needed: set[str] = set()
        view = self.process().timeline.tail()
        for each in view.kept:
            manifest = self.process().get(each.checkpoint_id).manifest
            needed.update(manifest.needs())
        there = {stat.name for stat in self.store.list(f"dstl/{self.job}/attempts/")}
        if there != needed:
            raise Wrong(f"left {sorted(there - needed)}, lost {sorted(needed - there)}")

    def clone(self) -> None:
        """Live on as a clone of any checkpoint; the job that it came from may go."""
        listed = self.coordinator.list()
        if not listed:
            return
        chosen, came_from = self.choose.choice(listed).checkpoint_id, self.job
        self.clones += 1
        self.job = f"clone{self.clones}"
        made = clone_job(self.store, came_from, self.job, self.options, at=chosen, owner="test")
        self.said = {made.checkpoint_id: self.said[chosen]}
        self.savepoints.clear()
        self.coordinator = self.process()
        if self.choose.random() < 0.5:
            drop_job(self.store, came_from, owner="test", clock=VirtualClock())

    def swap(self) -> None:
        """Put the state of a clone, which went on by itself, in the place of the job's."""
        latest = self.coordinator.latest()
        if latest is None:
            return
        live, said = self.job, dict(self.said)
        self.clones += 1
        self.job = f"beside{self.clones}"
        clone_job(self.store, live, self.job, self.options, owner="test")
        self.coordinator = self.process()
        for _ in range(self.choose.randint(0, 3)):
            self.write(*self.choose.choice([("busy",), ("rare",), OPERATORS]))
        state = self.said[self.coordinator.at().checkpoint_id]
        made = swap_job(self.store, live, self.job, self.options, owner="test")
        drop_job(self.store, self.job, owner="test", clock=VirtualClock())
        self.job, self.said = live, {**said, made.checkpoint_id: state}
        self.coordinator = self.process()

    # -- what must hold

    def check_last(self) -> None:
        latest = self.process().latest()
        if latest is None:
            return
        self.check(latest)
        for name, entry in latest.manifest.operators.items():
            runs = Counter(
                group for run in entry.runs for handle in run.handles for group in handle.key_group_range
            )
            most = self.options.materialize_max_runs + MOST_MORE_RUNS
            if max(runs.values(), default=0) > most:
                raise Wrong(f"{name} has {runs} runs by key group, above {most}")
            if self.merged_bytes[name] > MOST_BYTES * self.own_bytes[name]:
                raise Wrong(f"{name} merged {self.merged_bytes[name]} bytes for {self.own_bytes[name]}")

    def check(self, checkpoint: Checkpoint) -> None:
        said = self.said[checkpoint.checkpoint_id]
        for operator in OPERATORS:
            state = KeyedState.of(self.store, checkpoint.manifest, operator)
            rows = said.rows.get(operator, {})
            if state is None:
                if operator in said.rows:
                    raise Wrong(f"no state of {operator}")
                continue
            half = self.choose.randrange(KEY_GROUPS)
            parts = [KeyGroupRange.of(0, half), KeyGroupRange.of(half + 1, KEY_GROUPS - 1)]
            part = part_of(self.choose.choice(KEYS))
            filters = [("part", "=", part)]
            ways: dict[str, list[dict[str, Any]]] = {
                "all": [row for table in state.tables() for row in table.to_pylist()],
                "by key": state.rows([columns_of(key, operator) for key in KEYS]).to_pylist(),
                "by range": [
                    row
                    for part in parts
                    if part.number_of_key_groups
                    for table in state.at.within(part).opened(self.store).tables()
                    for row in table.to_pylist()
                ],
            }
            scan = StateScan.of(self.store, checkpoint.manifest, operator, filters=filters)
            ways["by part"] = scan.to_arrow().to_pylist()
            for way, read in ways.items():
                found = {row["name"]: (row["value"], row.get("note")) for row in read}
                wanted = {key: row for key, row in rows.items() if way != "by part" or part_of(key) == part}
                if len(found) != len(read) or found != wanted:
                    raise Wrong(f"{operator} at {checkpoint.checkpoint_id}, {way}: {found}, not {wanted}")
            known = checkpoint.manifest.operators[operator].rows
            if known is None or known.most is None or not known.least <= len(rows) <= known.most:
                raise Wrong(f"{operator} at {checkpoint.checkpoint_id} has {len(rows)} rows, not {known}")
            key = self.choose.choice(KEYS)
            past = key_history(self.store, checkpoint.manifest, operator, columns_of(key, operator))
            last = past[-1].row if past else None
            if (None if last is None else last["value"]) != rows.get(key, (None,))[0]:
                raise Wrong(f"the history of {key!r} of {operator} is {past}, not {rows.get(key)}")

    def check_differences(self) -> None:
        listed = self.process().list()
        for older, newer in zip(listed, listed[1:] + listed[:1], strict=True):
            for operator in OPERATORS:
                if operator in older.manifest.operators or operator in newer.manifest.operators:
                    self.check_difference(older, newer, operator)

    def check_difference(self, older: Checkpoint, newer: Checkpoint, operator: str) -> None:
        turned = {
            key: value for key, (value, _) in self.said[older.checkpoint_id].rows.get(operator, {}).items()
        }
        rows = self.said[newer.checkpoint_id].rows.get(operator, {})
        for each in diff_checkpoints(self.store, older.manifest, newer.manifest, operator):
            for row in each.removed.to_pylist():
                if turned.pop(row["name"]) != row["value"]:
                    raise Wrong(f"{row} was not removed so")
            for row in each.after.to_pylist():
                turned[row["name"]] = row["value"]
            for row in each.added.to_pylist():
                if row["name"] in turned:
                    raise Wrong(f"{row} was there before")
                turned[row["name"]] = row["value"]
        if turned != {key: value for key, (value, _) in rows.items()}:
            raise Wrong(f"the difference leads to {turned}, not {rows}")


class Tasks:
    """Merges ranges as Spark's tasks do, each with a copy that ends after its attempt has."""

    def __init__(self) -> None:
        self._copies: list[Callable[[], object]] = []

    def __call__(self, merge: RunMerge, ranges: Sequence[KeyGroupRange]) -> list[MergedRange]:
        task = MergeRunsTask(merge, tuple(ranges))
        indices = pa.record_batch([pa.array(range(len(ranges)))], ["id"])
        copy = pickle.loads(pickle.dumps(task))
        self._copies.append(lambda: list(copy(iter([indices]))))
        return [from_outcome(json.loads(each.column(0)[0].as_py())) for each in task(iter([indices]))]

    def end_late(self) -> None:
        """What they write now is in no report."""
        for copy in self._copies:
            copy()


def live(seed: int) -> str | None:
    """What went wrong in the life of this seed; `None` if nothing."""
    choose = random.Random(seed)
    with pytest.MonkeyPatch.context() as tiny:
        tiny.setattr(merge, "SMALL_RUN_BYTES", choose.choice([1, 1500, 4000]))
        tiny.setattr(entries, "_LEAST_INLINE", choose.choice([0, 1, 3]))
        tiny.setattr(entries, "_IDLE_BYTES", choose.choice([0, 2000]))
        tiny.setattr(entries, "_SMALL_ENTRY_BYTES", choose.choice([0, 512]))
        tiny.setattr(entries, "_MOST_LISTS", choose.choice([1, 2, 16]))
        tiny.setattr(keyed_state, "_SPLIT_BYTES", choose.choice([200, 1000, 1 << 20]))
        if seed % 3 == 0:  # a slice of a few rows has as many bytes beside them
            tiny.setattr(changes, "_SLICE_BYTES", 120)
            tiny.setattr(encoding, "FRAME_BYTES", 200)
            tiny.setattr(f"{__name__}.MOST_BYTES", 4 * MOST_BYTES)
        try:
            World(choose).live()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None
