"""Rows in the place of a part of a state, against a dictionary: only differences are written.

Without Spark here; `tests/spark/test_replace.py` draws the same programs for DataFrames.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.format.key_group_ranges import merged_ranges
from dstl_dagster.jobs import write_frame
from dstl_dagster.keyed.read import lookup
from dstl_dagster.state import StateSchema, key_group_hash, key_group_of
from dstl_dagster.storage import MemoryObjectStore

COLUMNS = pa.schema({"part": pa.string(), "number": pa.int64(), "value": pa.string()})
PARTS = ("a", "b", "c", None)


@dataclass(frozen=True)
class Parts:
    """A scope of its own, beside those that the package has."""

    names: frozenset[str | None]
    partition_columns = ("part",)

    def key_groups(self, schema: StateSchema) -> tuple[KeyGroupRange, ...] | None:
        partitions = pa.table({"part": pa.array(sorted(self.names, key=str), pa.string())})
        if schema.partition_columns != self.partition_columns:
            return None
        return merged_ranges(key_group_hash.key_groups_of_partitions(partitions, schema))

    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        return pa.array([value in self.names for value in rows.column("part").to_pylist()], pa.bool_())

    def __str__(self) -> str:
        return f"parts {sorted(map(str, self.names))}"


class Model:
    """Each key's row, and what a replacement has to write."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, Any], Any] = {}

    def replace(
        self, names: frozenset[str | None] | None, new: dict[tuple[Any, Any], Any]
    ) -> tuple[int, int]:
        inside = {key for key in self.rows if names is None or key[0] in names}
        gone = inside - set(new)
        written = {key for key, value in new.items() if key not in self.rows or self.rows[key] != value}
        for key in gone:
            del self.rows[key]
        self.rows.update(new)
        return len(written), len(gone)

    def of(self, part: str | None) -> dict[tuple[Any, Any], Any]:
        return {key: value for key, value in self.rows.items() if key[0] == part}


def programs(seed: int, count: int) -> Any:
    """(scope or None, rows)."""
    chosen = random.Random(seed)
    for _ in range(count):
        names = None if chosen.random() < 0.2 else frozenset(chosen.sample(PARTS, chosen.randint(1, 3)))
        parts = sorted(names or PARTS, key=str)
        keys = {
            (chosen.choice(parts), chosen.choice([None, *range(12)])) for _ in range(chosen.randint(0, 20))
        }
        yield names, {key: chosen.choice(["x", "y", None]) for key in sorted(keys, key=str)}


def table_of(rows: dict[tuple[Any, Any], Any]) -> pa.Table:
    listed = [{"part": part, "number": number, "value": value} for (part, number), value in rows.items()]
    return pa.Table.from_pylist(listed, COLUMNS)


def replaced(
    coordinator: CheckpointCoordinator, names: frozenset[str | None] | None, rows: Any, **more: Any
) -> Any:
    batch = Batch.open(coordinator)
    try:
        scope = True if names is None else Parts(names)
        how = {"operator": "op", "keys": ["part", "number"], "max_parallelism": 8, **more}
        report = write_frame(rows, batch, replace=scope, **how)
    except InvalidInputError as error:
        batch.abort(str(error))
        raise
    batch.add(report)
    batch.complete()
    return report


def wrong(seed: int, groups: int) -> str | None:
    """What a program's state is, where it is not what the model says.

    It has partition columns if its first rows replace parts; what replaces later changes nothing about that.
    """
    coordinator, model = CheckpointCoordinator("job", MemoryObjectStore()), Model()
    partitioned = None
    for names, new in programs(seed, 8):
        report = replaced(coordinator, names, table_of(new), max_parallelism=groups)
        if partitioned is None:
            partitioned = () if names is None else ("part",)
        if (report.upserts, report.deletes) != model.replace(names, new):
            return f"{report.upserts} upserts and {report.deletes} deletes are not the differences"
        scan = coordinator.read_state("op")
        if scan.at.schema.partition_columns != partitioned:
            return f"partition columns are {scan.at.schema.partition_columns}, not {partitioned}"
        part = chosen_part(new)
        for found, rows in (
            (scan, model.rows),
            (scan.within(Parts(frozenset([part]))), model.of(part)),
            (coordinator.read_state("op", filters=[("part", "=", part)]), model.of(part)),
        ):
            listed = found.to_arrow().to_pylist()
            if {(row["part"], row["number"]): row["value"] for row in listed} != rows:
                return f"{listed}, not {rows}"
    return None


def chosen_part(new: dict[tuple[Any, Any], Any]) -> str | None:
    return min((part for part, _ in new), key=str, default="a")


@pytest.mark.parametrize("seed", range(12))
def test_a_part_is_replaced_and_the_rest_stays(seed: int) -> None:
    """In any order, as often as one likes: the same row is not written, one that goes is deleted."""
    assert wrong(seed, groups=[8, 1024, 3][seed % 3]) is None


def test_rows_that_are_looked_for_elsewhere_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a reader that places rows by all of their key."""

    def by_all_keys(partitions: pa.Table, schema: StateSchema) -> set[int]:
        keys = partitions.append_column("number", pa.nulls(len(partitions), pa.int64()))
        return {*key_group_of(keys, replace(schema, partition_columns=())).tolist()}

    for reader in (key_group_hash, lookup):
        with monkeypatch.context() as broken:
            broken.setattr(reader, "key_groups_of_partitions", by_all_keys)
            assert any(wrong(seed, groups=1024) for seed in range(3))


def test_a_state_that_is_read_in_many_runs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """One range of key groups at a time, with new rows in key groups that have none."""
    coordinator = CheckpointCoordinator("job", MemoryObjectStore())
    many = {("a", number): "x" for number in range(500)} | {("b", number): "x" for number in range(500)}
    replaced(coordinator, None, table_of(many), max_parallelism=64)
    monkeypatch.setattr("dstl_dagster.keyed.read.keyed_state._SPLIT_BYTES", 256)
    new = {("a", number): "y" for number in range(400, 900)}
    report = replaced(coordinator, frozenset({"a"}), table_of(new), max_parallelism=64)
    assert (report.upserts, report.deletes) == (500, 400)
    found = coordinator.read_state("op").to_arrow()
    assert found.num_rows == 1000
    assert pc.sum(pc.equal(found.column("value"), "y")).as_py() == 500


def test_a_row_of_another_part_is_refused_and_changes_nothing() -> None:
    """One sentence, with the row's key."""
    coordinator = CheckpointCoordinator("job", MemoryObjectStore())
    replaced(coordinator, None, table_of({("a", 1): "x"}))
    with pytest.raises(
        InvalidInputError, match=r"the row of key \(part='b', number=7\) is not in parts \['a'\]"
    ):
        replaced(coordinator, frozenset({"a"}), table_of({("a", 2): "x", ("b", 7): "x"}))
    assert coordinator.read_state("op").to_arrow().to_pylist() == [{"part": "a", "number": 1, "value": "x"}]


def test_a_key_twice_is_refused() -> None:
    """Also where both rows are as the state has them."""
    coordinator = CheckpointCoordinator("job", MemoryObjectStore())
    rows = table_of({("a", 1): "x"})
    replaced(coordinator, None, rows)
    with pytest.raises(InvalidInputError, match="occurs 2 times"):
        replaced(coordinator, frozenset({"a"}), pa.concat_tables([rows, rows]))


def test_columns_come_and_widen_with_a_replacement() -> None:
    """A column that is left out becomes null, and that is a difference."""
    coordinator = CheckpointCoordinator("job", MemoryObjectStore())
    first = pa.table(
        {"part": ["a", "b"], "number": pa.array([1, 1], pa.int64()), "value": pa.array([1, 2], pa.int32())}
    )
    replaced(coordinator, None, first)
    wider = pa.table(
        {"part": ["a"], "number": pa.array([1], pa.int64()), "value": pa.array([1]), "more": ["m"]}
    )
    assert replaced(coordinator, frozenset({"a"}), wider).upserts == 1
    assert replaced(coordinator, frozenset({"a"}), wider).upserts == 0
    assert replaced(coordinator, frozenset({"a"}), wider.drop_columns(["more"])).upserts == 1
    found = coordinator.read_state("op").to_arrow().sort_by("part")
    assert found.select(["part", "number", "value", "more"]).to_pylist() == [
        {"part": "a", "number": 1, "value": 1, "more": None},
        {"part": "b", "number": 1, "value": 2, "more": None},
    ]
