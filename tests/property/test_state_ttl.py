"""Any history of a state with a TTL, against a model of dictionaries that drops for good what has expired."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dstl_dagster.checkpoint import Batch, Checkpoint, CheckpointCoordinator, materialize
from dstl_dagster.format import KeyGroupRange, StateTtl
from dstl_dagster.keyed import (
    KeyedState,
    RunMerge,
    StateScan,
    diff_checkpoints,
    key_history,
    with_merge,
    write_rows,
)
from dstl_dagster.keyed.merge.policy import DueMerge
from dstl_dagster.keyed.read import diff as diff_module
from dstl_dagster.settings import StateTtlConfig
from dstl_dagster.state import StateSchema, filled_column
from dstl_dagster.state import replay as replay_module
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.profiles import examples

MAX_PARALLELISM = 4
EVERYTHING = KeyGroupRange.of(0, MAX_PARALLELISM - 1)
GIVEN = pa.schema(
    {"name": pa.string(), "value": pa.int32(), "seen": pa.timestamp("us", "UTC"), "day": pa.date32()}
)
FILLED = GIVEN.append(pa.field("written", pa.timestamp("us", "UTC")))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS = list("abcdef")
DAYS = range(20)

Row = dict[str, Any]
Setting = tuple[str, int, int | None] | None
"""The column, the days, and the day of the watermark; ("", 0, None) ends a TTL, `None` leaves it."""

slices = st.tuples(st.integers(0, MAX_PARALLELISM - 1), st.integers(0, MAX_PARALLELISM - 1)).map(
    lambda bounds: KeyGroupRange.of(min(bounds), max(bounds))
)


@dataclass(frozen=True)
class Step:
    """One checkpoint, or several.

    Attributes:
        changes: the day of each key's row (None: it has none), or `gone`.
        ttl: what the batch asks for.
        later: days by which the clock has moved on.
        below: what is merged below the changes: all runs of some key groups, all but the oldest, or nothing.
        alone: a merge of all, and nothing else, follows.
        back: so many checkpoints are taken back first.
        idle: the batch does not write the operator.
    """

    changes: dict[str, int | str | None]
    ttl: Setting
    later: int
    below: tuple[str, KeyGroupRange]
    alone: bool
    back: int
    idle: bool
    partitions: int


steps = st.builds(
    Step,
    st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), st.just("gone"), st.sampled_from(DAYS))),
    st.one_of(
        st.none(),
        st.none(),
        st.tuples(
            st.sampled_from(["seen", "seen", "day", "written"]),
            st.integers(1, 8),
            st.one_of(st.none(), st.none(), st.sampled_from(DAYS)),
        ),
        st.just(("", 0, None)),
    ),
    st.integers(0, 4),
    st.one_of(
        st.just(("nothing", EVERYTHING)),
        st.tuples(st.sampled_from(["all", "newer", "newer"]), st.one_of(st.just(EVERYTHING), slices)),
    ),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([0, 0, 0, 0, 1, 2]),
    st.sampled_from([False, False, False, True]),
    st.integers(1, MAX_PARALLELISM),
)
histories = st.lists(steps, min_size=2, max_size=7)


@dataclass(frozen=True)
class Model:
    """The rows that there are, and the clock by which they end."""

    rows: dict[str, Row] = field(default_factory=dict)
    column: str = ""
    days: int = 0
    now: datetime | None = None

    def after(self, rows: dict[str, Row | None], setting: Setting, clock: datetime) -> Model:
        """After a checkpoint at this time."""
        model, watermark = self, None
        if setting is not None:
            column, days, day = setting
            model = replace(self, column=column, days=days, now=self.now if column == self.column else None)
            watermark = None if day is None or column == "written" else EPOCH + timedelta(day)
        times = (
            [moment(row, model.column) for row in rows.values() if row is not None] if model.column else []
        )
        if model.column == "written":
            times = [clock]
        elif watermark is not None:
            times = [watermark]
        known = [time for time in [*times, model.now] if time is not None]
        model = replace(model, now=max(known, default=None))
        kept = {**self.rows, **rows}
        return replace(model, rows={key: row for key, row in kept.items() if row and not model.is_over(row)})

    def is_over(self, row: Row) -> bool:
        time = moment(row, self.column) if self.column else None
        return time is not None and self.now is not None and time + timedelta(self.days) <= self.now


def moment(row: Row, column: str) -> datetime | None:
    value = row.get(column)
    if value is None or isinstance(value, datetime):
        return value
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


class World:
    """The job, its clock, and the model at each checkpoint."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryObjectStore(clock=self.clock)
        self.coordinator = CheckpointCoordinator("job", self.store, owner="test", clock=self.clock)
        self.said: list[tuple[Checkpoint, Model]] = []
        self.number = 0

    def run(self, step: Step) -> None:
        if 0 < step.back < len(self.said):
            del self.said[-step.back :]
            self.coordinator.restore(self.said[-1][0].checkpoint_id)
        self.clock.sleep_seconds(step.later * 86_400.0)
        batch = Batch.open(self.coordinator, clock=self.clock)
        model = self.said[-1][1] if self.said else Model()
        if step.idle and batch.parent is not None:
            model = model.after({}, None, self.clock.now())
        else:
            model = self._write(batch, step, model)
        self.said.append((batch.complete(), model))
        if step.alone and (made := materialize(self.coordinator, force=True)) is not None:
            self.said.append((made, model))

    def _write(self, batch: Batch, step: Step, model: Model) -> Model:
        rows: dict[str, Row | None] = {}
        for key, day in step.changes.items():
            self.number += 1
            seen = None if day is None or day == "gone" else EPOCH + timedelta(int(day), hours=5)
            rows[key] = None if day == "gone" else {"name": key, "value": self.number, "seen": seen}
            if rows[key] is not None:
                rows[key]["day"] = None if seen is None else seen.date()  # type: ignore[index]
        config = config_of(step.ttl)
        before = batch.schema("op")
        filled = filled_column(config, batch.ttl("op"), before)
        schema = StateSchema.of(GIVEN if filled is None else FILLED, ["name"], MAX_PARALLELISM)
        schema = schema if before is None else before.evolved_to(schema)
        table = pa.Table.from_pylist([row or {"name": key} for key, row in rows.items()], GIVEN)
        ttl = batch.ttl_to_write("op", schema, config)
        report = write_rows(
            table,
            batch.attempt,
            self.store,
            operator="op",
            schema=schema,
            deleted=pa.array([row is None for row in rows.values()], pa.bool_()),
            partitions=step.partitions,
            ttl=ttl,
        )
        if config is not None and config.watermark is not None and ttl is not None:
            report = replace(report, ttl=ttl)
        batch.add(report)
        batch.merge_due_runs()
        (report,) = batch._operators
        if not report.merges:
            batch._operators = [self._below(batch, step, report)]
        for row in rows.values():
            if row is not None:
                row["written"] = self.clock.now() if filled else None
        return model.after(rows, step.ttl, self.clock.now())

    def _below(self, batch: Batch, step: Step, report: Any) -> Any:
        """The report with what is merged below it."""
        what, key_groups = step.below
        entry = None if batch.parent is None else batch.parent.manifest.operators.get("op")
        if entry is None or batch.parent is None or what == "nothing":
            return report
        runs = entry.runs
        newer = what == "newer" and len(runs) > 2
        due = DueMerge(key_groups, runs[1].first if newer else 0)
        shared = batch.shared_files
        return shared.durable_now(with_merge(report, batch.parent.manifest, due, shared))

    def disagreement(self) -> str | None:
        for checkpoint, model in self.said:
            wrong = self._wrong_state(checkpoint, model)
            if wrong is not None:
                return f"checkpoint {checkpoint.checkpoint_id}: {wrong}"
        for older, newer in zip(self.said, self.said[1:] + self.said[:1], strict=True):
            wrong = self._wrong_diff(older, newer)
            if wrong is not None:
                return f"{older[0].checkpoint_id} to {newer[0].checkpoint_id}: {wrong}"
        return None

    def _wrong_state(self, checkpoint: Checkpoint, model: Model) -> str | None:
        state = KeyedState.of(self.store, checkpoint.manifest, "op")
        if state is None:
            return "no state" if model.rows else None
        tables = list(state.tables())
        ways = {
            "tables": [row for table in tables for row in table.to_pylist()],
            "rows": state.rows([{"name": key} for key in KEYS]).to_pylist(),
            "scan": StateScan.of(self.store, checkpoint.manifest, "op").to_arrow().to_pylist(),
            "parts": [
                row
                for group in EVERYTHING
                for table in state.at.within(KeyGroupRange.of(group, group)).opened(self.store).tables()
                for row in table.to_pylist()
            ],
        }
        for way, found in ways.items():
            rows = {row["name"]: {"written": None, **row} for row in found}
            if len(rows) != len(found) or rows != model.rows:
                return f"{way} are {rows}, not {model.rows} by {model}"
        known = checkpoint.manifest.rows
        if known is None or known.most is None or not known.least <= len(model.rows) <= known.most:
            return f"there are {len(model.rows)} rows, not {known}"
        for key in KEYS:
            past = key_history(self.store, checkpoint.manifest, "op", {"name": key})
            there = bool(past) and past[-1].row is not None
            if there != (key in model.rows):
                return f"the history of {key} is {past}, but {key in model.rows}"
        return None

    def _wrong_diff(self, older: tuple[Checkpoint, Model], newer: tuple[Checkpoint, Model]) -> str | None:
        manifests = older[0].manifest, newer[0].manifest
        if all(KeyedState.of(self.store, manifest, "op") is None for manifest in manifests):
            return None
        turned = {key: row["value"] for key, row in older[1].rows.items()}
        for each in diff_checkpoints(self.store, *manifests, "op"):
            for row in each.removed.to_pylist():
                if turned.pop(row["name"], None) != row["value"]:
                    return f"{row} was not removed so"
            for row in [*each.after.to_pylist(), *each.added.to_pylist()]:
                turned[row["name"]] = row["value"]
        wanted = {key: row["value"] for key, row in newer[1].rows.items()}
        return None if turned == wanted else f"the difference leads to {turned}, not {wanted}"


def config_of(setting: Setting) -> StateTtlConfig | None:
    if setting is None:
        return None
    column, days, day = setting
    if not column:
        return StateTtlConfig.disabled()
    if column == "written":
        return StateTtlConfig.processing_time(column, timedelta(days))
    watermark = None if day is None else EPOCH + timedelta(day)
    return StateTtlConfig.event_time(column, timedelta(days), watermark=watermark)


def disagreement(history: list[Step]) -> str | None:
    world = World()
    for each in history:
        world.run(each)
    return world.disagreement()


@examples(8, suppress_health_check=list(HealthCheck))
@given(history=histories)
def test_what_has_expired_is_gone_for_every_reader_and_for_good(history: list[Step]) -> None:
    """State, keys, parts, history and difference match the model at every checkpoint, whatever was folded."""
    assert disagreement(history) is None


def none_expire(rows: Any, schema: StateSchema, ttl: StateTtl | None) -> None:
    """The mistake: expired rows are there until they are cleaned up, and nothing cleans up."""


merged_changes = RunMerge._changes


def the_expired_left_out(self: RunMerge, *of: Any) -> Any:
    """The mistake: a merge drops a row that expired, and with it what hides the row below it."""
    return merged_changes(replace(self, whole=True), *of)


def any_may_follow(self: StateTtl, before: StateTtl | None) -> bool:
    """The mistake: what a longer TTL would show again comes back, if it was not merged yet."""
    return True


compared_runs = diff_module.compared_runs


def by_handles_alone(older: Any, newer: Any) -> Any:
    """The mistake: a difference looks only where changes were written."""
    same = replace(newer, at=replace(newer.at, ttl=older.at.ttl))
    return compared_runs(older, same)


def at_the_end(self: StateTtl) -> int | None:
    """The mistake: a row lives a microsecond longer than its TTL."""
    return None if self.ttl_us is None or self.now_us is None else self.now_us - self.ttl_us - 1


def step(
    changes: dict[str, int | str | None],
    ttl: Setting = None,
    below: str = "nothing",
) -> Step:
    return Step(changes, ttl, 0, (below, EVERYTHING), alone=False, back=0, idle=False, partitions=1)


FIRST = step({"a": 0}, ("seen", 2, None))
A_ROW_BELOW = [
    step({"a": 10}, ("seen", 2, None)),
    step({"a": 1}),
    step({"b": 10}),
    step({"c": 10}, below="newer"),
]


@pytest.mark.parametrize(
    ("module", "name", "mistake", "history"),
    [
        (replay_module, "expired_rows", none_expire, [FIRST, step({"b": 10})]),
        (RunMerge, "_changes", the_expired_left_out, A_ROW_BELOW),
        (
            StateTtl,
            "hides_what",
            any_may_follow,
            [FIRST, step({"b": 10}), step({"c": 10}, ("seen", 30, None))],
        ),
        (StateTtl, "hides_what", any_may_follow, [FIRST, step({"b": 10}), step({"c": 10}, ("", 0, None))]),
        (StateTtl, "horizon_us", property(at_the_end), [FIRST, step({"b": 2})]),
        (diff_module, "compared_runs", by_handles_alone, [FIRST, step({}, ("seen", 2, 10))]),
    ],
)
def test_the_model_finds_a_mistake(module: Any, name: str, mistake: Any, history: list[Step]) -> None:
    """The model agrees with a history, and no longer once a mistake is put in."""
    assert disagreement(history) is None
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(module, name, mistake)
        assert disagreement(history) is not None
