"""Rules for rows in memory: what they mean, and what is refused; `tests/spark/test_rules.py` asks Spark."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.state.rules import Rule, declared_columns, evaluated_rules

NEW = pa.table(
    {"k": ["a", "b"], "n": [3, None], "Odd name": [1, 2], "tags": [["x"], None], "void": pa.nulls(2)}
)
LONG = pa.int64()
OLD = pa.table({"k": ["a", None], "n": [10, None], "tags": [None, ["y"]]})


def value(text: str, kind: pa.DataType = LONG) -> list[Any]:
    (found,) = evaluated_rules(
        [Rule(text, kind, "update of 'n'")], OLD, NEW, np.array([True, False]), 1_000_000
    )
    assert found.type == kind
    return list(found.to_pylist())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("coalesce(old.n, 0) + new.n", [13, None]),
        ("NEW.N -- a comment", [3, None]),
        ("new./* one */`Odd name` * 2", [2, 4]),
        ("new.`odd NAME`", [1, 2]),
        ("case new.n when 3 then 1 else 2 end", [1, 2]),
        ("if(old is not null and not false, 1, 2)", [1, 2]),
        ("2 + 3 * -4 - 1", [-11, -11]),
        ("length('it\\'s \"q\"' || \"'\")", [9, 9]),
        ("coalesce(new.void, new.n + new.void, 7)", [7, 7]),
        ("case when new.n is null then 0 when 1 / (new.n - 3) > 0 then 1 else 2 end", None),
        ("case when new.n = 3 or 1 / (new.n - 3) > 0 then 1 end", [1, None]),
        ("nvl2(nullif(new.n, 3), 1, abs(-2))", [2, 2]),
    ],
)
def test_a_rule_is_evaluated(text: str, expected: list[Any] | None) -> None:
    """`None`: it fails for a row."""
    if expected is None:
        with pytest.raises(InvalidInputError, match=r"^update of 'n' by '.*': .*division by zero"):
            value(text)
    else:
        assert value(text) == expected


def test_a_nested_column_is_taken_over_as_it_is() -> None:
    assert value("new.tags", pa.list_(pa.string())) == [["x"], None]
    assert value("old.tags", pa.list_(pa.string())) == [None, ["y"]]
    pairs = pa.map_(pa.string(), pa.int64())
    rows = pa.table({"m": pa.array([[("a", 1)]], pairs)})
    for text, whole in (("new.m", True), ("coalesce(new.m, old.m)", False)):
        rule = Rule(text, pairs, "update of 'm'")
        if whole:
            (found,) = evaluated_rules([rule], rows, rows, np.array([True]), 0)
            assert found.to_pylist() == [[("a", 1)]]
            continue
        with pytest.raises(InvalidInputError, match="only takes it over as it is"):
            evaluated_rules([rule], rows, rows, np.array([True]), 0)


TEXTS = pa.list_(pa.string())


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("concat(coalesce(old.tags, array()), new.tags)", TEXTS, [["x"], None]),
        ("concat(coalesce(old.tags, array()), array(new.k, NULL))", TEXTS, [["a", None], ["y", "b", None]]),
        ("size(new.tags) + size(array())", LONG, [1, None]),
        ("new.tags[0] || element_at(new.tags, -1)", pa.string(), ["xx", None]),
        ("new.tags[1]", pa.string(), None),
        ("element_at(new.tags, 0)", pa.string(), None),
        ("slice(array(1, 2, 3), -2, 5)[1]", LONG, [3, 3]),
        ("size(slice(array(1, 2, 3), -4, 2))", LONG, [0, 0]),
        ("slice(new.tags, 0, 1)", TEXTS, None),
        ("array_contains(array(new.n, 4), 3L)", pa.bool_(), [True, None]),
        ("array_contains(old.tags, 'y')", pa.bool_(), [None, True]),
        ("named_struct('a', new.n, 'B', array(new.k)).b[0]", pa.string(), ["a", "b"]),
        ("-array(new.n)[0]", LONG, [-3, None]),
    ],
)
def test_arrays_and_structs_are_made_and_looked_into(
    text: str, kind: pa.DataType, expected: list[Any] | None
) -> None:
    """`None`: it fails for a row."""
    if expected is None:
        with pytest.raises(InvalidInputError, match=r"^update of 'n' by '.*': .*(element|slice)"):
            value(text, kind)
    else:
        assert value(text, kind) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a value at its end"),
        ("new.n +", "expected a value at its end"),
        ("new.n n", "not understood at 'n'"),
        ("(new.n", r"expected \) at its end"),
        ("new.n ; drop", "not understood at '; drop'"),
        ("'a", "not understood at"),
        ("'a' 'b'", "two texts without a sign"),
        ("'a''b'", "two texts without a sign"),
        (r"'\x41'", r"the escape \\x"),
        ("old.nope", "there is no column old.nope: old has k, n, tags"),
        ("n", "n is neither old.COLUMN"),
        ("new", "new is a whole row"),
        ("new.tags.x", "x is a field of ARRAY<STRING>, which is no STRUCT"),
        ("named_struct('a', 1).b", "there is no field b: STRUCT<a: INT>"),
        ("named_struct('a', 1, 'A', 2).a", "differ by more than case"),
        ("named_struct(new.k, 1)", "a name in quotes before each value"),
        ("new.tags = old.tags", "ARRAY<STRING> is compared"),
        ("greatest(new.tags, old.tags)", "ARRAY<STRING> is compared"),
        ("new.n[0]", "an index takes ARRAY, not BIGINT"),
        ("new.tags[new.n]", "the number of an element is INT, not BIGINT"),
        ("new.tags[0", r"expected \] at its end"),
        ("array()[0]", "an element of an array that has none"),
        ("concat(new.tags, 'x')", "concat takes ARRAY, not STRING"),
        ("array_contains(new.tags, NULL)", "array_contains compares STRING"),
        ("new.k = 1", "STRING and INT meet"),
        ("new.k + 1", r"\+ takes numbers, not STRING"),
        ("1.5 / new.n", "/ of decimals"),
        ("cast(new.k as bigint)", "STRING becomes BIGINT"),
        ("cast(1 as varchar(3))", r"VARCHAR\(3\) is no type"),
        ("cast(1 as decimal(39,0))", "has no such digits"),
        ("cast(1 as decimal(38,0)) * 2", "a decimal of 49 digits"),
        ("current_date()", "current_date is not known to mean the same"),
        ("rand()", r"rand\(\) gives another value each time"),
        ("TIMESTAMP '2001-01-01 00:00:00'", "depends on Spark's session"),
        ("case when 1 then 2 end", "WHEN takes BOOLEAN, not INT"),
        ("nvl(1)", r"nvl\(\) takes 2 to 2 values, not 1"),
        ("9223372036854775808L", "out of the range of BIGINT"),
        ("new.k like 'a%'", "not understood at 'like'"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(text: str, reason: str) -> None:
    """By its column and its text, before a row is looked at."""
    with pytest.raises(InvalidInputError, match=reason) as caught:
        value(text)
    assert str(caught.value).startswith(f"update of 'n' by {text!r}: ")


def test_text_that_is_not_utf8_is_refused() -> None:
    raw = pa.table({"k": pa.array([b"\xff"]).view(pa.string())})
    with pytest.raises(InvalidInputError, match=r"column 'new\.k' has text that is not UTF-8"):
        evaluated_rules([Rule("new.k", pa.string(), "here")], raw, raw, np.array([True]), 0)


def test_without_duckdb_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(
        InvalidInputError, match=r"not installed: pip install dstl-dagster\[duckdb\]"
    ) as caught:
        value("new.n + 1")
    assert caught.value.kind == "not_installed"


def test_columns_are_declared_as_in_spark() -> None:
    text = """id BIGINT NOT NULL COMMENT 'of it', `odd name`: decimal(5, 2), m map<string, array<int>>,
        s STRUCT<a: TIMESTAMP, b TIMESTAMP_NTZ>, d dec, i INTERVAL DAY TO SECOND"""
    assert declared_columns(text, "here") == pa.schema(
        {
            "id": pa.int64(),
            "odd name": pa.decimal128(5, 2),
            "m": pa.map_(pa.string(), pa.field("value", pa.list_(pa.field("element", pa.int32())))),
            "s": pa.struct([("a", pa.timestamp("us", "UTC")), ("b", pa.timestamp("us"))]),
            "d": pa.decimal128(10, 0),
            "i": pa.duration("us"),
        }
    )
    for wrong in (
        "",
        "id",
        "id BIGINT,",
        "id VARCHAR(3)",
        "id BIGINT x",
        "i INTERVAL YEAR",
        "id INT, id INT",
    ):
        with pytest.raises(InvalidInputError, match="is not columns such as 'customer STRING, total DOUBLE'"):
            declared_columns(wrong, "here")
    for foreign, name in ((pa.schema({"k": pa.int64()}), "pyarrow.lib.Schema"), (["k"], "builtins.list")):
        with pytest.raises(InvalidInputError, match=f"the schema is a {name}, not columns such as 'customer"):
            declared_columns(foreign, "here")
