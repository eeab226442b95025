"""Jobs, stores and savepoints that do not exist: an error with the nearest names, and never "in order"."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli import main
from dstl_dagster.errors import NotFoundError
from dstl_dagster.storage import LocalObjectStore, MemoryObjectStore

COMMANDS = [
    "abort --yes",
    "audit",
    "correct x",
    "diff 1 2",
    "export 1 file:///nowhere",
    "gc",
    "history id=1",
    "list",
    "materialize",
    "operator",
    "release mark",
    "resolve 1 out/x --keep",
    "restore 1 --yes",
    "restore --newest-verified --yes",
    "savepoint 1 mark",
    "schema",
    "show 1",
    "source",
    "timeline",
    "verify",
]


@pytest.fixture
def folder(tmp_path):
    """A store with two jobs."""
    store = LocalObjectStore(tmp_path / "orders-store", durable=False)
    for job in ("orders", "returns"):
        coordinator = CheckpointCoordinator(job, store, owner="test")
        attempt = coordinator.trigger()
        coordinator.record(attempt)
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    coordinator.savepoint(1, "before-migration")
    return tmp_path / "orders-store"


def run(*words: str, store: str, job: str | None = "orders"):
    environment = {"DSTL_STORE": store, "DSTL_JOB": job}
    return CliRunner(env=environment).invoke(main, [*words])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistyped_job_is_an_error(folder, command):
    """Of every command, by the same sentence, and nothing is written."""
    before = sorted(folder.rglob("*"))
    result = run("checkpoints", *command.split(), store=folder.as_uri(), job="ordres")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"dstl: there is no job 'ordres' in {folder.as_uri()}; did you mean 'orders'? `dstl jobs list` shows "
        "all [no_checkpoint]"
    ]
    assert sorted(folder.rglob("*")) == before


def test_the_commands_are_all_of_them():
    """That take a job's name: a new one belongs into the list."""
    listed = CliRunner().invoke(main, ["checkpoints", "--help"]).output
    names = {line.split()[0] for line in listed.partition("Commands:")[2].splitlines() if line.strip()}
    assert names == {command.split()[0] for command in COMMANDS}


@pytest.mark.parametrize("command", ["show ordres", "drop ordres --yes"])
def test_a_mistyped_job_of_the_store(folder, command):
    """Of the commands that take it as an argument."""
    result = run("jobs", *command.split(), store=folder.as_uri(), job=None)
    assert result.exit_code == 1
    assert "there is no job 'ordres'" in result.stderr
    assert "did you mean 'orders'?" in result.stderr


@pytest.mark.parametrize("command", ["jobs list", "jobs show orders", "checkpoints audit"])
def test_a_mistyped_folder_is_an_error(folder, command):
    """It is named with its nearest sibling, and not made."""
    wrong = folder.with_name("order-store")
    result = run(*command.split(), store=wrong.as_uri())
    assert result.exit_code == 1
    assert f"there is no folder {wrong}" in result.stderr
    assert "did you mean 'orders-store'?" in result.stderr
    assert not wrong.exists()
    assert run("storage", "forget-taken", wrong.as_uri(), store="").exit_code == 1


def test_a_mistyped_prefix_is_an_error():
    """A bucket has no folders: nothing lies below it."""
    store = MemoryObjectStore()
    assert run("jobs", "list", store=store.uri).exit_code == 0
    result = run("jobs", "list", store=f"{store.uri}/prod")
    assert result.exit_code == 1
    assert "there is nothing below" in result.stderr


def test_a_mistyped_savepoint_is_an_error(folder):
    """It is not released, and the nearest one is named."""
    result = run("checkpoints", "release", "before-migraton", store=folder.as_uri(), job="returns")
    assert result.exit_code == 1
    assert "has no savepoint 'before-migraton'; did you mean 'before-migration'?" in result.stderr


def test_an_audit_in_python_of_a_job_that_is_not_there(folder):
    """A probe of a mistyped job is not green."""
    store = LocalObjectStore(folder)
    with pytest.raises(NotFoundError, match="did you mean 'orders'"):
        CheckpointCoordinator("order", store).audit()


@pytest.mark.parametrize("command", [each for each in COMMANDS if each != "audit"])
def test_lost_last_records_are_an_error(folder, command):
    """Of every command but the one that lists what is left of them: an older job is not taken for the job."""
    coordinator = CheckpointCoordinator("orders", LocalObjectStore(folder), owner="test")
    attempt = coordinator.trigger()
    coordinator.record(attempt)
    coordinator.confirm(attempt)
    for record in sorted((folder / "dstl/orders/timeline").iterdir())[3:]:
        record.unlink()
    result = run("checkpoints", *command.split(), store=folder.as_uri())
    assert result.exit_code == 1
    assert "the last records of job 'orders' are missing: dstl/orders/manifests/" in result.stderr
    assert "LOST a record" in run("checkpoints", "audit", store=folder.as_uri()).stdout


def test_an_attempt_that_ended_is_no_lost_record(folder):
    """Nor one that is open: both have a manifest of a later checkpoint."""
    coordinator = CheckpointCoordinator("orders", LocalObjectStore(folder), owner="test")
    dead = coordinator.trigger()
    coordinator.record(dead)
    coordinator.abort(dead)
    coordinator.record(coordinator.trigger())
    assert run("checkpoints", "list", store=folder.as_uri()).exit_code == 0
