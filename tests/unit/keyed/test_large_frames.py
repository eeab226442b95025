"""Rows of any size are written from one process: split inside, in bounded memory."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator, materialize
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.jobs import frames
from dstl_dagster.keyed import diff_checkpoints, export_checkpoint, write_rows
from dstl_dagster.state import StateSchema, evaluated_rules, pieces
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
    """Some hundred bytes instead of a GiB."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)


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
    report = write_rows(
        rows, attempt, keyed.store, operator="op", schema=NESTED, deleted=deleted, partitions=2
    )
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
        write_rows(rows, keyed.coordinator.trigger(), keyed.store, operator="op", schema=NESTED, partitions=2)


def numbered(first: int, stop: int) -> pa.Table:
    """Keys of four bytes and constant values, of which all chunks are one."""
    keys = pa.array(np.arange(first, stop, dtype=np.int32))
    ones = pa.array(np.ones(1 << 20, np.int8))
    whole, rest = divmod(stop - first, len(ones))
    return pa.table({"id": keys, "value": pa.chunked_array([*[ones] * whole, ones.slice(0, rest)])})


def test_writing_holds_a_byte_for_each_row_and_a_piece(
    keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As numpy counts it, with what the store holds. An order and hashes of all rows make 25 bytes a row."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 19)
    rows = numbered(0, 300_000)
    schema = StateSchema.of(rows.schema, ["id"], 128)
    attempt = keyed.coordinator.trigger()
    tracemalloc.start()
    report = write_rows(rows, attempt, keyed.store, operator="op", schema=schema)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * rows.num_rows
    state = keyed.state(keyed.complete(attempt, report), "op")
    assert sum(table.num_rows for table in state.tables()) == rows.num_rows


def test_a_merge_and_a_replacement_hold_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole key groups: a key that comes twice is found, also where one of its rows changes nothing."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 10_000)
    uri, held = tmp_path.as_uri(), []

    def evaluated(*arguments: Any) -> Any:
        held.append(arguments[2].num_rows)
        return evaluated_rules(*arguments)

    monkeypatch.setattr(frames, "evaluated_rules", evaluated)

    def apply(key: str, rows: pa.Table, **how: Any) -> dict[int, int]:
        with dstl.open_batch(uri, "job", idempotency_key=key) as batch:
            write = batch.merge_state if "update" in how else batch.write_state
            write(rows, operator="op", keys=["id"], **how)
        found = dstl.read_state(uri, "job", "op").to_arrow()
        return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))

    add = {"schema": "id INT, value TINYINT", "update": {"value": "coalesce(old.value, 0) + new.value"}}
    merged = apply("1", numbered(0, 1_000), **add)
    assert merged == dict.fromkeys(range(1_000), 1)
    merged = apply("2", numbered(500, 1_500), **add)
    assert merged == {number: 1 + (500 <= number < 1_000) for number in range(1_500)}
    assert len(held) > 10
    assert max(held) < 200
    replaced = apply("3", numbered(900, 2_000), replace=True)
    assert replaced == dict.fromkeys(range(900, 2_000), 1)
    twice = pa.concat_tables([numbered(0, 1_000), numbered(0, 1)])
    for how in (add, {"replace": True}):
        with pytest.raises(InvalidInputError, match="key \\(id=0\\) occurs 2 times"):
            apply("4", twice, **how)


def walk(folder: Path, rows: int, text_bytes: int, schema: str = "tail BIGINT, note STRING") -> None:
    """Write, read, merge by rules, replace, merge runs, compare and export: all in one key group, so that no
    range of key groups is smaller. The text of row n in version v is `v` and n in turn.
    """
    uri, options = folder.joinpath("store").as_uri(), {"dstl.state.materialize.enabled": "false"}
    half = rows // 2

    def given(first: int, count: int, version: str, kind: pa.DataType) -> pa.Table:
        notes = pa.chunked_array(
            [[f"{version}{number}".ljust(text_bytes, "x")] for number in range(first, first + count)], kind
        )
        return pa.table({"tail": np.arange(first, first + count), "note": notes})

    def held() -> list[tuple[int, str, int]]:
        scan = dstl.read_state(uri, "job", "op").to_arrow_batch_reader()
        return sorted(
            (tail, note.as_buffer().slice(0, 9).to_pybytes().decode().rstrip("x"), note.as_buffer().size)
            for batch in scan
            for tail, note in zip(batch.column(0).to_pylist(), batch.column(1), strict=True)
        )

    how = {"operator": "op", "keys": ["tail"]}
    with dstl.open_batch(uri, "job", idempotency_key="1", options=options) as batch:
        batch.write_state(given(0, rows, "a", pa.string_view()), max_parallelism=1, **how)
    expected = [(number, f"a{number}", text_bytes) for number in range(rows)]
    assert held() == expected
    with dstl.open_batch(uri, "job", idempotency_key="2", options=options) as batch:
        update = {"note": "concat(old.note, new.note)"}
        short = given(half, rows - half, "b", pa.large_string()).set_column(
            1, "note", pa.array([f"b{number}" for number in range(half, rows)])
        )
        batch.merge_state(short, update=update, schema=schema, **how)
    expected[half:] = [(tail, note, size + len(f"b{tail}")) for tail, note, size in expected[half:]]
    assert held() == expected
    with dstl.open_batch(uri, "job", idempotency_key="3", options=options) as batch:
        batch.write_state(given(1, rows - 1, "a", pa.string()), replace=True, **how)
    assert held() == [(number, f"a{number}", text_bytes) for number in range(1, rows)]
    store = LocalObjectStore(folder / "store")
    first, second, third = CheckpointCoordinator("job", store).list()
    (back,) = diff_checkpoints(store, second.manifest, third.manifest, "op")
    assert (back.added.num_rows, back.removed["tail"].to_pylist()) == (0, [0])
    assert sorted(back.after["tail"].to_pylist()) == [*range(half, rows)]
    assert back.after.schema == back.before.schema
    (there,) = diff_checkpoints(store, first.manifest, third.manifest, "op")
    assert (there.after.num_rows, there.removed.num_rows) == (0, 1)
    export = export_checkpoint(store, third.manifest, "op", folder.joinpath("out").as_uri())
    assert export.rows == rows - 1
    coordinator = CheckpointCoordinator("job", store)
    materialize(coordinator, force=True)
    assert len(coordinator.get(4).manifest.operators["op"].runs) == 1
    assert held() == [(number, f"a{number}", text_bytes) for number in range(1, rows)]


@pytest.mark.usefixtures("small_pieces")
def test_all_that_is_done_with_a_state_goes_in_pieces(tmp_path: Path) -> None:
    walk(tmp_path, rows=40, text_bytes=60)


@pytest.mark.soak  # 12 GiB
def test_all_that_is_done_with_a_state_of_more_than_2_gib_of_text(tmp_path: Path) -> None:
    """In one key group: as in pieces above, with the real limit."""
    walk(tmp_path, rows=2200, text_bytes=1 << 20)


def walk_of_many(folder: Path, first: int, stop: int) -> None:
    """Write numbered rows as one handle, read, change few, compare, export and merge."""
    store = LocalObjectStore(folder / "store")
    coordinator = CheckpointCoordinator("job", store)
    count = stop - first

    def written(rows: pa.Table, partitions: int) -> None:
        attempt = coordinator.trigger()
        schema = StateSchema.of(rows.schema, ["id"], 128)
        coordinator.record(
            attempt,
            [write_rows(rows, attempt, store, operator="op", schema=schema, partitions=partitions)],
        )
        coordinator.confirm(attempt)

    def held() -> tuple[int, int, int]:
        """How many rows there are, and the sums of their keys and values."""
        sums = np.zeros(3, np.int64)
        for batch in dstl.read_state(store.uri, "job", "op").to_arrow_batch_reader():
            columns = batch.columns
            sums += [batch.num_rows, *(pc.sum(column).as_py() or 0 for column in columns)]
        return tuple(sums.tolist())

    total = (first + stop - 1) * count // 2
    written(numbered(first, stop), 1)
    assert held() == (count, total, count)
    # In few key groups, each in a handle of its own: only these are compared.
    changed = pa.table({"id": pa.array([first, stop - 1], pa.int32()), "value": pa.array([5, 7], pa.int8())})
    written(changed, 128)
    older, newer = coordinator.list()
    assert [newer.manifest.operators["op"].runs[0].upserts, held()] == [count, (count, total, count + 10)]
    found = [*diff_checkpoints(store, older.manifest, newer.manifest, "op")]
    assert sorted(
        pa.concat_tables([each.after for each in found]).to_pylist(), key=lambda row: row["id"]
    ) == (changed.to_pylist())
    assert sum(each.rows for each in found) == 2
    assert export_checkpoint(store, newer.manifest, "op", (folder / "out").as_uri()).rows == count
    materialize(coordinator, force=True)
    (merged,) = coordinator.latest().manifest.operators["op"].runs
    assert [merged.upserts, held()] == [count, (count, total, count + 10)]


@pytest.mark.parametrize(
    ("first", "stop"),
    [
        (-100, 3_000),
        # 11 GiB of memory and 30 of disk: a quarter of an hour of CPU time.
        pytest.param(-100, 2**31, marks=[pytest.mark.soak, pytest.mark.timeout(14_400)]),
    ],
)
def test_more_rows_in_one_handle_than_32_bits_count(first: int, stop: int) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        walk_of_many(Path(folder), first, stop)
