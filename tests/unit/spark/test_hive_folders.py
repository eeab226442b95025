"""Rows of a task, by the folders that they go to, without Spark."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark.dataframes import hive_folders
from dstl_dagster.spark.dataframes.hive_folders import by_folder, folders_of


@pytest.mark.parametrize("most_bytes", [1, 2000, 2**30])
def test_rows_come_folder_by_folder_in_their_order(monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    """However much fits into memory; NULL and an empty text are one value."""
    monkeypatch.setattr(hive_folders, "_MOST_BYTES", most_bytes)
    draw = random.Random(1)
    rows = [
        (n, draw.choice([None, "", "a", "b", "__HIVE_DEFAULT_PARTITION__"]), draw.choice([1, 20, None]))
        for n in range(500)
    ]
    batches = [
        pa.record_batch(
            [pa.array(list(each)) for each in zip(*rows[at : at + 70], strict=True)], ["n", "t", "k"]
        )
        for at in range(0, 500, 70)
    ]
    found: dict[tuple[str, ...], list[int]] = {}
    last = None
    for values, batch in by_folder(iter(batches), 2):
        assert values == last or values not in found, "a folder comes back: its file would be written twice"
        last = values
        found.setdefault(values, []).extend(batch.column(0).to_pylist())
        assert batch.schema.names == ["n"]
    nothing = "__HIVE_DEFAULT_PARTITION__"
    expected: dict[tuple[str, ...], list[int]] = {}
    for n, text, number in rows:
        key = (text or nothing, nothing if number is None else str(number))
        expected.setdefault(key, []).append(n)
    assert found == expected


def test_rows_that_wait_are_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 MB that come, a fraction is held at any time."""
    monkeypatch.setattr(hive_folders, "_MOST_BYTES", 1_000_000)
    before = pa.total_allocated_bytes()
    most = 0
    batches = (
        pa.record_batch(
            [pa.array(range(25_000)), pa.array([f"{n % 1000}" for n in range(25_000)])], ["n", "p"]
        )
        for _ in range(100)
    )
    rows = 0
    for _, batch in by_folder(batches, 1):
        rows += len(batch)
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 2_500_000
    assert most < 8_000_000


def test_names_are_escaped() -> None:
    """The characters that Spark escapes, in columns too; others stay."""
    assert (
        folders_of(["a=b", "c"], ("x/y:%\n\x7f", "\N{SNOWMAN} _.~"))
        == "a%3Db=x%2Fy%3A%25%0A%7F/c=\N{SNOWMAN} _.~"
    )


def test_text_that_is_not_utf_8_names_no_folder() -> None:
    """Text of Spark may hold any bytes."""
    value = pa.array([b"\xffa"]).view(pa.string())
    with pytest.raises(InvalidInputError, match=r"a value that is not UTF-8, b'\\xffa': name folders by"):
        list(by_folder([pa.record_batch([[1], value], ["id", "p"])], 1))
