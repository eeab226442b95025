"""`dstl checkpoints` on keyed state: verify, diff, history, export, materialize, going back from damage."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.checkpoints import checkpoints_group
from dstl_dagster.cli.output import Table
from dstl_dagster.cli.render import checkpoint_sections
from dstl_dagster.format import readable_bytes
from dstl_dagster.keyed import StateRows, write_rows
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ANY, LocalObjectStore

if TYPE_CHECKING:
    from tests.unit.conftest import KeyedJob

JOB = "orders"
SCHEMA = StateSchema.of(pa.schema({"name": pa.string(), "total": pa.int64()}), ["name"], 16)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    """Three checkpoints: Ann and 5 come, Ann changes, 5 goes."""
    store = LocalObjectStore(tmp_path / "store", durable=False)
    coordinator = CheckpointCoordinator(JOB, store, owner="test")
    batches = [
        ([("Ann", 1), ("5", 1)], [False, False]),
        ([("Ann", 2)], [False]),
        ([("5", None), ("Eve", 7)], [True, False]),
    ]
    for rows, deleted in batches:
        attempt = coordinator.trigger()
        table = pa.table(dict(zip(("name", "total"), zip(*rows, strict=True), strict=True)), SCHEMA.columns)
        report = write_rows(
            table, attempt, store, operator="totals", schema=SCHEMA, deleted=pa.array(deleted), partitions=1
        )
        coordinator.record(attempt, [report])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    return store


def run(store: LocalObjectStore, *arguments: str, code: int = 0) -> str:
    where = {"DSTL_STORE": store.uri, "DSTL_JOB": JOB}
    result = CliRunner().invoke(checkpoints_group, list(arguments), env=where)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def damage(store: LocalObjectStore, checkpoint_id: int) -> str:
    manifest = CheckpointCoordinator(JOB, store).get(checkpoint_id).manifest
    stream, _offset = manifest.operators["totals"].report.handles[0].handles_and_offsets[0]
    payload = bytearray(store.get(stream.name))
    payload[-1] ^= 1
    store.put(stream.name, bytes(payload), precondition=ANY)
    return stream.name


def test_a_diff_shows_what_changed(store):
    """Signs and counts for people; rows before and after for programs."""
    shown = run(store, "diff", "1", "3")
    assert "1 added, 1 changed, 1 removed" in shown
    assert "1 -> 2" in shown
    documents = [json.loads(line) for line in run(store, "diff", "1", "3", "--json").splitlines()]
    assert {
        "change": "changed",
        "before": {"name": "Ann", "total": 1},
        "after": {"name": "Ann", "total": 2},
    } in (documents)
    assert len(documents) == 3
    assert "and 3 more rows" in run(store, "diff", "1", "3", "--limit", "0")


def test_the_history_of_a_key(store):
    """A text that looks like a number is still text where the column is."""
    lines = [json.loads(line) for line in run(store, "history", "name=5", "--json").splitlines()]
    assert [(line["checkpoint_id"], line["change"]) for line in lines] == [(1, "upsert"), (3, "delete")]
    assert "upsert" in run(store, "history", "name=Ann")
    assert "has no change of" in run(store, "history", "name=nobody")
    assert "a key has the columns name" in str(
        CliRunner()
        .invoke(checkpoints_group, ["history", "tail=1"], env={"DSTL_STORE": store.uri, "DSTL_JOB": JOB})
        .exception
    )


def test_export_writes_parquet(store, tmp_path):
    """Of any checkpoint."""
    run(store, "export", "1", (tmp_path / "one").as_uri())
    run(store, "export", "3", (tmp_path / "three").as_uri())
    one, three = (pq.read_table(tmp_path / name / "totals").to_pylist() for name in ("one", "three"))
    assert sorted(row["name"] for row in one) == ["5", "Ann"]
    assert sorted(row["name"] for row in three) == ["Ann", "Eve"]


def test_materialize_makes_a_checkpoint_when_it_is_due(store):
    """A short log stays unless it is forced; the rows are the same afterwards."""
    assert "--force" in run(store, "materialize")
    assert "checkpoint 4 merged the state of: totals" in run(store, "materialize", "--force")
    own, merge = (
        CheckpointCoordinator(JOB, store).get(number).manifest.operators["totals"] for number in (3, 4)
    )
    for number, written in ((3, (own.report.stored_bytes, 0)), (4, (0, merge.merged_bytes))):
        changelog, merged = map(readable_bytes, written)
        assert re.search(rf"{changelog} +{merged} +name", run(store, "show", str(number)))
    assert "0 added, 0 changed, 0 removed" in run(store, "diff", "3", "4")
    merged = run(store, "history", "name=Ann")
    assert "of changes up to 3 the last is left: --at 3, while retained, has each" in merged
    assert run(store, "history", "name=Ann", "--at", "3").count("upsert") == 2


def test_damage_is_named_and_gone_round(store):
    """Verify fails and names the object, restore refuses it, --newest-verified goes to the one before."""
    assert "checkpoint 3 is undamaged" in run(store, "verify")
    name = damage(store, 2)
    assert f"DAMAGED {name}" in run(store, "verify", code=1)
    found = json.loads(run(store, "verify", "3", "--json", code=1))
    assert (found["ok"], found["problems"][0]["object_name"]) == (False, name)
    run(store, "restore", "3", "--yes", code=1)
    said = run(store, "restore", "--newest-verified", "--yes")
    assert f"DAMAGED checkpoint 3: {name}" in said
    assert "resumes from checkpoint 1" in said
    assert "checkpoint 1 is undamaged" in run(store, "verify")


@pytest.mark.parametrize("payload", [None, b"not a manifest"])
def test_a_list_shows_the_checkpoints_beside_one_that_cannot_be_read(store, payload):
    """By its id, with the error; the status says that something is wrong."""
    name = CheckpointCoordinator(JOB, store).get(2).entry.completed.manifest
    if payload is None:
        store.delete(name, precondition=ANY)
    else:
        store.put(name, payload, precondition=ANY)
    shown = run(store, "list", code=1)
    assert re.findall(r"^ *(\d) ", shown, re.MULTILINE) == ["1", "3"]
    assert "UNREADABLE checkpoint 2: " in shown
    assert name in shown
    documents = [json.loads(line) for line in run(store, "list", "--json", code=1).splitlines()]
    assert [each["checkpoint_id"] for each in documents] == [1, 3, 2]
    assert name in documents[-1]["problem"]


def test_restore_wants_one_word(store):
    """Neither both nor none."""
    run(store, "restore", "--yes", code=2)
    run(store, "restore", "1", "--newest-verified", "--yes", code=2)


def test_text_that_is_not_utf8_is_printed_as_base64(tmp_path):
    """JSON output has an object, which no text is; it also names the key; an export needs --as-bytes."""
    store = LocalObjectStore(tmp_path / "raw", durable=False)
    coordinator = CheckpointCoordinator(JOB, store, owner="test")
    attempt = coordinator.trigger()
    raw = pa.array([b"K\xf6ln", b"/w=="], pa.binary()).view(pa.string())
    table = pa.table([raw, pa.array([1, 2])], SCHEMA.columns)
    coordinator.record(attempt, [write_rows(table, attempt, store, operator="totals", schema=SCHEMA)])
    coordinator.confirm(attempt)
    word = 'name={"base64": "S/Zsbg=="}'
    (change,) = (json.loads(line) for line in run(store, "history", word, "--json").splitlines())
    assert change["row"] == {"name": {"base64": "S/Zsbg=="}, "total": 1}
    assert r"b'K\xf6ln'" in run(store, "history", word)
    target = (tmp_path / "export").as_uri()
    run(store, "export", "1", target, code=1)
    run(store, "export", "1", target, "--as-bytes", "name", code=2)
    run(store, "export", "1", target, "--operator", "totals", "--as-bytes", "name")
    found = pq.read_table(tmp_path / "export" / "totals").column("name").to_pylist()
    assert sorted(found) == [b"/w==", b"K\xf6ln"]


def columns(store: LocalObjectStore, *arguments: str) -> list[tuple[str, str]]:
    shown = json.loads(run(store, "schema", "--json", *arguments))
    return [(each["name"], each["id"]) for each in shown["columns"]]


def test_columns_are_shown_dropped_and_renamed(store):
    """In a checkpoint of its own; older checkpoints keep theirs, and a dry run makes none."""
    assert "Columns of totals" in run(store, "schema")
    assert columns(store) == [("name", "name"), ("total", "total")]
    change = ["schema", "--rename", "total=sum"]
    run(store, *change, "--dry-run")
    assert "checkpoint 4 has the changed columns of totals" in run(store, *change, "--yes")
    assert columns(store) == [("name", "name"), ("sum", "total")]
    assert columns(store, "--at", "3") == [("name", "name"), ("total", "total")]
    assert "0 added, 0 changed, 0 removed" in run(store, "diff", "3", "4")
    lines = [json.loads(line) for line in run(store, "history", "name=Ann", "--json").splitlines()]
    assert [line["row"]["sum"] for line in lines] == [1, 2]
    assert json.loads(run(store, "schema", "--drop", "sum", "--yes", "--json"))["checkpoint_id"] == 5
    assert "dropped: sum" in run(store, "schema")
    assert "checkpoint 5 is undamaged" in run(store, "verify")


def test_columns_that_cannot_be_changed(store):
    """A key, a name that is not there, or at an old checkpoint: nothing happens."""
    for arguments, code in (
        (["--drop", "name", "--yes"], 1),
        (["--drop", "nothing", "--yes"], 1),
        (["--rename", "total", "--yes"], 2),
        (["--drop", "total", "--at", "1", "--yes"], 2),
        (["--operator", "none"], 1),
    ):
        run(store, "schema", *arguments, code=code)
    assert CheckpointCoordinator(JOB, store).latest().checkpoint_id == 3


@pytest.mark.parametrize(
    ("rows", "cell"),
    [(None, "-"), (StateRows(), "-"), (StateRows(3, 5), "3 to 5")],
    ids=["unknown", "until folded", "bounds"],
)
def test_rows_that_are_not_known_are_a_dash(
    rows: StateRows | None, cell: str, keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty cell would look like a mistake."""
    checkpoint = keyed.changes([{"tail": "a", "flights": 1}])
    entry = replace(checkpoint.manifest.operators["aircraft"], rows=rows)
    shown = replace(checkpoint, manifest=replace(checkpoint.manifest, operators={"aircraft": entry}))
    (table,) = [each for each in checkpoint_sections(shown) if isinstance(each, Table)]
    _, header, row = table.lines()
    begin = header.index("deletes") + len("deletes")
    assert row[begin : header.index("rows") + len("rows")].strip() == cell


FAR = StateSchema.of(
    pa.schema(
        {"name": pa.string(), "at": pa.timestamp("us", "UTC"), "by": pa.list_(pa.struct({"x": pa.date32()}))}
    ),
    ["name"],
    16,
)


def test_times_that_python_does_not_have_are_printed_as_numbers(tmp_path):
    """A Spark time stamp has years beyond 9999, as of an infinite one of PostgreSQL; also inside others."""
    store = LocalObjectStore(tmp_path / "far", durable=False)
    coordinator = CheckpointCoordinator(JOB, store, owner="test")
    _, at, by = FAR.columns.types
    far_day = pa.array([[(2**31 - 1,)]], pa.list_(pa.struct({"x": pa.int32()}))).cast(by)
    for number in (2**62, 1):
        attempt = coordinator.trigger()
        table = pa.table([pa.array(["a"]), pa.array([number]).cast(at), far_day], FAR.columns)
        coordinator.record(attempt, [write_rows(table, attempt, store, operator="totals", schema=FAR)])
        coordinator.confirm(attempt)
    lines = run(store, "history", "name=a", "--json").splitlines()
    first, second = (json.loads(line)["row"] for line in lines)
    assert first["at"] == f"{2**62} (timestamp[us, tz=UTC])"
    assert (second["at"], second["by"]) == (
        "1970-01-01 00:00:00.000001+00:00",
        [{"x": f"{2**31 - 1} (date32[day])"}],
    )
    assert f"{2**62} (" in run(store, "diff", "1", "2")


def test_json_has_no_numbers_that_json_does_not_have(tmp_path):
    """NaN and infinities are text."""
    store = LocalObjectStore(tmp_path / "odd", durable=False)
    coordinator = CheckpointCoordinator(JOB, store, owner="test")
    schema = StateSchema.of(pa.schema({"name": pa.string(), "x": pa.list_(pa.float64())}), ["name"], 16)
    attempt = coordinator.trigger()
    table = pa.table([["a"], [[float("nan"), float("-inf"), 0.5]]], schema.columns)
    coordinator.record(attempt, [write_rows(table, attempt, store, operator="totals", schema=schema)])
    coordinator.confirm(attempt)
    (line,) = run(store, "history", "name=a", "--json").splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["row"]["x"] == ["NaN", "-Infinity", 0.5]


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (pa.date32(), date(2026, 11, 1), ["2026-11-01", '"2026-11-01"']),
        (pa.timestamp("us"), datetime(2026, 11, 1, 12), ["2026-11-01 12:00:00"]),
        (pa.timestamp("us", "UTC"), datetime(2026, 11, 1, 12, tzinfo=UTC), ["2026-11-01T13:00+01:00"]),
        (pa.decimal128(10, 2), Decimal("1.50"), ["1.5", "1.50"]),
        (pa.int64(), 1, ["1"]),
        (pa.bool_(), True, ["true"]),
        (pa.binary(), b"a", ["a", '{"base64": "YQ=="}']),
    ],
)
def test_a_key_is_written_as_its_type_is(tmp_path, kind, value, words):
    """And what is no value of the type is refused: 1.5 is not 1."""
    store = LocalObjectStore(tmp_path / "typed", durable=False)
    coordinator = CheckpointCoordinator(JOB, store, owner="test")
    schema = StateSchema.of(pa.schema({"k": kind}), ["k"], 16)
    attempt = coordinator.trigger()
    table = pa.table([pa.array([value], kind)], schema.columns)
    coordinator.record(attempt, [write_rows(table, attempt, store, operator="totals", schema=schema)])
    coordinator.confirm(attempt)
    for word in words:
        assert "upsert" in run(store, "history", f"k={word}")
    if not pa.types.is_binary(kind):
        refused = run(store, "history", "k=1.505", code=2)
        assert f"'1.505' is no value of column 'k', which is {kind}" in refused


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (['name={"base64": 5}'], "is not base64"),
        (['name={"base64": "YQ="}'], "is not base64"),
        (['name={"base64": "%%%"}'], "is not base64"),
        (["name=a", "name=b"], "'name' has two values"),
    ],
)
def test_a_key_that_is_none_is_refused(store, words, reason):
    """Before anything is read."""
    assert reason in run(store, "history", *words, code=2)
