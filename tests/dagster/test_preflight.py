"""The check of the bucket when a resource is set up: logged once, and never blocking."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator

import dagster as dg
import pytest

from dstl_dagster import ChangelogStorageResource, RecoverableWriterResource
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault

pytestmark = pytest.mark.dagster

_bucket_numbers = itertools.count(1)
BAD = {"retentionPolicy": {"retentionPeriod": "86400"}, "hierarchicalNamespace": {"enabled": True}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GCSServer]:
    with GCSServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture
def bucket() -> str:
    # Of its own for each test: a process looks at a bucket once.
    return f"preflight-{next(_bucket_numbers)}"


Run = Callable[..., list[tuple[int, str]]]


@pytest.fixture
def run() -> Run:
    """Runs a job with these resources; what it logged about buckets, as (level, message)."""

    def run_job(**resources: dg.ConfigurableResource[object]) -> list[tuple[int, str]]:
        @dg.op(required_resource_keys=set(resources))
        def work() -> None: ...

        @dg.job(resource_defs=resources)
        def one_step() -> None:
            work()

        with dg.DagsterInstance.ephemeral() as instance:
            result = one_step.execute_in_process(instance=instance)
            assert result.success
            return [
                (entry.level, entry.user_message)
                for entry in instance.all_logs(result.run_id)
                if entry.dagster_event is None and "gs://" in entry.user_message
            ]

    return run_job


def test_settings_are_in_the_runs_log(server: GCSServer, bucket: str, run: Run) -> None:
    """A setting that breaks a guarantee is a warning that names the consequence; others are notes."""
    server.create_bucket(bucket, **BAD)
    logged = run(changelog=ChangelogStorageResource(uri=f"gs://{bucket}/below"))
    assert [(level, message.split(": ")[1]) for level, message in logged] == [
        (logging.WARNING, "retention_policy"),
        (logging.INFO, "hierarchical_namespace"),
    ]
    assert f"gs://{bucket}: " in logged[0][1]
    assert "forbids any deletion for 1 days" in logged[0][1]


def test_a_lifecycle_rule_is_logged(server: GCSServer, bucket: str, run: Run) -> None:
    """A rule that deletes what a checkpoint may need is a warning."""
    rule = {"action": {"type": "Delete"}, "condition": {"age": 3}}
    server.create_bucket(bucket, lifecycle={"rule": [rule]})
    ((level, message),) = run(changelog=ChangelogStorageResource(uri=f"gs://{bucket}"))
    assert level == logging.WARNING
    assert "older than 3 days" in message


def test_it_only_reads_and_only_once(server: GCSServer, bucket: str, run: Run) -> None:
    """A process asks once about a bucket, however many resources and runs name it, and writes nothing."""
    server.create_bucket(bucket, **BAD)
    resources = {
        "changelog": ChangelogStorageResource(uri=f"gs://{bucket}/state"),
        "files": RecoverableWriterResource(uri=f"gs://{bucket}/files"),
    }
    assert len(run(**resources)) == 2
    assert set(server.counts) == {"buckets.testPermissions", "buckets.get"}
    server.reset_counts()
    assert run(**resources) == []
    assert server.counts == {}


def test_the_temporary_bucket_is_looked_at(server: GCSServer, bucket: str, run: Run) -> None:
    """Components that cannot be deleted in their own bucket are as bad: it is checked as well."""
    server.create_bucket(bucket)
    server.create_bucket(f"{bucket}-scratch", versioning={"enabled": True})
    files = {"gs.writer.temporary.bucket.name": f"{bucket}-scratch"}
    ((_, message),) = run(changelog=ChangelogStorageResource(uri=f"gs://{bucket}", options=files))
    assert message.startswith(f"gs://{bucket}-scratch: versioning: ")


def test_the_output_folder_is_looked_at(server: GCSServer, bucket: str, run: Run) -> None:
    """The same for the folder of the files."""
    server.create_bucket(bucket, **BAD)
    assert len(run(files=RecoverableWriterResource(uri=f"gs://{bucket}/out"))) == 2


@pytest.mark.parametrize(
    "fault",
    [
        ServerFault(FaultKind.STATUS, "buckets.*", status=403, times=None),
        ServerFault(FaultKind.STATUS, "buckets.*", status=503, times=None),
        ServerFault(FaultKind.RESET, "buckets.*", times=None),
        ServerFault(FaultKind.CUT, "buckets.*", times=None),
    ],
    ids=lambda fault: f"{fault.kind.value}-{fault.status}",
)
def test_what_cannot_be_seen_is_a_note(server: GCSServer, bucket: str, run: Run, fault: ServerFault) -> None:
    """Without the permission, or without an answer, the run goes on with a note and no warning."""
    server.create_bucket(bucket, **BAD)
    server.faults.add(fault)
    logged = run(changelog=ChangelogStorageResource(uri=f"gs://{bucket}"))
    assert logged
    assert {level for level, _ in logged} == {logging.INFO}


def test_no_server_stops_nothing(monkeypatch: pytest.MonkeyPatch, bucket: str, run: Run) -> None:
    """An unreachable service is left to the step that needs it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    logged = run(changelog=ChangelogStorageResource(uri=f"gs://{bucket}"))
    assert {level for level, _ in logged} == {logging.INFO}


def test_other_stores_are_not_looked_at(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Local and memory stores have no bucket to check."""
    monkeypatch.setattr("dstl_dagster.orchestration.inject.resources.open_store", pytest.fail)
    for uri in ("memory://preflight/x", "file:///preflight"):
        run(changelog=ChangelogStorageResource(uri=uri), files=RecoverableWriterResource(uri=uri))


def test_definitions_load_without_a_look(server: GCSServer, bucket: str) -> None:
    """Building and validating definitions makes no request."""
    changelog = ChangelogStorageResource(uri=f"gs://{bucket}")

    @dg.asset
    def state(changelog: ChangelogStorageResource) -> None: ...

    definitions = dg.Definitions(assets=[state], resources={"changelog": changelog})
    dg.Definitions.validate_loadable(definitions)
    assert server.counts == {}
