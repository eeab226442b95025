"""Rows of any size are written from one process: split inside, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import write_rows, writer
from dstl_dagster.state import StateSchema, changes, hashing
from dstl_dagster.storage import LocalObjectStore

if TYPE_CHECKING:
    from tests.unit.conftest import KeyedJob

NESTED = StateSchema.of(
    pa.schema(
        {
            "tail": pa.string(),
            "note": pa.string(),
            "raw": pa.binary(),
            "legs": pa.list_(pa.string()),
            "at": pa.struct({"airport": pa.string(), "gate": pa.int32()}),
            "later": pa.int64(),
        }
    ),
    ["tail"],
    16,
)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of some hundred bytes instead of a GiB."""
    monkeypatch.setattr(changes, "_PIECE_BYTES", 700)
    monkeypatch.setattr(writer, "_NARROW_BYTES", 500)
    monkeypatch.setattr(hashing, "_AT_ONCE_BYTES", 100)


def rows_of(count: int) -> pa.Table:
    rows = [
        {
            "tail": f"N{number}",
            "note": "x" * (number % 50),
            "raw": b"\xff" * (number % 9),
            "legs": ["ams", None, "lhr"][: number % 4],
            "at": {"airport": f"a{number}", "gate": number},
        }
        for number in range(count)
    ]
    given = pa.schema([field for field in NESTED.columns if field.name != "later"])
    return pa.Table.from_pylist(rows, schema=given)


@pytest.mark.usefixtures("small_pieces")
def test_rows_in_pieces_are_the_same_state(keyed: KeyedJob) -> None:
    """Of every kind of column, with tombstones, and with a column that is left out."""
    rows = rows_of(300)
    deleted = pa.array(np.arange(300) % 3 == 0)
    attempt = keyed.coordinator.trigger()
    report = write_rows(keyed.store, attempt, "op", NESTED, rows, deleted=deleted, partitions=2)
    assert (report.upserts, report.deletes) == (200, 100)
    state = keyed.state(keyed.complete(attempt, report), "op")
    found = pa.concat_tables(state.tables()).sort_by("tail").to_pylist()
    wanted = rows.filter(pc.invert(deleted)).sort_by("tail").to_pylist()
    assert found == [{**row, "later": None} for row in wanted]


@pytest.mark.usefixtures("small_pieces")
def test_a_key_in_two_pieces_is_refused(keyed: KeyedJob) -> None:
    """As in one piece: nothing is reported of what was appended by then."""
    rows = pa.concat_tables([rows_of(300), rows_of(1)])
    with pytest.raises(InvalidInputError, match="N0"):
        write_rows(keyed.store, keyed.coordinator.trigger(), "op", NESTED, rows, partitions=2)


@pytest.mark.soak
def test_a_column_of_more_than_2_gib_of_text(keyed_on: type[KeyedJob], tmp_path: Path) -> None:
    """In one frame and one part; it is read again by key groups."""
    keyed = keyed_on(LocalObjectStore(tmp_path))
    schema = StateSchema.of(pa.schema({"tail": pa.int64(), "note": pa.string()}), ["tail"], 16)
    text = pa.array(["x" * (1 << 20)] * 100)
    parts = [
        pa.table([pa.array(np.arange(start, start + 100)), text], ["tail", "note"])
        for start in range(0, 2200, 100)
    ]
    attempt = keyed.coordinator.trigger()
    report = write_rows(keyed.store, attempt, "op", schema, pa.concat_tables(parts), partitions=1)
    state = keyed.state(keyed.complete(attempt, report), "op")
    lengths = [
        pc.sum(pc.binary_length(table.column("note"))).as_py()
        for group in range(16)
        for table in state.tables(KeyGroupRange.of(group, group))
        if table.num_rows
    ]
    assert sum(lengths) == 2200 << 20
