"""A project as `create-dagster` makes it gets our assets, by `dg scaffold` and by hand, and runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dstl_dagster as dstl
from tests.dagster.test_component import TYPE

ASSET = "dstl_dagster.components.CheckpointedAssetComponent"
SCAFFOLDED = [{"customer": "ada", "amount": 1.0}]

pytestmark = pytest.mark.dagster

SCAFFOLD = {
    "pyproject.toml": """\
[project]
name = "shop"
requires-python = ">=3.10,<3.15"
version = "0.1.0"
dependencies = [
    "dagster==1.13.27",
]

[dependency-groups]
dev = [
    "dagster-webserver",
    "dagster-dg-cli",
]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
force-include = { "pyproject.toml" = "pyproject.toml" }

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
registry_modules = [
    "shop.components.*",
]
""",
    "src/shop/__init__.py": "",
    "src/shop/defs/__init__.py": "",
    "src/shop/definitions.py": """\
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
""",
    "tests/__init__.py": "",
}
"""What `create-dagster project shop` 1.13.27 writes, but for its README and `.gitignore`."""

BY_HAND = """\
import os

import dagster as dg
import dstl_dagster as dstl
import pyarrow as pa


@dg.asset(io_manager_key="state", metadata={"dstl/keys": ["customer"]})
def customers() -> pa.Table:
    return pa.table({"customer": ["ada", "bob"], "city": ["London", "Rome"]})


@dg.definitions
def kept():
    changelog = dstl.ChangelogStorageResource(uri=os.environ["STORE"])
    return dg.Definitions(
        assets=[customers], resources={"state": dstl.KeyedStateIOManager(changelog=changelog)}
    )
"""

PROGRAM = """
import sys
from dagster_dg_cli.cli import cli

history, asset, store = sys.argv[1:]
scaffold = ["scaffold", "defs", history, "history", "--job", "customers", "--store", store]
cli.main(scaffold, standalone_mode=False)
for job, form in (("orders", "yaml"), ("clicks", "python")):
    scaffold = ["scaffold", "defs", asset, f"marts/{job}", "--job", job, "--store", store, "--format", form]
    cli.main([*scaffold, "--key", "customer"], standalone_mode=False)

import dagster as dg
from shop.definitions import defs

loaded = defs()
with dg.DagsterInstance.ephemeral() as instance:
    everything = loaded.resolve_implicit_global_asset_job_def()
    chosen = [dg.AssetKey("customers"), dg.AssetKey(["orders", "rows"]), dg.AssetKey(["clicks", "rows"])]
    assert everything.execute_in_process(instance=instance, asset_selection=chosen).success
    assert loaded.resolve_job_def("customers_verify").execute_in_process(instance=instance).success
"""
"""One process: each start of `dg` costs seconds."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    for name, text in SCAFFOLD.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def environment_of(project: Path, **more: str) -> dict[str, str]:
    path = f"{project / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, **more, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    environment.pop("DAGSTER_HOME", None)
    return environment


def test_both_ways_in_work(project: Path, tmp_path: Path) -> None:
    """An asset in a file of `defs`, and the component of its job, whose jobs read what the asset wrote. And
    the component of an asset, in YAML and in Python, with its function beside it, as they are scaffolded.
    """
    store = (tmp_path / "store").as_uri()
    (project / "src/shop/defs/customers.py").write_text(BY_HAND)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, TYPE, ASSET, store],
        cwd=project,
        env=environment_of(project, STORE=store),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checkpoint 1 of customers were read back, all intact" in done.stderr
    rows = dstl.read_state(store, "customers", "customers").to_arrow().to_pylist()
    assert {row["customer"]: row["city"] for row in rows} == {"ada": "London", "bob": "Rome"}
    for job in ("orders", "clicks"):
        assert dstl.read_state(store, job, "rows").to_arrow().to_pylist() == SCAFFOLDED


@pytest.mark.soak
@pytest.mark.parametrize("form", ["yaml", "python"])
def test_an_empty_project_launches_what_is_scaffolded(form: str, project: Path, tmp_path: Path) -> None:
    """By the commands that a person types, without an edit, in less than 90 s of processor time."""
    store = (tmp_path / "store").as_uri()
    what = ["--job", "orders", "--store", store, "--key", "customer", "--format", form]
    before = os.times()
    for command in (["scaffold", "defs", ASSET, "orders", *what], ["launch", "--assets", "orders/rows"]):
        done = subprocess.run(
            [sys.executable, "-m", "dagster_dg_cli.cli", *command],
            cwd=project,
            env=environment_of(project),
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 90
    assert dstl.read_state(store, "orders", "rows").to_arrow().to_pylist() == SCAFFOLDED
