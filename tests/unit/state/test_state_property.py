"""Any history of upserts, deletes and schema changes against a dictionary, which shares no code with it."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from dstl_dagster.format import KeyGroupRange
from dstl_dagster.state import ChangeEncoder, EncodedChanges, StateReplay, StateSchema
from dstl_dagster.state.keys import last_occurrences, occurring
from tests.profiles import examples

MAX_PARALLELISM = 7

names = st.one_of(st.none(), st.sampled_from(["", "a", "b", "\x00", "ab"]))
numbers = st.one_of(st.none(), st.integers(-3, 3))
keys = st.tuples(names, numbers)
VALUE_TYPES = {"int": pa.int32(), "long": pa.int64()}


@dataclass
class Checkpoint:
    """One generated checkpoint: the new value of each changed key (None: deleted), and the schema's width."""

    changes: dict[tuple[Any, Any], dict[str, Any] | None]
    value_kind: str
    with_note: bool
    chunk_bytes: int
    batch_rows: int


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    kind = draw(st.sampled_from(["int", "long"]))
    with_note = draw(st.booleans())
    limit = 2**31 - 1 if kind == "int" else 2**40
    value = st.fixed_dictionaries(
        {"value": st.one_of(st.none(), st.integers(-limit, limit))}
        | ({"note": st.one_of(st.none(), st.text(max_size=3))} if with_note else {})
    )
    changes = draw(st.dictionaries(keys, st.one_of(st.none(), value), max_size=12))
    return Checkpoint(changes, kind, with_note, draw(st.sampled_from([1, 2**20])), draw(st.integers(1, 5)))


def key_group_of(key: tuple[Any, Any]) -> int:
    return zlib.crc32(repr(key).encode()) % MAX_PARALLELISM


def schema_of(checkpoint: Checkpoint) -> StateSchema:
    columns = [("name", pa.string()), ("value", VALUE_TYPES[checkpoint.value_kind]), ("number", pa.int8())]
    if checkpoint.with_note:
        columns.append(("note", pa.string()))
    return StateSchema.of(pa.schema(columns), ["name", "number"], MAX_PARALLELISM)


def log_of(checkpoint: Checkpoint) -> list[pa.RecordBatch]:
    """The log that a writer leaves: the schema, then the chunks."""
    schema = schema_of(checkpoint)
    encoder = ChangeEncoder(schema, chunk_bytes=checkpoint.chunk_bytes)
    items = list(checkpoint.changes.items())
    chunks: list[EncodedChanges | None] = []
    for start in range(0, len(items), checkpoint.batch_rows):
        part = items[start : start + checkpoint.batch_rows]
        rows = [{"name": key[0], "number": key[1]} | (change or {"value": 7}) for key, change in part]
        batch = pa.RecordBatch.from_pylist(rows, schema=schema.columns)
        deleted = pa.array([change is None for _, change in part])
        chunks.append(encoder.add(batch, pa.array([key_group_of(key) for key, _ in part]), deleted))
    chunks.append(encoder.finish())
    metadata = pa.record_batch(
        [pa.array([-1], pa.int32()), pa.array([schema.to_bytes()])], ["key_group", "change"]
    )
    full = [chunk for chunk in chunks if chunk is not None]
    return [metadata, *(pa.record_batch([c.key_groups, c.changes], ["key_group", "change"]) for c in full)]


@dataclass
class Model:
    """The state as a dictionary."""

    rows: dict[tuple[Any, Any], dict[str, Any]] = field(default_factory=dict)

    def apply(self, checkpoint: Checkpoint) -> None:
        for key, change in checkpoint.changes.items():
            if change is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = {"value": change["value"], "note": change.get("note")}

    def visible(self, *, note: bool) -> set[tuple[Any, ...]]:
        return {(*key, row["value"], *([row["note"]] if note else [])) for key, row in self.rows.items()}


def read_back(history: list[Checkpoint], cuts: list[int]) -> list[tuple[Any, ...]]:
    """The state by restore: some tasks, each with its range of key groups."""
    schema = schema_of(history[0])
    for checkpoint in history[1:]:
        schema = schema.evolved_to(schema_of(checkpoint))
    logs = [log_of(checkpoint) for checkpoint in history]
    bounds = sorted({0, *cuts, MAX_PARALLELISM})
    found = []
    for start, end in itertools.pairwise(bounds):
        replay = StateReplay(schema, [KeyGroupRange.of(start, end - 1)])
        for log in logs:
            replay.add(log)
        wanted = [name for name in ("name", "number", "value", "note") if name in schema.columns.names]
        for table in replay.tables():
            found += [tuple(row[name] for name in wanted) for row in table.to_pylist()]
    return found


histories = st.lists(checkpoints(), min_size=1, max_size=4)
cut_lists = st.lists(st.integers(1, MAX_PARALLELISM - 1), max_size=3)


def agrees(history: list[Checkpoint], cuts: list[int]) -> bool:
    model = Model()
    for checkpoint in history:
        model.apply(checkpoint)
    found = read_back(history, cuts)
    note = any(checkpoint.with_note for checkpoint in history)
    return len(found) == len(set(found)) and set(found) == model.visible(note=note)


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories, cuts=cut_lists)
def test_state_equals_a_dictionary(history: list[Checkpoint], cuts: list[int]) -> None:
    """However the log was chunked, any split into readers gives the dictionary's rows, once."""
    assert agrees(history, cuts)


def first_occurrences(rows: pa.Table, key_columns: Any) -> Any:
    """The mistake: the oldest change of a key wins."""
    reversed_rows = rows.take(pa.array(np.arange(rows.num_rows)[::-1]))
    return np.sort(rows.num_rows - 1 - last_occurrences(reversed_rows, key_columns))


def every_occurrence(rows: pa.Table, key_columns: Any) -> Any:
    """The mistake: nothing is replaced."""
    return np.arange(rows.num_rows)


def none_occurring(rows: pa.Table, others: pa.Table, key_columns: Any) -> pa.BooleanArray:
    """The mistake: what the log replaces stays."""
    return pa.array(np.zeros(rows.num_rows, np.bool_))


def first_column_occurring(rows: pa.Table, others: pa.Table, key_columns: Any) -> pa.BooleanArray:
    """The mistake: a key is as good as its first column."""
    return occurring(rows, others, key_columns[:1])


@pytest.mark.parametrize(
    ("part", "mistake"),
    [
        ("last_occurrences", first_occurrences),
        ("last_occurrences", every_occurrence),
        ("occurring", none_occurring),
        ("occurring", first_column_occurring),
    ],
)
def test_the_property_finds_a_broken_merge(part: str, mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: it finds a history that exposes a wrong merge."""
    monkeypatch.setattr(f"dstl_dagster.state.replay.{part}", mistake)
    try:
        find(
            st.tuples(histories, cut_lists),
            lambda drawn: not agrees(*drawn),
            settings=settings(
                max_examples=300,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    except NoSuchExample:
        pytest.fail("a broken merge passed")
