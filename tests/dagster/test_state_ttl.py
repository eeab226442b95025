"""State that ends, of an ordinary asset."""

# No postponed annotations: Dagster reads them as objects.

from datetime import datetime
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.storage import open_store

pytestmark = [
    pytest.mark.dagster,
    # Dagster's own, for a resource in a resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")
TTL = {"dstl/keys": ["customer"], "dstl/ttl": "36 h", "dstl/ttl_column": "seen_at"}


@dg.asset(partitions_def=DAYS, metadata=TTL)
def latest(context: dg.AssetExecutionContext) -> pa.Table:
    seen_at = pa.array([datetime.fromisoformat(context.partition_key)], pa.timestamp("us"))
    return pa.table({"customer": [f"of {context.partition_key}"], "seen_at": seen_at})


def test_an_assets_rows_end_by_its_metadata(tmp_path: Path) -> None:
    """What the first day wrote has expired on the third, by the rows' own time."""
    changelog = dstl.ChangelogStorageResource(uri=tmp_path.as_uri())
    resources = {"io_manager": dstl.KeyedStateIOManager(changelog=changelog)}
    with dg.DagsterInstance.ephemeral() as instance:
        for day in ("2024-01-01", "2024-01-02", "2024-01-03"):
            done = dg.materialize([latest], instance=instance, resources=resources, partition_key=day)
            assert done.success
    coordinator = CheckpointCoordinator("latest", open_store(tmp_path.as_uri()))
    found = [
        sorted(coordinator.read_state("latest", at).to_arrow().column("customer").to_pylist())
        for at in (1, 2, 3)
    ]
    first, second, third = (f"of 2024-01-0{day}" for day in (1, 2, 3))
    assert found == [[first], [first, second], [second, third]]
