"""The TTL of a state: its record, and refusals."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Batch, Checkpoint, CheckpointCoordinator, change_columns
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.format import StateTtl
from dstl_dagster.jobs import write_frame
from dstl_dagster.keyed import KeyedState, OperatorReport, key_history, write_rows
from dstl_dagster.settings import StateTtlConfig
from dstl_dagster.state import PROCESSING_TIME_TYPE, ColumnChanges, StateSchema
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock

DAY = timedelta(days=1)
COLUMNS = pa.schema({"name": pa.string(), "seen": pa.timestamp("us", "UTC"), "note": pa.string()})
SCHEMA = StateSchema.of(COLUMNS, ["name"], 4)
MONTH = StateTtlConfig.event_time("seen", "30 days")


def day(number: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + number * DAY


@pytest.fixture
def coordinator() -> CheckpointCoordinator:
    return CheckpointCoordinator("job", MemoryObjectStore(), owner="test")


def reported(batch: Batch, rows: dict[str, int], config: StateTtlConfig | None) -> OperatorReport:
    table = pa.table(
        {"name": list(rows), "seen": pa.array(map(day, rows.values()), COLUMNS.field("seen").type)}
    )
    schema = batch.schema("op") or SCHEMA
    ttl = batch.ttl_to_write("op", schema, config)
    return write_rows(table, batch.attempt, batch.coordinator.store, operator="op", schema=schema, ttl=ttl)


def written(
    coordinator: CheckpointCoordinator, rows: dict[str, int], config: StateTtlConfig | None = None
) -> Checkpoint:
    """One checkpoint: the day of each key's row."""
    batch = Batch.open(coordinator)
    batch.add(reported(batch, rows, config))
    batch.merge_due_runs()
    return batch.complete()


def names(coordinator: CheckpointCoordinator, checkpoint: Checkpoint) -> list[str]:
    state = KeyedState.of(coordinator.store, checkpoint.manifest, "op")
    assert state is not None
    return sorted(row["name"] for table in state.tables() for row in table.to_pylist())


def test_each_checkpoint_shows_what_was_visible_then(coordinator: CheckpointCoordinator) -> None:
    """The TTL stays when batches no longer name it, and a restore brings back what had not expired."""
    first = written(coordinator, {"a": 0, "b": 20}, MONTH)
    second = written(coordinator, {"c": 30})
    third = written(coordinator, {"d": 50})
    assert [names(coordinator, each) for each in (first, second, third)] == [
        ["a", "b"],
        ["b", "c"],
        ["c", "d"],
    ]
    assert names(coordinator, coordinator.restore(first.checkpoint_id)) == ["a", "b"]
    assert names(coordinator, written(coordinator, {"e": 25})) == ["a", "b", "e"]


def test_a_given_watermark_stands_for_the_rows_own_times(coordinator: CheckpointCoordinator) -> None:
    """One row of the year 3000 does not end all others; and a watermark never goes back."""
    config = replace(MONTH, watermark=day(40))
    batch = Batch.open(coordinator)
    schema = SCHEMA
    ttl = batch.ttl_to_write("op", schema, config)
    assert ttl is not None
    assert ttl.at(None).horizon_us == (day(10) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )
    assert ttl.at(0) == ttl


def test_a_longer_ttl_brings_nothing_back(coordinator: CheckpointCoordinator) -> None:
    """The checkpoint in which it begins merges the whole state; old rows that come later are visible."""
    written(coordinator, {"a": 0, "b": 20}, MONTH)
    expired = written(coordinator, {"c": 40})
    longer = written(coordinator, {"d": 5}, StateTtlConfig.event_time("seen", "365 d"))
    assert names(coordinator, expired) == ["b", "c"]
    assert names(coordinator, longer) == ["b", "c", "d"]
    assert [run.whole for run in longer.manifest.operators["op"].runs] == [True, False]
    assert not written(coordinator, {"e": 41}).manifest.operators["op"].merged_bytes


def test_a_ttl_that_has_ended_is_over(coordinator: CheckpointCoordinator) -> None:
    """What had expired stays gone, nothing else goes, and later reports have none."""
    written(coordinator, {"a": 0}, MONTH)
    written(coordinator, {"b": 50})
    written(coordinator, {"c": 1}, StateTtlConfig.disabled())
    last = written(coordinator, {"d": 1})
    assert names(coordinator, last) == ["b", "c", "d"]
    report = last.manifest.operators["op"].report
    assert report.ttl is None
    with_ttl = replace(report, ttl=StateTtl("seen", 5, 7, processing_time=True))
    assert OperatorReport.from_json(with_ttl.to_json()) == with_ttl


def test_history_says_that_a_row_has_expired(coordinator: CheckpointCoordinator) -> None:
    """It tells what was written, and that it is over; nobody wrote that."""
    written(coordinator, {"a": 0}, MONTH)
    last = written(coordinator, {"b": 40})
    told = key_history(coordinator.store, last.manifest, "op", {"name": "a"})
    assert [(each.checkpoint_id, each.change) for each in told] == [(1, "upsert"), (2, "expired")]
    assert [each.change for each in key_history(coordinator.store, last.manifest, "op", {"name": "b"})] == [
        "upsert"
    ]


def test_a_renamed_column_still_ends_rows(coordinator: CheckpointCoordinator) -> None:
    """The TTL knows the column by its id; dropping it is refused while the TTL needs it."""
    written(coordinator, {"a": 0}, MONTH)
    parent = written(coordinator, {"b": 20})
    renamed = change_columns(coordinator, parent, "op", ColumnChanges.of((), {"seen": "last_seen"}))
    batch = Batch.open(coordinator)
    schema = batch.schema("op")
    assert schema is not None
    rows = pa.table({"name": ["c"], "last_seen": pa.array([day(40)], COLUMNS.field("seen").type)})
    ttl = batch.ttl_to_write("op", schema)
    batch.add(write_rows(rows, batch.attempt, coordinator.store, operator="op", schema=schema, ttl=ttl))
    assert names(coordinator, renamed) == ["a", "b"]
    assert names(coordinator, batch.complete()) == ["b", "c"]
    with pytest.raises(InvalidInputError, match="holds the times of the state's TTL") as told:
        change_columns(coordinator, coordinator.get(4), "op", ColumnChanges.of(["last_seen"], None))
    assert told.value.kind == ErrorKind.SCHEMA_CHANGE


def test_step_4_refuses_what_would_bring_rows_back(coordinator: CheckpointCoordinator) -> None:
    """A report that forgot the TTL, and one that ends it without a base."""
    written(coordinator, {"a": 0, "b": 40}, MONTH)
    for config, said in ((None, "without its state's TTL"), (StateTtlConfig.disabled(), "would come back")):
        batch = Batch.open(coordinator)
        report = reported(batch, {"c": 1}, config)
        report = replace(report, ttl=None) if config is None else report
        with pytest.raises(InvalidInputError, match=said):
            coordinator.record(batch.attempt, [report])
        batch.abort("refused")


def test_without_materialization_a_longer_ttl_still_folds(coordinator: CheckpointCoordinator) -> None:
    """`materialize` is about pace; this base is about what is true."""
    coordinator = CheckpointCoordinator(
        "job", coordinator.store, {"dstl.state.materialize.enabled": "false"}, owner="test"
    )
    written(coordinator, {"a": 0, "b": 40}, MONTH)
    assert names(coordinator, written(coordinator, {}, StateTtlConfig.disabled())) == ["b"]


def test_a_ttl_of_a_state_without_rows_ends(coordinator: CheckpointCoordinator) -> None:
    """There is nothing to fold, and the checkpoint says so."""
    written(coordinator, {}, replace(MONTH, watermark=day(40)))
    assert names(coordinator, written(coordinator, {"a": 0}, StateTtlConfig.disabled())) == ["a"]


MISTAKES: list[tuple[Any, str]] = [
    (lambda: StateTtlConfig.event_time("", "30 d"), "ttl_column"),
    (lambda: StateTtlConfig.event_time("seen", "0 s"), "more than 0"),
    (lambda: StateTtlConfig.event_time("seen", "30 moons"), "not a unit of time"),
    (lambda: StateTtlConfig.event_time("seen", "30 d", watermark="now"), "takes a datetime"),  # type: ignore[arg-type]
]


def test_options_of_a_ttl() -> None:
    """As texts, such as those of a data source."""
    assert StateTtlConfig.from_texts(None, None) is None
    assert StateTtlConfig.from_texts("Disabled", None) == StateTtlConfig.disabled()
    assert StateTtlConfig.from_texts("30 days", "seen") == MONTH
    for ttl, column in (("30 d", None), (None, "seen")):
        with pytest.raises(InvalidInputError, match="takes both"):
            StateTtlConfig.from_texts(ttl, column)


@pytest.mark.parametrize(("asked", "said"), MISTAKES)
def test_a_mistake_is_told(asked: Any, said: str) -> None:
    """In one sentence, when the value is made."""
    with pytest.raises(InvalidInputError, match=said):
        asked()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (StateTtlConfig.event_time("sen", "1 d"), "'sen' is not a column of the state: name, seen, note"),
        (StateTtlConfig.event_time("note", "1 d"), "time stamp or a date"),
        ("30 days", "takes StateTtlConfig.event_time"),
        (StateTtlConfig.processing_time("name", "1 d"), "cannot be a key"),
        (StateTtlConfig.processing_time("note", "1 d"), "cannot be of type string"),
    ],
)
def test_a_column_that_holds_no_time_is_refused(
    coordinator: CheckpointCoordinator, config: Any, said: str
) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidInputError, match=said):
        Batch.open(coordinator).ttl_to_write("op", SCHEMA, config)


def test_the_filled_column_need_not_be_in_the_rows(coordinator: CheckpointCoordinator) -> None:
    """Of a frame as of a merge: the batch that sets the TTL adds it to the state."""
    for name, config in (("a", StateTtlConfig.processing_time("at", 10 * DAY)), ("b", None)):
        batch = Batch.open(coordinator)
        batch.add(write_frame(pa.table({"name": [name]}), batch, operator="op", keys=["name"], ttl=config))
        batch.complete()
    found = coordinator.read_state("op").to_arrow()
    assert found.column_names == ["name", "at"]
    assert found.column("at").null_count == 0


def test_an_idle_state_ends_as_time_goes_on() -> None:
    """With processing time, a checkpoint that writes other operators moves this one on as well."""
    clock = VirtualClock()
    coordinator = CheckpointCoordinator("job", MemoryObjectStore(clock=clock), owner="test", clock=clock)
    columns = COLUMNS.append(pa.field("at", pa.timestamp("us", "UTC")))
    schema = StateSchema.of(columns, ["name"], 4)
    found = []
    for config in (StateTtlConfig.processing_time("at", 10 * DAY), None, None):
        batch = Batch.open(coordinator, clock=clock)
        if config is not None:
            ttl = batch.ttl_to_write("op", schema, config)
            batch.add(
                write_rows(
                    pa.table({"name": ["a"]}),
                    batch.attempt,
                    coordinator.store,
                    operator="op",
                    schema=schema,
                    ttl=ttl,
                )
            )
        found.append(names(coordinator, batch.complete()))
        clock.advance(6 * DAY.total_seconds())
    assert found == [["a"], ["a"], []]


def test_a_clock_far_ahead_of_the_stores_ends_no_rows() -> None:
    """What expires never comes back: a batch is refused, also one that leaves the operator idle."""
    bucket, clock = VirtualClock(), VirtualClock()
    schema = StateSchema.of(COLUMNS.append(pa.field("at", PROCESSING_TIME_TYPE)), ["name"], 4)
    store = MemoryObjectStore(clock=bucket)
    coordinator = CheckpointCoordinator("job", store, owner="test", clock=clock)

    def batch(*rows: str, config: StateTtlConfig | None = None) -> Checkpoint:
        opened = Batch.open(coordinator, clock=clock)
        with opened.aborted_on_error():
            if rows:
                ttl = opened.ttl_to_write("op", schema, config)
                table = pa.table({"name": [*rows]})
                opened.add(write_rows(table, opened.attempt, store, operator="op", schema=schema, ttl=ttl))
            return opened.complete()

    batch("a", config=StateTtlConfig.processing_time("at", 10 * DAY))
    clock.advance(DAY.total_seconds())
    for rows in (("b",), ()):
        with pytest.raises(InvalidInputError, match="clock is 1 day, 0:00:00 ahead of the store"):
            batch(*rows)
    bucket.advance(DAY.total_seconds() - 3_000)
    assert names(coordinator, batch("b")) == ["a", "b"]
