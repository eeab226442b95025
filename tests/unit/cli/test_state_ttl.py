"""What the command says of a state's TTL."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.cli import main
from dstl_dagster.keyed import write_rows
from dstl_dagster.settings import StateTtlConfig
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import open_store

SEEN = pa.timestamp("us", "UTC")
SCHEMA = StateSchema.of(pa.schema({"user": pa.string(), "seen_at": SEEN}), ["user"])


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ([2], "rows end 14 d after seen_at (event time); now is 2026-01-02 00:00:00 UTC"),
        ([None], "rows end 14 d after seen_at (event time); no row had a time yet"),
    ],
)
def test_the_columns_tell_which_of_them_ends_rows(tmp_path: Path, days: list[int | None], said: str) -> None:
    """And where "now" is; as JSON, what the manifest has."""
    coordinator = CheckpointCoordinator("web", open_store(tmp_path.as_uri()))
    batch = Batch.open(coordinator)
    times = [None if day is None else datetime(2026, 1, day, tzinfo=UTC) for day in days]
    rows = pa.table({"user": ["ann"], "seen_at": pa.array(times, SEEN)})
    ttl = batch.ttl_to_write("sessions", SCHEMA, StateTtlConfig.event_time("seen_at", "14 d"))
    batch.add(write_rows(rows, batch.attempt, coordinator.store, operator="sessions", schema=SCHEMA, ttl=ttl))
    made = batch.complete()
    command = ["checkpoints", "schema", "--store", tmp_path.as_uri(), "--job", "web"]
    shown = CliRunner().invoke(main, command)
    assert (shown.exit_code, shown.output.splitlines()[-1]) == (0, said)
    as_json = CliRunner().invoke(main, [*command, "--json"])
    recorded = made.manifest.operators["sessions"].report.ttl
    assert recorded is not None
    assert json.loads(as_json.output)["ttl"] == recorded.to_json()
