"""The executor whose steps start quickly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dstl_dagster import build_step_executor
from dstl_dagster.errors import InvalidInputError
from dstl_flights.assets import build_definitions, day_job

pytestmark = pytest.mark.dagster


def test_a_step_is_forked_with_its_imports(tmp_path: Path) -> None:
    """A real run: its step is neither in the run's process nor started by it."""
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    environment = os.environ | {"DAGSTER_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "tests.dagster.forked"], env=environment, check=True)


def test_mistakes_are_refused_where_they_are_made() -> None:
    """A text where modules are wanted; no step at a time."""
    with pytest.raises(InvalidInputError, match=r"preload: .*in a list, such as \['shop'\]"):
        build_step_executor(preload="shop")
    with pytest.raises(InvalidInputError, match="max_concurrent is 1 or more, not 0"):
        build_step_executor(max_concurrent=0)


def test_a_run_of_the_example_is_one_process() -> None:
    """Also by the button and in a backfill, whose job has nothing of `nyc_flights_day` but the asset."""
    repository = build_definitions().get_repository_def()
    executors = {name: repository.get_job(name).executor_def.name for name in ("__ASSET_JOB", day_job.name)}
    assert executors == {"__ASSET_JOB": "in_process", day_job.name: "multi_or_in_process_executor"}
