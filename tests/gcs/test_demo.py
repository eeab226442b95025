"""README's demo on a bucket: a day of real flights, killed in the middle and run again.

The long form has two days, and every answer of the bucket is 50 ms late.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import dagster as dg
import pytest

from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_flights.runs import LOCATION_TAG
from tests.readme import demo_command

pytestmark = [pytest.mark.spark, pytest.mark.dagster, pytest.mark.kill, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("days", "late_seconds"), [(1, 0.0), pytest.param(2, 0.05, marks=pytest.mark.soak)])
def test_a_killed_day(tmp_path: Path, days: int, late_seconds: float) -> None:
    """State and reports are those of the raw CSV, and all are in the bucket. Dagster's page has the runs."""
    with GCSServer(one_update_a_second=True) as server:
        server.create_bucket("flights")
        if late_seconds:
            server.faults.add(ServerFault(FaultKind.LATENCY, seconds=late_seconds, times=None))
        command = [*demo_command(), "--days", str(days)]
        done = subprocess.run(
            [*command, "--folder", str(tmp_path / "d"), "--store", "gs://flights/demo"],
            env={**os.environ, "STORAGE_EMULATOR_HOST": server.url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "update kill -9 while it writes" in done.stdout
        assert f"DAGSTER_HOME={tmp_path / 'd' / 'dagster'}" in done.stdout, "the page has these runs"
        assert done.stdout.count("equal") == 4
        assert '"uri"' not in done.stdout, "its steps print what they delete, to its log"
        assert server.raw_read("flights", "demo/reports/2013-01-01/delays.jsonl")
    assert list((tmp_path / "d" / "store").iterdir()) == []
    with dg.DagsterInstance.from_config(str(tmp_path / "d" / "dagster")) as instance:
        runs = instance.get_runs()
    assert {run.tags["dagster/partition"] for run in runs} == {
        f"2013-01-0{day}" for day in range(1, days + 1)
    }
    for run in runs:
        assert run.tags.items() >= LOCATION_TAG.items()
        own = {key: value for key, value in run.tags.items() if key.startswith("dstl/")}
        assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", str(own)), "no raw id"
