"""README's demo on a bucket: two days of real flights, one of them killed in the middle."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dstl_dagster.testing.gcs_server import GCSServer
from tests.readme import demo_command

pytestmark = [pytest.mark.spark, pytest.mark.dagster, pytest.mark.kill, pytest.mark.timeout(600)]


def test_two_days(tmp_path: Path) -> None:
    """State and reports are those of the raw CSV, and all of them are in the bucket."""
    with GCSServer() as server:
        server.create_bucket("flights")
        command = [*demo_command(), "--days", "2"]
        done = subprocess.run(
            [*command, "--folder", str(tmp_path / "d"), "--store", "gs://flights/demo"],
            env={**os.environ, "STORAGE_EMULATOR_HOST": server.url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "kill -9 while it writes" in done.stdout
        assert done.stdout.count("equal") == 4
        assert server.raw_read("flights", "demo/reports/2013-01-02/delays.jsonl")
    assert list((tmp_path / "d" / "store").iterdir()) == []
