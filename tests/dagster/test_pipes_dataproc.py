"""Dataproc's own Pipes client launches a driver, which takes up its batch by what the client submits.

Google's Dataproc library is not installed here: of it, the client gets two classes and a service that runs
the program at once. The client itself, and all that it puts into the job, is dagster-gcp's.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster_pipes import PipesCliArgsParamsLoader, open_dagster_pipes

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.pipes import open_batch
from dstl_dagster.storage import open_store
from tests.dagster.pipes_driver import CONTENT, NAME, write_file

pytestmark = [
    pytest.mark.dagster,
    pytest.mark.filterwarnings("ignore"),
]  # of dagster-gcp and Google's libraries

DONE = "done"


class Service:
    """Runs a submitted job to its end, in this process, with nothing but the job's own arguments."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.submitted: list[SimpleNamespace] = []

    def submit_job(self, project_id: str, region: str, job: SimpleNamespace) -> SimpleNamespace:
        self.submitted.append(job)
        self._patch.setattr("dagster_pipes.PipesContext._instance", None)
        self._patch.setattr(sys, "argv", [job.pyspark_job.main_python_file_uri, *job.pyspark_job.args])
        loader = PipesCliArgsParamsLoader()
        with open_dagster_pipes(params_loader=loader) as pipes, open_batch(pipes) as batch:
            write_file(batch)
        return SimpleNamespace(job_uuid="1", done=True, status=SimpleNamespace(state=DONE, details=""))


@pytest.fixture
def dataproc(monkeypatch: pytest.MonkeyPatch) -> Any:
    """dagster-gcp's class."""
    service, types, jobs = (
        ModuleType(f"google.cloud.dataproc_v1{name}") for name in ("", ".types", ".types.jobs")
    )
    service.JobControllerClient = Service  # type: ignore[attr-defined]
    jobs.Job = jobs.SubmitJobRequest = SimpleNamespace  # type: ignore[attr-defined]
    jobs.JobStatus = SimpleNamespace(State=SimpleNamespace(DONE=DONE))  # type: ignore[attr-defined]
    for module in (service, types, jobs):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    from dagster_gcp.pipes import PipesDataprocJobClient  # needs the modules above

    return PipesDataprocJobClient


def test_a_job_of_dataproc_takes_up_the_batch(
    dataproc: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its arguments, beside the program's own."""
    service = Service(monkeypatch)
    pipes = dataproc(message_reader=dg.PipesTempFileMessageReader(), client=service)

    @dg.op(out=dg.Out(dict))
    def update(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> dg.Output[dict]:
        with changelog.pipes_checkpoint(context, "orders") as batch:
            program = SimpleNamespace(main_python_file_uri="gs://bucket/jobs/orders.py", args=["--own"])
            job = SimpleNamespace(labels={}, pyspark_job=program)
            params = {"project_id": "project", "region": "region", "job": job}
            pipes.run(context=context, extras=batch.extras, submit_job_params=params)
        return batch.reference

    uri = (tmp_path / "store").as_uri()
    job = dstl.build_checkpoint_job(
        "orders", update, resource_defs={"changelog": dstl.ChangelogStorageResource(uri=uri)}
    )
    with dg.DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(instance=instance).success
    coordinator = CheckpointCoordinator("orders", open_store(uri))
    assert coordinator.store.get(NAME) == CONTENT
    (submitted,) = service.submitted
    assert submitted.pyspark_job.args[:2] == ["--own", "--dagster-pipes-context"]
