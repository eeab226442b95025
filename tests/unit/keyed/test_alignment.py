"""Rows of a state are aligned in memory, wherever in a file they begin: Arrow warns of others on stderr."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.keyed import diff_checkpoints
from dstl_dagster.storage import open_store

COUNT = 20_000


def rows_of(first: int) -> pa.Table:
    ids = np.arange(first, first + COUNT)
    columns = {
        "id": ids,
        "name": [f"{number:x}" for number in ids.tolist()],
        "value": np.full(COUNT, first),
        "price": pa.array(ids).cast(pa.decimal128(19, 0)),
    }
    return pa.table(columns)


@pytest.mark.parametrize("compressed", ["true", "false"])
@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_reads_and_joins_say_nothing(
    scheme: str, compressed: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither a diff, a merge, nor a join of the rows that were read, of large key groups."""
    uri = tmp_path.as_uri() if scheme == "file" else f"memory://aligned-{compressed}"
    options = {"dstl.dfs.compression.enabled": compressed}
    for day, first in (("monday", 0), ("tuesday", COUNT // 2)):
        with dstl.open_batch(uri, "job", idempotency_key=day, options=options) as batch:
            batch.write_state(rows_of(first), operator="op", keys=["id", "name"], max_parallelism=2)
    with dstl.open_batch(uri, "job", idempotency_key="wednesday", options=options) as batch:
        update, schema = {"value": "new.value"}, "id BIGINT, name STRING, value BIGINT, price DECIMAL(19, 0)"
        batch.merge_state(rows_of(7), operator="op", keys=["id", "name"], update=update, schema=schema)
    store = open_store(uri)
    one, two, _ = CheckpointCoordinator("job", store).list()
    found = [*diff_checkpoints(store, one.manifest, two.manifest, "op")]
    assert sum(each.added.num_rows for each in found) == COUNT // 2
    state = dstl.read_state(uri, "job", "op").to_arrow()
    assert state.join(state, ["id", "name", "price"], right_suffix="_too").num_rows == state.num_rows
    assert capfd.readouterr().err == ""
