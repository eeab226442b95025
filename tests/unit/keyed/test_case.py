"""Columns that differ only in case, without Spark: refused unless asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import KeyedState, write_rows
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import MemoryObjectStore

if TYPE_CHECKING:
    from dstl_dagster.checkpoint import Attempt


def schema(*values: str) -> StateSchema:
    columns = {"id": pa.int64()} | {name: pa.string() for name in values}
    return StateSchema.of(pa.schema(columns), ["id"], 16)


@pytest.fixture
def coordinator() -> CheckpointCoordinator:
    """A job whose state has `id` and `Name`."""
    made = CheckpointCoordinator("job", MemoryObjectStore(), owner="test")
    complete(made, made.trigger(), schema("Name"), {"id": [1], "Name": ["a"]})
    return made


def complete(
    coordinator: CheckpointCoordinator,
    attempt: Attempt,
    state: StateSchema,
    rows: dict[str, list[object]],
    **how: bool,
) -> None:
    report = write_rows(pa.table(rows), attempt, coordinator.store, operator="op", schema=state, **how)  # type: ignore[arg-type]
    coordinator.record(attempt, [report])
    coordinator.confirm(attempt)


def test_two_columns_of_a_schema_are_refused(coordinator: CheckpointCoordinator) -> None:
    """Within the state's schema, or between it and the rows."""
    evolved = schema("Name").evolved_to(schema("name"))
    for state, rows in ((evolved, {"id": [1]}), (schema("Name"), {"id": [1], "name": ["b"]})):
        with pytest.raises(InvalidInputError, match="'Name' and 'name' differ only in case") as caught:
            complete(coordinator, coordinator.trigger(), state, rows)
        assert caught.value.kind == "schema_change"


def test_a_column_beside_that_of_the_state_is_refused(coordinator: CheckpointCoordinator) -> None:
    """If the writer does not know the state's schema, step 4 refuses; no column is lost."""
    with pytest.raises(InvalidInputError, match="differ only in case") as caught:
        complete(coordinator, coordinator.trigger(), schema("name"), {"id": [1], "name": ["b"]})
    assert caught.value.kind == "schema_change"


def test_they_may_be_asked_for(coordinator: CheckpointCoordinator) -> None:
    """As from a Spark session that is case-sensitive."""
    both = schema("Name").evolved_to(schema("name"))
    complete(coordinator, coordinator.trigger(), both, {"id": [1], "name": ["b"]}, case_sensitive=True)
    latest = coordinator.latest()
    assert latest is not None
    state = KeyedState.of(coordinator.store, latest.manifest, "op")
    assert state is not None
    assert state.row({"id": 1}) == {"id": 1, "Name": None, "name": "b"}
