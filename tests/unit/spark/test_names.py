"""A text where names are wanted is refused by every function, before it does anything. Starts no JVM."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, materialize
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import write_rows
from dstl_dagster.spark import by_key_group, merge_state, write_state
from dstl_dagster.state import ColumnChanges, StateSchema
from dstl_dagster.storage import MemoryObjectStore

ATTEMPT = Attempt(1, uuid.uuid4(), None, "job", "file:///nowhere")
ROWS = pa.table({"a": [1], "b": [2]})
NO_ROWS: Any = None


def _materialize() -> object:
    coordinator = CheckpointCoordinator("job", MemoryObjectStore())
    attempt = coordinator.trigger()
    schema = StateSchema.of(ROWS.schema, ["a"])
    coordinator.record(attempt, [write_rows(ROWS, attempt, coordinator.store, operator="op", schema=schema)])
    coordinator.confirm(attempt)
    return materialize(coordinator, "op")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("keys", lambda: write_state(NO_ROWS, ATTEMPT, operator="op", keys="ab")),
        ("keys", lambda: merge_state(NO_ROWS, ATTEMPT, operator="op", keys="ab", update={}, schema="a INT")),
        ("keys", lambda: by_key_group(NO_ROWS, "ab")),
        (
            "drop_columns",
            lambda: write_state(NO_ROWS, ATTEMPT, operator="op", keys=["a"], drop_columns="ab"),
        ),
        ("drop_columns", lambda: ColumnChanges.of("ab")),
        ("key_columns", lambda: StateSchema.of(ROWS.schema, "ab")),
        ("operators", _materialize),
    ],
)
def test_a_text_is_refused(name: str, call: Callable[[], object]) -> None:
    """By the name of the argument, with what it should look like."""
    with pytest.raises(InvalidInputError, match=rf"^{name}: '\w+' cannot be used: .*such as \['\w+'\]"):
        call()
