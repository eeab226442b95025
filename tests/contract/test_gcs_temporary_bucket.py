"""Step 6 with a temporary bucket on the strict server: no object is changed twice within a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import UnavailableError
from dstl_dagster.recoverable import commit
from dstl_dagster.settings import JobOptions
from dstl_dagster.storage import GCSObjectStore
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.testing.gcs_server import GCSServer, handler
from dstl_dagster.testing.gcs_server.listing import rewrite
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.unit.conftest import Job

OPTIONS = JobOptions.of({"gs.writer.temporary.bucket.name": "temporary"})


@pytest.fixture
def server() -> Iterator[GCSServer]:
    with GCSServer(one_update_a_second=True) as server:
        server.create_bucket("bucket")
        server.create_bucket("temporary")
        yield server


def store_on(server: GCSServer) -> GCSObjectStore:
    """With a single try for each request."""
    client = storage.Client(
        project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )
    retries = Retries(RetryPolicy(max_attempts=1, total_seconds=None), clock=VirtualClock())
    return GCSObjectStore(client, "bucket", retries=retries)


def published(server: GCSServer) -> dict[str, int]:
    """A checkpoint of files of one, two and forty components; the requests of its step 6."""
    store = store_on(server)
    job = Job(store)
    coordinator = CheckpointCoordinator("orders", store, OPTIONS, owner="test")
    attempt = coordinator.trigger()
    files = [
        job.file(attempt, f"out/{count}", *[b"%d" % number for number in range(count)], options=OPTIONS.files)
        for count in (1, 2, 40)
    ]
    coordinator.record(attempt, [], files)
    coordinator.confirm(attempt)
    server.reset_counts()
    coordinator.compose_commit(attempt.checkpoint_id)
    counts = dict(server.counts)
    assert [stat.size for stat in store.list("out/")] == [1, 2, 70]
    assert list(store.in_bucket("temporary").list()) == []
    return counts


def test_step_6_is_never_refused(server: GCSServer) -> None:
    """With a single try each. One look at the age of what is copied as it was written; one batch deletes."""
    counts = published(server)
    assert 429 not in server.statuses
    assert counts == {
        "objects.compose": 3,
        "objects.rewrite": 3,
        "objects.get": 1,
        "batch": 1,
        "objects.insert": 1,
        "objects.download": 1,  # the first slot, beside the record
    }


def test_a_copy_that_keeps_the_metadata_of_its_source(
    server: GCSServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said at once, with what to do; the copy, which would count as another's file for ever, is gone."""
    monkeypatch.setattr(
        handler, "rewrite", lambda model, source, target, query, _: rewrite(model, source, target, query, {})
    )
    server._model._one_update_a_second = False
    job = Job(store_on(server))
    coordinator = CheckpointCoordinator("orders", job.store, OPTIONS, owner="test")
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/1", b"0", options=OPTIONS.files)])
    coordinator.confirm(attempt)
    (committed,) = coordinator.compose_commit(attempt.checkpoint_id)
    assert "set no temporary bucket" in committed.blocked[0].reason
    assert server.raw_read("bucket", "out/1") is None


def test_a_step_6_that_does_not_wait_is_refused(server: GCSServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: without the wait the service refuses."""
    monkeypatch.setattr(commit, "let_settle", lambda *_: None)
    monkeypatch.setattr(server._model, "_seconds", lambda: 0.0)
    with suppress(UnavailableError):
        published(server)
    assert server.statuses[429] > 0
