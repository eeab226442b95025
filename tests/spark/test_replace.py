"""A DataFrame in the place of a part of a state, against the same dictionary as rows in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Opening
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark import CheckpointBatch, write_state
from dstl_dagster.state import ExactValues, PartitionRows
from tests.property.test_replacing import Model, programs

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def replaced(
    job: Job, names: frozenset[str | None] | None, rows: dict[Any, Any], **more: Any
) -> tuple[int, int]:
    listed = [(part, number, value) for (part, number), value in rows.items()]
    df = job.spark.createDataFrame(listed, "part STRING, number BIGINT, value STRING")
    replace: Any = True
    if names is not None:
        values = ExactValues(tuple(sorted(name for name in names if name is not None)))
        replace = PartitionRows(
            {"part": values}, frozenset((place,) for place in range(len(values))), "the wanted parts"
        )
    how: dict[str, Any] = {
        "operator": "op",
        "keys": ["part", "number"],
        "max_parallelism": 8,
        "replace": replace,
        **more,
    }
    done = job.checkpoint(lambda attempt: ([write_state(df, attempt, **how)], []))
    report = done.manifest.operators["op"].report
    return report.upserts, report.deletes


@pytest.mark.parametrize(("seed", "partitions"), [(0, 1), (1, 3), (2, 8)])
def test_a_part_is_replaced_and_the_rest_stays(job: Job, seed: int, partitions: int) -> None:
    """Also in key groups into which no new row falls: each task knows its range without one."""
    model = Model()
    for names, new in programs(seed, 4):
        names = names and names - {None}
        new = {key: value for key, value in new.items() if names is None or key[0] in names}
        assert replaced(job, names, new, partitions=partitions) == model.replace(names, new)
        found = {(row.part, row.number): row.value for row in job.read_state().collect()}
        assert found == model.rows


def test_a_row_of_another_part_is_refused(job: Job) -> None:
    """By the task that sees it, in one sentence, without a retry."""
    with pytest.raises(
        InvalidInputError, match=r"the row of key \(part='b', number=7\) is not in the wanted"
    ):
        replaced(job, frozenset({"a"}), {("a", 1): "x", ("b", 7): "x"})


def test_a_key_twice_is_refused(job: Job) -> None:
    """Also where both rows are as the state has them."""
    replaced(job, None, {("a", 1): "x"})
    df = job.spark.createDataFrame([("a", 1, "x")] * 2, "part STRING, number BIGINT, value STRING")
    attempt = job.coordinator.trigger(take_over=True)
    with pytest.raises(InvalidInputError, match="occurs 2 times"):
        write_state(df, attempt, operator="op", keys=["part", "number"], replace=True)


def test_a_state_is_read_in_part(job: Job) -> None:
    """By the same scope."""
    replaced(job, None, {("a", 1): "x", ("b", 1): "y"})
    scope = PartitionRows({"part": ExactValues(("b",))}, frozenset({(0,)}), "b")
    assert [tuple(row) for row in job.read_state(scope=scope).collect()] == [("b", 1, "y")]


def test_the_rows_of_a_condition_are_replaced(job: Job) -> None:
    """In SQL, on key columns alone; what else it could mean is refused before anything runs."""
    replaced(job, None, {("a", 1): "x", ("a", 2): "x", ("b", 1): "x"})
    assert replaced(job, None, {("a", 3): "y"}, replace="part = 'a' AND number >= 2") == (1, 1)
    found = {(row.part, row.number): row.value for row in job.read_state().collect()}
    assert found == {("a", 1): "x", ("a", 3): "y", ("b", 1): "x"}
    for how, says in (
        ({"replace": "value = 'x'"}, "names column 'value', and rows are replaced by their key columns"),
        ({"replace": "part LIKE 'a%'"}, "not understood at 'LIKE'"),
        ({"replace": True, "deleted": "gone"}, "name no deleted ones"),
    ):
        df = job.spark.sql("SELECT 'a' AS part, 1L AS number, 'x' AS value, false AS gone")
        df = df if "deleted" in how else df.drop("gone")
        with pytest.raises(InvalidInputError, match=says):
            write_state(
                df, job.coordinator.trigger(take_over=True), operator="op", keys=["part", "number"], **how
            )


def test_a_batch_replaces_rows_of_any_frame(job: Job) -> None:
    """A DataFrame, or a table in memory: by the same argument."""
    replaced(job, None, {("a", 1): "x", ("b", 1): "x"})
    rows = [{"part": "b", "number": 2, "value": "z"}]
    for number, frame in enumerate((pa.Table.from_pylist(rows), job.spark.createDataFrame(rows))):
        with CheckpointBatch(job.coordinator, Opening(str(number))) as batch:
            report = batch.write_state(frame, operator="op", keys=["part", "number"], replace="part = 'b'")
        assert (report.upserts, report.deletes) == (1, 1)


def test_a_batch_writes_and_merges_in_a_number_of_tasks(job: Job) -> None:
    """Each task has a range of key groups; rows in memory have no tasks."""
    rows = job.spark.range(100)
    merge: dict[str, Any] = {"operator": "merged", "keys": ["id"], "schema": "id BIGINT", "update": {}}
    with CheckpointBatch(job.coordinator) as batch:
        written = batch.write_state(rows, operator="written", keys=["id"], partitions=3)
        merged = batch.merge_state(rows, **merge, partitions=3)
        with pytest.raises(InvalidInputError, match="partitions is for a DataFrame of Spark"):
            batch.merge_state(rows.toArrow(), **merge, partitions=3)
    assert [len(report.handles) for report in (written, merged)] == [3, 3]
