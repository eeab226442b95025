"""Text that is not UTF-8, which Spark allows: stored byte for byte, refused where it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dstl_dagster.checkpoint import materialize
from dstl_dagster.errors import ConflictError, InvalidInputError
from dstl_dagster.keyed import KeyChange, diff_checkpoints, export_checkpoint, key_history, write_rows
from dstl_dagster.keyed.read.export import export_state
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import MemoryObjectStore

if TYPE_CHECKING:
    from tests.unit.conftest import KeyedJob

NESTED = pa.struct([("words", pa.list_(pa.string())), ("by", pa.map_(pa.string(), pa.string()))])
NESTED_BYTES = pa.struct([("words", pa.list_(pa.binary())), ("by", pa.map_(pa.binary(), pa.binary()))])
BYTES = pa.schema({"tail": pa.binary(), "note": pa.binary(), "nested": NESTED_BYTES})
SCHEMA = StateSchema.of(pa.schema({"tail": pa.string(), "note": pa.string(), "nested": NESTED}), ["tail"], 16)

LATIN_1 = "Köln".encode("latin-1")
Rows = dict[bytes | None, bytes | None]


def table_of(rows: Rows) -> pa.Table:
    made = pa.Table.from_pylist(
        [
            {"tail": tail, "note": note, "nested": {"words": [note, b"plain"], "by": [(b"\xfe", note)]}}
            for tail, note in rows.items()
        ],
        schema=BYTES,
    )
    # A view, since a cast refuses text that is not UTF-8.
    return pa.table(
        [each.combine_chunks().view(f.type) for each, f in zip(made.columns, SCHEMA.columns, strict=True)],
        schema=SCHEMA.columns,
    )


def write(keyed: KeyedJob, rows: Rows, schema: StateSchema = SCHEMA) -> None:
    attempt = keyed.coordinator.trigger()
    made = write_rows(
        table_of(rows), attempt, keyed.store, operator=keyed.OPERATOR, schema=schema, partitions=3
    )
    keyed.complete(attempt, made)


def bytes_of(tables: object) -> Rows:
    found: Rows = {}
    for table in tables:  # type: ignore[attr-defined]
        kept = [table.column(f.name).cast(f.type) for f in BYTES]
        for row in pa.table(kept, schema=BYTES).to_pylist():
            note = row["note"]
            assert row["nested"] == {"words": [note, b"plain"], "by": [(b"\xfe", note)]}
            assert row["tail"] not in found
            found[row["tail"]] = note
    return found


def test_the_bytes_come_back_through_folds_and_bases(keyed: KeyedJob) -> None:
    """Values and keys, nested ones too: over a log, over a base, and after a column was added."""
    write(keyed, {b"\xff": LATIN_1, b"ok": b"plain", None: b"\x80", b"": None})
    write(keyed, {b"\xff": b"\xf0\x28\x8c\x28", b"\xfe": b""})
    rows = {b"\xff": b"\xf0\x28\x8c\x28", b"ok": b"plain", None: b"\x80", b"": None, b"\xfe": b""}
    assert bytes_of(keyed.state().tables()) == rows
    assert materialize(keyed.coordinator, force=True) is not None
    assert bytes_of(keyed.state().tables()) == rows
    more = StateSchema.of(SCHEMA.columns.append(pa.field("more", pa.string())), ["tail"], 16)
    write(keyed, {b"\xfe": b"\xed\xa0\x80"}, more)
    assert bytes_of(keyed.state().tables()) == {**rows, b"\xfe": b"\xed\xa0\x80"}


def test_keys_are_equal_by_their_bytes(keyed: KeyedJob) -> None:
    """Two texts that decode to the same replacement characters are two keys; one is found by its bytes."""
    write(keyed, {b"\xff": b"1", b"\xfe": b"2", "\ufffd".encode(): b"3"})
    found = {tail: keyed.state().row({"tail": tail}) for tail in (b"\xff", b"\xfe", "\ufffd", b"\xfd")}
    assert {tail: row and (row["tail"], row["note"]) for tail, row in found.items()} == {
        b"\xff": (b"\xff", "1"),
        b"\xfe": (b"\xfe", "2"),
        "\ufffd": ("\ufffd", "3"),
        b"\xfd": None,
    }


def test_a_key_twice_is_named_by_its_bytes(keyed: KeyedJob) -> None:
    """The error for a repeated key can name any key."""
    attempt = keyed.coordinator.trigger()
    twice = pa.concat_tables([table_of({b"\xff": b"1"}), table_of({b"\xff": b"2"})])
    with pytest.raises(InvalidInputError, match=r"tail=b'\\xff'") as caught:
        write_rows(twice, attempt, keyed.store, operator=keyed.OPERATOR, schema=SCHEMA)
    assert caught.value.kind == "duplicate_key"


def test_a_difference_and_a_history_have_the_bytes(keyed: KeyedJob) -> None:
    """A diff returns Arrow text, a history `RawText` for whatever is not UTF-8."""
    write(keyed, {b"\xff": LATIN_1, b"ok": b"plain"})
    write(keyed, {b"\xff": b"K\xf6ln!"})
    manifests = [keyed.coordinator.get(each).manifest for each in (1, 2)]
    (found,) = diff_checkpoints(keyed.store, *manifests, keyed.OPERATOR)
    assert bytes_of([found.before]) == {b"\xff": LATIN_1}
    assert bytes_of([found.after]) == {b"\xff": b"K\xf6ln!"}
    row = {
        "tail": b"\xff",
        "note": LATIN_1,
        "nested": {"words": [LATIN_1, "plain"], "by": [(b"\xfe", LATIN_1)]},
    }
    history = key_history(keyed.store, manifests[1], keyed.OPERATOR, {"tail": b"\xff"})
    assert history[0] == KeyChange(1, "upsert", row)
    assert [type(history[1].row[name]) for name in ("tail", "note")] == [type(history[0].row["note"])] * 2  # type: ignore[index]


def test_parquet_text_cannot_hold_them(keyed: KeyedJob, tmp_path: Path) -> None:
    """An export as text is refused by column, before its part is written; as bytes it is complete."""
    write(keyed, {b"ok": b"plain"})
    write(keyed, {b"N1": LATIN_1})
    manifest = keyed.coordinator.get(2).manifest
    with pytest.raises(InvalidInputError, match="'note'") as caught:
        export_checkpoint(keyed.store, manifest, keyed.OPERATOR, tmp_path.as_uri())
    assert caught.value.kind == "unsupported_type"
    assert not list(tmp_path.rglob("*.parquet"))
    done = export_checkpoint(
        keyed.store, manifest, keyed.OPERATOR, tmp_path.as_uri(), as_bytes=["note", "nested"]
    )
    exported = pq.read_table(tmp_path / keyed.OPERATOR)
    assert exported.schema.field("tail").type == pa.string()
    assert done.rows == 2
    assert bytes_of([exported]) == {b"ok": b"plain", b"N1": LATIN_1}


def test_an_export_as_bytes_is_another_export(keyed: KeyedJob) -> None:
    """Parts of two types are never mixed in one folder; an unknown column is refused."""
    write(keyed, {b"ok": b"plain"})
    target = MemoryObjectStore()
    export_state(keyed.state(), target, as_bytes=["nested"])
    with pytest.raises(InvalidInputError, match="'nothing'"):
        export_state(keyed.state(), target, as_bytes=["nothing"])
    with pytest.raises(ConflictError, match="use an empty folder"):
        export_state(keyed.state(), target, as_bytes=["nested", "note"])
