"""The component for YAML users: Dagster's own commands find, scaffold and check it; and what it builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

import dstl_dagster as dstl
from dstl_dagster import CheckpointLineageComponent, JobAssets
from dstl_dagster.components import CheckpointLineageComponent as Found
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.storage import open_store

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

TYPE = "dstl_dagster.components.CheckpointLineageComponent"
PROJECT = {
    "pyproject.toml": """\
[project]
name = "shop"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
""",
    "src/shop/__init__.py": "",
    "src/shop/defs/__init__.py": "",
    "src/shop/definitions.py": """\
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
""",
}
MORE = """\
  operators: [totals]
  deps: [raw/orders]
  options: {execution.checkpointing.num-retained: "30"}
  owners: ["team:data"]
  kinds: [gcs]
  freshness_hours: 36
  commit: true
  budget: {requests: 500, bytes: "10 gb", usd: 0.01}
  partitions_def: {type: daily, start_date: "2024-01-01"}
  retry_policy: {max_retries: 5, delay: 10}
  schedules: {cleanup: 5 * * * *}
  tags: {tier: 1}
  abort: true
---
type: dstl_dagster.components.CheckpointLineageComponent

attributes:
  job: clicks
  store: file:///data/clicks
"""
COMMANDS = """
import json, sys
from pathlib import Path
from dagster_dg_cli.cli import cli
commands, (file, more) = json.loads(sys.argv[1])
for command in commands:
    if command[0] == "check" and more:
        with Path(file).open("a") as appended:
            appended.write(more)
        more = ""
    print("::", *command, flush=True)
    cli.main(command, standalone_mode=False)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def dg_commands(project: Path, *commands: list[str], added: tuple[str, str] = ("", "")) -> list[str]:
    """What `dg` printed for each; one process, since each start of it costs seconds.

    `added`: a file, and what is appended to it before the first check.
    """
    path = os.pathsep.join([str(project / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    environment.pop("DAGSTER_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps([commands, added])],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return ("\n" + done.stdout).split("\n::")[1:]


def test_dagsters_commands_find_scaffold_and_check_it(project: Path) -> None:
    """`dg list components`, `scaffold defs`, then two jobs in YAML through `check yaml` and `check defs`."""
    scaffold = ["scaffold", "defs", TYPE, "orders", "--job", "orders", "--store", "file:///data/orders"]
    commands = (["list", "components", "--json"], scaffold, ["check", "yaml"], ["check", "defs"])
    defs = "src/shop/defs/orders/defs.yaml"
    listed, _, yaml, checked = dg_commands(project, *commands, added=(defs, MORE))
    assert TYPE in {each["key"] for each in json.loads(listed.partition("\n")[2])["items"]}
    assert "job: orders\n  store: file:///data/orders" in (project / defs).read_text()
    assert "validated successfully" in yaml
    assert "All definitions loaded successfully" in checked


@pytest.mark.soak
def test_dagsters_commands_check_the_checkout() -> None:
    """Its own example, by the settings in pyproject.toml."""
    (checked,) = dg_commands(Path(__file__).parents[2], ["check", "defs"])
    assert "All definitions loaded successfully" in checked


def built(**fields: Any) -> dg.Definitions:
    return CheckpointLineageComponent(**fields).build_defs(None)  # type: ignore[arg-type] # it asks nothing of it


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster's own call of pydantic
def test_a_field_that_is_none_is_refused_by_name() -> None:
    """A misspelled key in the YAML is an error."""
    with pytest.raises(Exception, match="num_retained"):
        CheckpointLineageComponent.resolve_from_yaml("{job: orders, store: 'file:///data', num_retained: 3}")


def test_it_makes_everything_of_a_job(days: Days) -> None:
    """Assets, checks, sensor, jobs and schedules, the last two stopped; nothing is read or started."""
    defs = built(job="orders", store="file:///not/there", operators=["totals"], deps=["raw/orders"])
    dg.Definitions.validate_loadable(defs)
    repository = defs.get_repository_def()
    assets = JobAssets("orders", operators=("totals",))
    made = {assets.state_key, assets.operator_key("totals"), assets.files_key, assets.checkpoints_key}
    assert made <= {spec.key for spec in defs.resolve_all_asset_specs()}
    assert {"commit", "cleanup", "materialize", "verify", "restore", "checks"} == {
        name.removeprefix("orders_") for name in repository.job_names if not name.startswith("__")
    }
    (sensor,) = repository.sensor_defs
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    assert len(repository.schedule_defs) == 4
    assert all(each.default_status is dg.DefaultScheduleStatus.STOPPED for each in repository.schedule_defs)


def test_two_jobs_in_two_stores_live_beside_each_other(days: Days, tmp_path: Path) -> None:
    """Each component's sensor, checks and jobs use its own store."""
    uris = {job: (tmp_path / job).as_uri() for job in ("days", "nights")}
    days.code.make_outside(uris["days"], "2024-01-01")
    defs = dg.Definitions.merge(*(built(job=job, store=uri) for job, uri in uris.items()))
    dg.Definitions.validate_loadable(defs)
    with dg.build_sensor_context(instance=days.instance) as context:
        said = {
            name: defs.resolve_sensor_def(f"{name}_checkpoints")(context).skip_reason.skip_message
            for name in uris
        }
    assert said == {"days": "slot 3: reported chk-00000001", "nights": "slot 0: nothing new"}
    result = defs.resolve_job_def("days_verify").execute_in_process(instance=days.instance)
    assert "checkpoint 1 of days" in days.logged(result)
    checks = dg.AssetSelection.checks(*defs.asset_checks)  # type: ignore[arg-type]
    job = dg.define_asset_job("checks", selection=checks)
    with_job = dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))
    result = with_job.resolve_job_def("checks").execute_in_process(instance=days.instance)
    said = result.get_asset_check_evaluations()
    found = {(each.asset_key.path[0], each.check_name): each.description for each in said}
    assert found["nights", "objects_present"] == "the job has no checkpoint yet"
    assert found["days", "objects_present"] != found["nights", "objects_present"]
    assert all(each.passed for each in said if each.check_name == "objects_present")
    assert not open_store(uris["nights"]).stat("dstl/nights/timeline/00000000000000000001")


@pytest.mark.parametrize("retained", [3, "3"])
def test_options_reach_the_coordinator(retained: Any, days: Days, tmp_path: Path) -> None:
    """Dagster makes a number of a quoted one in YAML: both are understood."""
    uri = (tmp_path / "store").as_uri()
    for number in range(1, 6):
        days.code.make_outside(uri, f"2024-01-0{number}", files=0)
    defs = built(job="days", store=uri, options={"execution.checkpointing.num-retained": retained})
    assert defs.resolve_job_def("days_cleanup").execute_in_process(instance=days.instance).success
    coordinator = dstl.ChangelogStorageResource(uri=uri).coordinator("days")
    assert [each.checkpoint_id for each in coordinator.list()] == [3, 4, 5]


def test_a_budget_is_checked_only_when_set(days: Days, tmp_path: Path) -> None:
    """Of the last checkpoint; a misspelled limit is refused by name."""
    uri = (tmp_path / "store").as_uri()
    days.code.make_outside(uri, "2024-01-01", files=0)
    names = {}
    for budget in ({}, {"requests": 0}):
        defs = built(job="days", store=uri, budget=budget)
        checks = dg.AssetSelection.checks(*defs.asset_checks)  # type: ignore[arg-type]
        with_job = dg.Definitions.merge(
            defs, dg.Definitions(jobs=[dg.define_asset_job("checks", selection=checks)])
        )
        result = with_job.resolve_job_def("checks").execute_in_process(instance=days.instance)
        names[len(budget)] = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert "cost_budget" not in names[0]
    assert names[1]["cost_budget"] is False
    with pytest.raises(InvalidInputError, match="did you mean requests"):
        built(job="days", store=uri, budget={"request": 1})


def test_step_6_is_left_to_dagster_only_when_asked(days: Days, tmp_path: Path) -> None:
    """With `commit` the sensor requests runs of the commit job; without it, never."""
    uri = (tmp_path / "store").as_uri()
    days.code.make_outside(uri, "2024-01-01", until="completed")
    for commit in (False, True):
        defs = built(job="days", store=uri, commit=commit)
        with dg.build_sensor_context(instance=days.instance) as context:
            result = defs.resolve_sensor_def("days_checkpoints")(context)
        assert len(result.run_requests) == commit


def test_the_library_is_registered() -> None:
    """Dagster knows us as a library that is not its own, and under one version."""
    from dagster_shared.libraries import DagsterLibraryRegistry

    assert Found is CheckpointLineageComponent
    assert DagsterLibraryRegistry.get()["dstl-dagster"] == dstl.__version__
