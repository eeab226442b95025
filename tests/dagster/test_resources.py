"""The resources and the schedule: options, secrets, life cycle."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster import ChangelogStorageResource, RecoverableWriterResource, SparkSessionResource
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError, UnavailableError
from dstl_dagster.storage import open_store
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_flights.assets import next_day

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster


@pytest.mark.parametrize(
    ("named", "value"),
    [
        ("execution.checkpointing.num-retained", "three"),
        ("execution.checkpointing.num-retained", "0"),
        ("dstl.checkpoint.reader-grace", "soon"),
    ],
)
def test_a_wrong_option_is_named(named: str, value: str, days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that only the run sees fails the first step, without a retry, and is named."""
    monkeypatch.setenv("DSTL_TEST_VALUE", value)
    days.options = {named: dg.EnvVar("DSTL_TEST_VALUE")}
    result = days.run("2024-01-01")
    step, message = days.failure(result)
    assert step == "update"
    assert named in message
    assert days.retries(result) == []
    assert days.objects() == {}


def test_a_wrong_writer_option_is_named(days: Days) -> None:
    """The same for the options of files."""
    changelog = ChangelogStorageResource(uri=days.uri, options={"gs.writer.chunk.sise": "8mb"})
    with pytest.raises(InvalidInputError, match=r"gs\.writer\.chunk\.sise"):
        changelog.coordinator("days")


@pytest.mark.parametrize("uri", ["/a/folder", "s3://bucket/x", "gs://", ""])
def test_a_wrong_uri_is_refused_by_the_first_step(
    uri: str, days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that only the run sees and cannot open: a user error, no retry, and the message shows the URI."""
    monkeypatch.setenv("DSTL_TEST_URI", uri)
    days.uri = dg.EnvVar("DSTL_TEST_URI")
    result = days.run("2024-01-01")
    assert repr(uri) in days.failure(result)[1]
    assert days.retries(result) == []


def test_no_secret_is_shown(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Google's libraries find in the environment is in no repr, event, config or stored object."""
    secret = "hunter2-in-the-environment"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS_JSON", secret)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"/run/{secret}.json")
    result = days.run("2024-01-01")
    shown = [
        repr(days.resource()),
        repr(RecoverableWriterResource(uri=days.uri)),
        repr(SparkSessionResource()),
        days.logged(result),
        json.dumps(days.instance.get_run_by_id(result.run_id).run_config),
        *(repr(event) for event in days.events("checkpoints") + days.events("files")),
        *(repr(days.store.get(name)) for name in days.objects()),
    ]
    assert not [text for text in shown if secret in text]


def test_a_resource_may_be_set_up_twice(days: Days) -> None:
    """Dagster may hold a resource as two objects in one process: both work on the same job."""
    days.run("2024-01-01")
    found = []
    for _ in range(2):
        with ChangelogStorageResource(uri=days.uri).process_config_and_initialize_cm() as resource:
            found.append(resource.coordinator("days"))
    assert found[0] is not found[1]
    assert [coordinator.latest().checkpoint_id for coordinator in found] == [1, 1]


def test_a_session_that_nobody_asked_for_never_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting the Spark resource up and tearing it down starts no JVM, and stops nothing."""
    monkeypatch.setattr("dstl_dagster.spark.local.session.local_session", pytest.fail)
    monkeypatch.setattr("dstl_dagster.spark.local.session.stop_session", pytest.fail)
    for _ in range(2):
        with SparkSessionResource().process_config_and_initialize_cm():
            pass


def test_the_session_is_stopped_by_the_resource_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One session per set-up, however often it is requested, stopped with its folder on teardown."""
    spark = _FakeSpark(monkeypatch)
    with SparkSessionResource().process_config_and_initialize_cm() as resource:
        assert resource.spark_session == resource.spark_session == "a session"
    assert spark.calls == ["start", "stop a session"]


def test_a_session_that_runs_already_is_used_and_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark that something else started in this process is still running after the run."""
    spark = _FakeSpark(monkeypatch, running="the caller's session")
    with SparkSessionResource().process_config_and_initialize_cm() as resource:
        assert resource.spark_session == "the caller's session"
    assert spark.calls == []


class _FakeSpark:
    """Stands for the one Spark of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, running: str | None = None) -> None:
        self.calls: list[str] = []
        self._running = running
        monkeypatch.setattr("dstl_dagster.spark.local.session.local_session", self._start)
        monkeypatch.setattr("dstl_dagster.spark.local.session.running_session", lambda: self._running)
        monkeypatch.setattr("dstl_dagster.spark.local.session.stop_session", self._stop)

    def _start(self, *_args: object, **_kwargs: object) -> str:
        self.calls.append("start")
        self._running = "a session"
        return self._running

    def _stop(self, session: str) -> None:
        self.calls.append(f"stop {session}")


class _Clients(dg.ConfigurableResource):
    """Like dagster-gcp's `GCSResource`: built from configuration, creates a client on demand."""

    secret: str = ""

    def get_client(self) -> Any:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        assert self.secret == "hunter2-of-the-client"
        return storage.Client(project="test", credentials=AnonymousCredentials())


# Dagster's own code reads it, for any nested resource.
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_a_client_of_a_nested_resource_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials come from `gcs`; a secret of it is an EnvVar, and is shown nowhere."""
    monkeypatch.setenv("DSTL_TEST_SECRET", "hunter2-of-the-client")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    changelog = ChangelogStorageResource(
        uri="gs://nested/job", gcs=_Clients(secret=dg.EnvVar("DSTL_TEST_SECRET"))
    )
    assert "hunter2" not in repr(changelog)
    assert "hunter2" not in str(changelog)
    with GCSServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.create_bucket("nested")

        @dg.op(required_resource_keys={"changelog"})
        def look(context) -> None:  # type: ignore[no-untyped-def] # Dagster reads annotations as objects
            changelog = context.resources.changelog
            context.log.info(f"{changelog.coordinator('days').latest()} in {changelog.store().uri}")

        @dg.job(resource_defs={"changelog": changelog})
        def one_look() -> None:
            look()

        with dg.DagsterInstance.ephemeral() as instance:
            result = one_look.execute_in_process(instance=instance)
            logged = "\n".join(entry.user_message for entry in instance.all_logs(result.run_id))
            config = json.dumps(instance.get_run_by_id(result.run_id).run_config)
    assert "None in gs://nested/job" in logged
    assert "hunter2" not in logged + config


def test_dagster_gcps_resource_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resource that users of Google Cloud already have."""
    from dagster_gcp import GCSResource

    with GCSServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.create_bucket("nested")
        changelog = ChangelogStorageResource(uri="gs://nested/job", gcs=GCSResource(project="test"))
        with changelog.process_config_and_initialize_cm() as resource:
            assert resource.coordinator("days").latest() is None


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"dstl.dfs.upload.timeout": "garbage"}, "dstl.dfs.upload.timeout: 'garbage' .* such as '30s'"),
        ({"dstl.dfs.upload.timeouts": "1 s"}, "did you mean dstl.dfs.upload.timeout"),
        ({"execution.checkpointing.num-retain": "3"}, "did you mean .*num-retained"),
        ({"gs.storage.root.urls": "x"}, "did you mean gs.storage.root.url"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options: dict[str, str], hint: str, days: Days) -> None:
    """By its name, with the nearest one that there is."""
    resource = ChangelogStorageResource(uri=days.uri, options=options)
    with pytest.raises(InvalidInputError, match=hint):
        resource.coordinator("days")


def test_retries_reach_the_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt a request: the first refusal of the bucket is an error."""
    with GCSServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.create_bucket("once")
        once = ChangelogStorageResource(uri="gs://once", options={"gs.retry.max-attempt": "1"})
        for resource, fails in ((once, True), (ChangelogStorageResource(uri="gs://once"), False)):
            server.faults.add(ServerFault(FaultKind.STATUS, status=503))
            coordinator = resource.coordinator("days")
            with pytest.raises(UnavailableError) if fails else contextlib.nullcontext():
                assert coordinator.latest() is None
            server.faults.clear()


def test_a_client_is_for_buckets_alone(days: Days) -> None:
    """A local or memory store needs no client, and accepts none."""
    with ChangelogStorageResource(
        uri=days.uri, gcs=_Clients()
    ).process_config_and_initialize_cm() as resource:
        assert resource.coordinator("days").latest() is None


def _tick(uri: str) -> object:
    with dg.build_schedule_context(
        scheduled_execution_time=datetime(2026, 1, 1, 6, tzinfo=UTC),
        resources={"changelog": ChangelogStorageResource(uri=uri)},
    ) as context:
        return next_day(context)


def _stand_at(uri: str, at: str) -> None:
    coordinator = CheckpointCoordinator("nyc_flights", open_store(uri))
    attempt = coordinator.trigger()
    coordinator.record(attempt, positions={"flights": at})
    coordinator.confirm(attempt)
    coordinator.compose_commit()


def test_the_schedule_begins_with_the_first_day(days: Days) -> None:
    """Without a checkpoint the first partition is requested."""
    assert _tick(days.uri).partition_key == "2013-01-01"


def test_the_schedule_goes_on_behind_the_latest_checkpoint(days: Days) -> None:
    """The day after the last completed one is requested, whatever the calendar says."""
    _stand_at(days.uri, "2013-01-20T00:00:00+00:00")
    assert _tick(days.uri).partition_key == "2013-01-20"


def test_the_schedule_ends_with_the_last_day(days: Days) -> None:
    """When all days are in the state the tick is skipped, and says why."""
    _stand_at(days.uri, "2013-02-01T00:00:00+00:00")
    skipped = _tick(days.uri)
    assert isinstance(skipped, dg.SkipReason)
    assert "all of January 2013" in str(skipped.skip_message)


@pytest.mark.parametrize("name", ["g=a%2Fb/x.csv", "what? #1.csv", "/x.csv"])
def test_the_uri_of_a_file_has_its_name_as_it_is(tmp_path: Path, name: str) -> None:
    """On a local store, whose URIs are decoded, and on a bucket, whose are not."""
    local = RecoverableWriterResource(uri=f"{tmp_path.as_uri()}/out")
    assert open_store(tmp_path.as_uri()).locate(local.uri_of(name))[1] == f"out/{name.lstrip('/')}"
    bucket = RecoverableWriterResource(uri="gs://b/out/")
    assert bucket.uri_of(name) == f"gs://b/out/{name.lstrip('/')}"
