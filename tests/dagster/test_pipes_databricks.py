"""Databricks' own Pipes client launches a driver, which takes up its batch by what the client submits.

dagster-databricks is not among what the tests install: these run where somebody has installed it. The client,
its SDK's classes of DBFS and of tasks, and all that they put into the job are theirs; ours is the service
that answers them.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import base64
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import dagster_pipes
import pytest

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.pipes import open_batch
from dstl_dagster.storage import open_store
from tests.dagster.pipes_driver import CONTENT, NAME, write_file

databricks = pytest.importorskip("dagster_databricks", reason="dagster-databricks is not installed")
jobs = pytest.importorskip("databricks.sdk.service.jobs")

pytestmark = [pytest.mark.dagster, pytest.mark.soak, pytest.mark.filterwarnings("ignore")]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "dataproc-databricks.md"


class Workspace:
    """A workspace's DBFS, in a folder, and its jobs, each run to its end when it is submitted."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.root = folder
        self.api_client = self.jobs = self
        self.clusters = SimpleNamespace(
            get=lambda cluster_id: SimpleNamespace(as_dict=lambda: {"cluster_id": cluster_id})
        )
        self.submitted: list[Any] = []
        self._patch = patch
        self._fails = fails

    def do(self, method: str, path: str, **request: Any) -> Any:
        """DBFS by its REST interface."""
        call = path.removeprefix("/api/2.0/dbfs/")
        asked = request.get("body") or request["query"]
        place = self.root / asked["path"].lstrip("/")
        match call:
            case "mkdirs":
                place.mkdir(parents=True)
            case "put":
                place.write_bytes(base64.b64decode(asked["contents"]))
            case "delete":
                shutil.rmtree(place)
            case "get-status":
                return {"path": asked["path"], "is_dir": place.is_dir()}
            case "read":  # a missing file is an OSError, as the SDK's is
                return {"data": base64.b64encode(place.read_bytes()).decode()}
            case _:
                raise AssertionError((method, path))
        return {}

    def submit(self, *, tasks: list[Any]) -> Any:
        (task,) = tasks
        self.submitted.append(task)
        cluster = task.new_cluster
        with self._patch.context() as patch:
            patch.setattr("dagster_pipes.PipesContext._instance", None)
            patch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: _of_databricks())
            join = os.path.join
            mounted = str(self.root)
            patch.setattr(
                dagster_pipes.os.path,
                "join",
                lambda *parts: join(mounted if parts[0] == "/dbfs" else parts[0], *parts[1:]),
            )
            for name, value in ({} if cluster is None else cluster.spark_env_vars).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["orders.py", *(task.spark_python_task.parameters or [])])
            self._drive(dagster_pipes.PipesCliArgsParamsLoader() if cluster is None else None)
        return SimpleNamespace(bind=lambda: {"run_id": len(self.submitted)})

    def _drive(self, params_loader: Any) -> None:
        """The program, as the page shows it."""
        with (
            dagster_pipes.open_dagster_pipes(
                params_loader=params_loader,
                context_loader=dagster_pipes.PipesDbfsContextLoader(),
                message_writer=dagster_pipes.PipesDbfsMessageWriter(interval=0.05),
            ) as pipes,
            open_batch(pipes) as batch,
        ):
            if not self._fails:
                write_file(batch)

    def get_run(self, run_id: int) -> Any:
        ended = jobs.RunState(
            life_cycle_state=jobs.RunLifeCycleState.TERMINATED,
            result_state=jobs.RunResultState.FAILED if self._fails else jobs.RunResultState.SUCCESS,
            state_message="the driver died",
        )
        return jobs.Run(run_id=run_id, state=ended)


def _of_databricks() -> Any:
    return SimpleNamespace(conf=SimpleNamespace(get=lambda name: None))


def task_of_the_page() -> dict[str, Any]:
    """What the page submits."""
    block = re.search(r"jobs\.SubmitTask\.from_dict\((\{.*?\n\})\)", PAGE.read_text(), re.DOTALL)
    assert block is not None
    return eval(block[1], {"jobs": jobs})


def run(workspace: Workspace, task: dict[str, Any], store: str) -> dg.ExecuteInProcessResult:
    reader = databricks.PipesDbfsMessageReader(client=workspace, interval=0.05)
    pipes = databricks.PipesDatabricksClient(
        client=workspace, message_reader=reader, poll_interval_seconds=0.05
    )

    @dg.op(out=dg.Out(dict))
    def update(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> dg.Output[dict]:
        with changelog.pipes_checkpoint(context, "orders") as batch:
            pipes.run(task=jobs.SubmitTask.from_dict(task), context=context, extras=batch.extras)
        return batch.reference

    job = dstl.build_checkpoint_job(
        "orders", update, resource_defs={"changelog": dstl.ChangelogStorageResource(uri=store)}
    )
    with dg.DagsterInstance.ephemeral() as instance:
        return job.execute_in_process(instance=instance, raise_on_error=False)


@pytest.mark.parametrize("place", ["new cluster", "existing cluster"])
def test_a_job_of_databricks_takes_up_the_batch(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a new cluster's environment, or by parameters beside the program's own; the context is on DBFS."""
    workspace, task = Workspace(tmp_path / "dbfs", monkeypatch), task_of_the_page()
    if place == "existing cluster":
        del task["new_cluster"]
        task["existing_cluster_id"] = "daily"
        task["spark_python_task"]["parameters"] = ["--own"]
    store = (tmp_path / "store").as_uri()
    assert run(workspace, task, store).success
    coordinator = CheckpointCoordinator("orders", open_store(store))
    assert coordinator.store.get(NAME) == CONTENT
    (submitted,) = workspace.submitted
    assert submitted.libraries[0].pypi.package == "dstl-dagster[pipes,gcs]"
    if place == "existing cluster":
        assert submitted.spark_python_task.parameters[0] == "--own"


def test_a_run_that_fails_there_aborts_its_attempt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the client tells it: no report is believed that is not there."""
    store = (tmp_path / "store").as_uri()
    assert not run(Workspace(tmp_path / "dbfs", monkeypatch, fails=True), task_of_the_page(), store).success
    kinds = [record.kind for record in CheckpointCoordinator("orders", open_store(store)).timeline.records()]
    assert kinds == ["opened", "aborted"]
