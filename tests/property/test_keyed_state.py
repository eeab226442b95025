"""Any history of upserts, deletes and folds, against a model of dictionaries that shares no code with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator, materialize
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import (
    KeyedState,
    Uncovered,
    compacted,
    diff_checkpoints,
    key_history,
    keyed_state,
    with_base,
    write_base,
    write_rows,
)
from dstl_dagster.keyed import bases as bases_module
from dstl_dagster.keyed import diff as diff_module
from dstl_dagster.state import StateSchema, encode_changes, key_group_of
from dstl_dagster.storage import MemoryObjectStore
from tests.profiles import examples

MAX_PARALLELISM = 7
NARROW = StateSchema.of(pa.schema({"name": pa.string(), "value": pa.int32()}), ["name"], MAX_PARALLELISM)
WIDE = StateSchema.of(pa.schema({"name": pa.string(), "value": pa.int64()}), ["name"], MAX_PARALLELISM)
KEYS = [None, "", *"abcdefgh"]

Row = dict[str, Any]
changes_of_keys = st.dictionaries(
    st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 2)), max_size=len(KEYS)
)


@dataclass(frozen=True)
class Step:
    """One checkpoint: values by key (None: deleted), and what is folded below them.

    `base`: the key groups of which the checkpoint has a base below its changes, all or a slice; `None`: of
    none, but perhaps a compaction of the key groups `compacted`. `alone`: a base and nothing else follows.
    """

    changes: dict[str | None, int | None]
    wide: bool
    partitions: int
    base: KeyGroupRange | None
    alone: bool
    split_bytes: int
    compacted: KeyGroupRange


EVERYTHING = KeyGroupRange.of(0, MAX_PARALLELISM - 1)
slices = st.tuples(st.integers(0, MAX_PARALLELISM - 1), st.integers(0, MAX_PARALLELISM - 1)).map(
    lambda bounds: KeyGroupRange.of(min(bounds), max(bounds))
)

steps = st.builds(
    Step,
    changes_of_keys,
    st.booleans(),
    st.integers(1, MAX_PARALLELISM),
    st.one_of(st.none(), st.just(EVERYTHING), slices, slices),
    st.booleans(),
    st.sampled_from([200, 1000, 1 << 20]),
    st.one_of(st.just(KeyGroupRange.EMPTY), slices),
)
histories = st.lists(steps, min_size=1, max_size=6)


@dataclass
class Said:
    """The model of one checkpoint: its rows, and each key's history."""

    checkpoint: Checkpoint
    rows: dict[str | None, int]
    past: dict[str | None, list[tuple[int, str, int | None]]]


class World:
    """The job, and the model's dictionaries."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore()
        self.coordinator = CheckpointCoordinator("job", self.store, owner="test")
        self.said: list[Said] = []
        self.rows: dict[str | None, int] = {}
        self.past: dict[str | None, list[tuple[int, str, int | None]]] = {}
        self.first: int | None = None

    def run(self, step: Step) -> None:
        attempt = self.coordinator.trigger()
        n = attempt.checkpoint_id
        rows = pa.table(
            {
                "name": pa.array(list(step.changes), pa.string()),
                "value": pa.array(list(step.changes.values()), pa.int32()),
            }
        )
        deleted = pa.array([value is None for value in step.changes.values()], pa.bool_())
        report = write_rows(
            self.store,
            attempt,
            "op",
            WIDE if step.wide else NARROW,
            rows,
            deleted=deleted,
            partitions=step.partitions,
        )
        latest = self.coordinator.latest()
        before = None if latest is None else KeyedState.of(self.store, latest.manifest, "op")
        if step.base is not None and before is not None:
            report = with_base(write_base(self.store, attempt, before, key_groups=step.base), report)
            self._fold(n, step.base)
        elif latest is not None and step.base is None and step.compacted.number_of_key_groups:
            made = compacted(self.store, attempt, latest.manifest, "op", step.compacted)
            if made is not None:
                report = with_base(made, report)
                self._compact(n, step.compacted)
        self.first = self.first or (n if step.changes else None)
        for key, value in step.changes.items():
            self.past.setdefault(key, []).append((n, "delete" if value is None else "upsert", value))
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        self.coordinator.record(attempt, [report])
        self._remember(self.coordinator.confirm(attempt))
        if step.alone and (made := materialize(self.coordinator, force=True)) is not None:
            self._fold(made.checkpoint_id)
            self._remember(made)

    def _fold(self, checkpoint_id: int, key_groups: KeyGroupRange = EVERYTHING) -> None:
        others = {key: past for key, past in self.past.items() if not key_groups.contains(group_of(key))}
        folded = {
            key: [(checkpoint_id, "from before", value)]
            for key, value in self.rows.items()
            if key not in others
        }
        self.past = {**others, **folded}

    def _compact(self, checkpoint_id: int, key_groups: KeyGroupRange) -> None:
        for key, past in self.past.items():
            settled = [
                at for at, (n, change, _) in enumerate(past) if change == "from before" or n == self.first
            ]
            kept = max(settled, default=-1) + 1
            if key_groups.contains(group_of(key)) and past[kept:]:
                past[kept:] = [(checkpoint_id, "from before", past[-1][2])]

    def _remember(self, checkpoint: Checkpoint) -> None:
        past = {key: list(changes) for key, changes in self.past.items()}
        self.said.append(Said(checkpoint, dict(self.rows), past))

    def disagreement(self) -> str | None:
        for said in self.said:
            wrong = self._wrong_state(said) or self._wrong_rows(said) or self._wrong_history(said)
            if wrong is not None:
                return f"checkpoint {said.checkpoint.checkpoint_id}: {wrong}"
        for older, newer in zip(self.said, self.said[1:] + self.said[:1], strict=True):
            wrong = self._wrong_diff(older, newer)
            if wrong is not None:
                return f"{older.checkpoint.checkpoint_id} to {newer.checkpoint.checkpoint_id}: {wrong}"
        return None

    def _wrong_state(self, said: Said) -> str | None:
        state = KeyedState.of(self.store, said.checkpoint.manifest, "op")
        if state is None:
            return "no state" if said.rows else None
        found = [(row["name"], row["value"]) for table in state.tables() for row in table.to_pylist()]
        if len(found) != len(set(found)) or dict(found) != said.rows:
            return f"state is {found}, not {said.rows}"
        one = {key: state.row({"name": key}) for key in KEYS}
        wanted = {key: {"name": key, "value": said.rows[key]} if key in said.rows else None for key in KEYS}
        return None if one == wanted else f"rows one by one are {one}"

    def _wrong_rows(self, said: Said) -> str | None:
        known = said.checkpoint.manifest.rows
        if known is None or known.most is None:
            return "nothing is known of the rows"
        if not known.least <= len(said.rows) <= known.most:
            return f"there are {len(said.rows)} rows, not {known}"
        report = said.checkpoint.manifest.operators["op"].report
        if report.base and not report.change_handles and known.exact is None:
            return f"a base leaves {known}"
        return None

    def _wrong_history(self, said: Said) -> str | None:
        for key in KEYS:
            found = [
                (each.checkpoint_id, each.change, None if each.row is None else each.row["value"])
                for each in key_history(self.store, said.checkpoint.manifest, "op", {"name": key})
            ]
            if found != said.past.get(key, []):
                return f"history of {key!r} is {found}, not {said.past.get(key, [])}"
        return None

    def _wrong_diff(self, older: Said, newer: Said) -> str | None:
        manifests = older.checkpoint.manifest, newer.checkpoint.manifest
        if all(KeyedState.of(self.store, manifest, "op") is None for manifest in manifests):
            return None
        turned = dict(older.rows)
        for each in diff_checkpoints(self.store, *manifests, "op"):
            for row in each.removed.to_pylist():
                if turned.pop(row["name"]) != row["value"]:
                    return f"{row} was not removed so"
            for was, row in zip(each.before.to_pylist(), each.after.to_pylist(), strict=True):
                if turned[row["name"]] != was["value"] or was == row:
                    return f"{was} did not become {row}"
                turned[row["name"]] = row["value"]
            for row in each.added.to_pylist():
                if row["name"] in turned:
                    return f"{row} was there before"
                turned[row["name"]] = row["value"]
        return None if turned == newer.rows else f"the difference leads to {turned}, not {newer.rows}"


def group_of(key: str | None) -> int:
    return int(key_group_of(pa.table({"name": pa.array([key], pa.string())}), WIDE)[0])


def disagreement(history: list[Step]) -> str | None:
    world = World()
    for step in history:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(keyed_state, "_SPLIT_BYTES", step.split_bytes)
            world.run(step)
    return world.disagreement()


@examples(25, suppress_health_check=list(HealthCheck))
@given(history=histories)
def test_state_difference_and_history_are_those_of_dictionaries(history: list[Step]) -> None:
    """State, difference and history match the model at every checkpoint, whatever was folded when."""
    assert disagreement(history) is None


def the_dead_kept(state: KeyedState, run: Any) -> Any:
    """The mistake: a base that contains deleted keys."""
    return encode_changes(state.schema, run.rows.select(state.schema.columns.names), run.key_groups)


def the_oldest_handle(state: KeyedState, segment: Any) -> Any:
    """The mistake: key groups are skipped if only their oldest handle is the same."""
    return [each for each in state.handles if each.key_group_range.contains(segment.start_key_group)][:1]


def the_base_above(base: Any, changes: Any) -> Any:
    """The mistake: the base comes after the changes."""
    joined = bases_module.with_base(base, changes)
    return type(joined)(**{**vars(joined), "handles": changes.handles + base.handles})


def nothing_covers(self: Any, based: Any, max_parallelism: int) -> Any:
    """The mistake: what is older than a slice of a base is read as well."""
    return type(self)(0) if based.number_of_key_groups == max_parallelism else self


def a_slice_covers_all(self: Any, based: Any, max_parallelism: int) -> Any:
    """The mistake: of the other key groups nothing older is read."""
    return type(self)(0) if based.number_of_key_groups else self


@pytest.mark.parametrize(
    ("module", "name", "mistake"),
    [
        (Uncovered, "before", nothing_covers),
        (Uncovered, "before", a_slice_covers_all),
        (bases_module, "_as_changes", the_dead_kept),
        (diff_module, "_handles", the_oldest_handle),
        (None, "with_base", the_base_above),
    ],
)
def test_the_property_finds_a_mistake(module: Any, name: str, mistake: Any) -> None:
    """The property can fail: it finds a history that exposes the mistake."""
    with pytest.MonkeyPatch.context() as broken:
        if module is None:
            broken.setitem(globals(), name, mistake)
        else:
            broken.setattr(module, name, mistake)
        try:
            find(
                histories,
                lambda history: disagreement(history) is not None,
                settings=settings(
                    max_examples=100,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
        except NoSuchExample:
            pytest.fail("the mistake passed")
