"""What importing and loading costs: nothing that a local run does not need, and no warnings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("dagster", "dagster_gcp", "dagster_pyspark", "google.cloud", "pandas", "pyspark", "py4j")


def _loaded_by(code: str, folder: Path) -> set[str]:
    """The names in `sys.modules` after running `code` in a fresh interpreter."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "DSTL_DEMO_FOLDER": str(folder)}
    environment.pop("DAGSTER_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def _heavy(modules: set[str], but: tuple[str, ...] = ()) -> list[str]:
    return [name for name in HEAVY if name in modules and name not in but]


def test_the_package_alone_imports_nothing_heavy(tmp_path: Path) -> None:
    """An executor that imports the package pays for no Dagster, PySpark, pandas or Google library."""
    assert _heavy(_loaded_by("import dstl_dagster", tmp_path)) == []


def test_the_package_adds_next_to_nothing_to_dagster(tmp_path: Path) -> None:
    """Beside `import dagster`, `import dstl_dagster` loads a handful of its own modules and no others."""
    dagster_alone = _loaded_by("import dagster", tmp_path)
    added = _loaded_by("import dagster, dstl_dagster", tmp_path) - dagster_alone
    assert len(added) < 10, added
    assert all(name.startswith("dstl_dagster") for name in added)


SECONDS = """
import dagster, time
began = time.process_time()
import dstl_dagster
dstl_dagster.__all__
print(time.process_time() - began)
"""


def test_the_package_adds_less_than_a_tenth_of_a_second(tmp_path: Path) -> None:
    """CPU seconds, so that a busy machine measures the same."""
    done = subprocess.run(
        [sys.executable, "-c", SECONDS], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert float(done.stdout) < 0.1


def test_a_task_imports_neither_dagster_nor_google(tmp_path: Path) -> None:
    """The code of a Spark task loads only what it uses."""
    modules = _loaded_by("import dstl_dagster.spark.dataframes.state_tasks", tmp_path)
    assert _heavy(modules) == []


STEPS = """
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.storage import LocalObjectStore
coordinator = CheckpointCoordinator("orders", LocalObjectStore({folder!r}))
attempt = coordinator.trigger()
coordinator.record(attempt, [], [])
coordinator.confirm(attempt)
coordinator.compose_commit()
coordinator.clean_up()
assert [each.checkpoint_id for each in coordinator.list()] == [1]
"""


def test_the_steps_need_no_arrow(tmp_path: Path) -> None:
    """What an op, a sensor or the command does about checkpoints, from trigger to clean-up, reads no rows."""
    modules = _loaded_by(STEPS.format(folder=str(tmp_path / "store")), tmp_path)
    assert not {"pyarrow", "numpy"} & modules


def test_a_face_alone_loads_nothing_behind_it(tmp_path: Path) -> None:
    """A name is loaded when it is used."""
    modules = _loaded_by(
        "import dstl_dagster.checkpoint, dstl_dagster.keyed, dstl_dagster.timeline", tmp_path
    )
    assert len([name for name in modules if name.startswith("dstl_dagster")]) < 8


def test_names_are_loaded_when_they_are_used(tmp_path: Path) -> None:
    """The ops and resources bring Dagster, but still no Spark and no Google library."""
    modules = _loaded_by(
        "from dstl_dagster import *\nimport dstl_dagster\nfor name in dstl_dagster.__all__:\n"
        "    getattr(dstl_dagster, name)",
        tmp_path,
    )
    assert _heavy(modules, but=("dagster",)) == []


LOAD = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import dagster as dg
    import definitions
    dg.Definitions.validate_loadable(definitions.defs)
    definitions.defs.resolve_job_def("nyc_flights_day")
assert not caught, [str(each) for each in caught]
"""


def test_definitions_load_without_spark_google_or_warnings(tmp_path: Path) -> None:
    """`definitions.py` is valid, starts no JVM, touches no file, and warns of nothing."""
    folder = tmp_path / "not there"
    modules = _loaded_by(LOAD, folder)
    assert _heavy(modules, but=("dagster",)) == []
    assert not folder.exists()


@pytest.mark.dagster
def test_the_workspace_loads(tmp_path: Path) -> None:
    """`workspace.yaml` names definitions that Dagster's own command accepts, silently."""
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(ROOT / "workspace.yaml")],
        cwd=tmp_path,
        env={**os.environ, "DAGSTER_HOME": str(tmp_path), "DSTL_DEMO_FOLDER": str(tmp_path / "demo")},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    # The command itself warns of a newer one.
    warned = [line for line in output.splitlines() if "Warning: " in line]
    assert not [line for line in warned if "definitions_validate_command" not in line]
    assert not (tmp_path / "demo").exists()
