"""What a Python worker of Spark imports for a task of ours before its first row."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_HEAVY = ("dagster", "google", "pyspark", "pandas", "py4j", "click", "rich", "concurrent.futures.process")
_NOT_NEEDED = (
    "dstl_dagster.checkpoint",
    "dstl_dagster.orchestration",
    "dstl_dagster.cli",
    "dstl_dagster.testing",
    "dstl_dagster.timeline.timeline",
    "dstl_dagster.recoverable.commit",
    "dstl_dagster.storage.gcs.store",
    "dstl_dagster.keyed.merge",
)


def imported_by(module: str) -> list[str]:
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("module", "at_most"), [("merge_tasks", 149), ("state_tasks", 147)])
def test_a_task_imports_only_what_it_needs(module: str, at_most: int) -> None:
    """Neither Dagster, Google's libraries nor the steps of a checkpoint; PySpark is the worker's own."""
    found = imported_by(f"dstl_dagster.spark.dataframes.{module}")
    roots = {name.partition(".")[0] for name in found}
    assert not roots & {each for each in _HEAVY if "." not in each} - {"google"}
    assert not [name for name in found if name.startswith("google.")]
    assert not [name for name in found for each in _NOT_NEEDED if name == each or name.startswith(f"{each}.")]
    own = [name for name in found if name.startswith("dstl_dagster")]
    assert len(own) <= at_most


def test_a_read_is_planned_without_the_steps_of_a_checkpoint() -> None:
    """Spark starts processes of their own to plan a read, which import all they need, twice."""
    found = imported_by("dstl_dagster.spark.data_source")
    steps = [f"dstl_dagster.checkpoint.{name}" for name in ("coordinator", "steps", "batch")]
    writing = [
        "dstl_dagster.spark.dataframes.state",
        "dstl_dagster.spark.sink.writers",
        "dstl_dagster.keyed.merge",
    ]
    assert not set(found) & {*steps, *writing}
    assert len([name for name in found if name.startswith("dstl_dagster")]) <= 179
