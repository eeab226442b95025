"""Step 7 on the strict server: within the service's limit on changes of one object, and in batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.checkpoint.steps import clean_up
from dstl_dagster.errors import UnavailableError
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ABSENT, ANY, GCSObjectStore
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.unit.conftest import Job


@pytest.fixture(params=[True])
def server(request: pytest.FixtureRequest) -> Iterator[GCSServer]:
    with GCSServer(one_update_a_second=request.param) as server:
        server.create_bucket("bucket")
        yield server


def store_on(server: GCSServer, tries: int) -> GCSObjectStore:
    client = storage.Client(
        project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )
    retries = Retries(RetryPolicy(max_attempts=tries, total_seconds=None), clock=VirtualClock())
    return GCSObjectStore(client, "bucket", retries=retries)


def quick_job(server: GCSServer) -> None:
    """Six checkpoints as fast as they go, each by a new coordinator, with all that a clean-up deletes.

    A base each time and no grace: the last checkpoint's files go. An aborted attempt: what it wrote a moment
    ago goes. A snapshot every 8 records: so often the hint would move.
    """
    store = store_on(server, tries=10)
    options = {"num_retained": 1, "reader_grace": timedelta(0), "snapshot_interval": 8}
    for number in range(6):
        job = Job(store)
        coordinator = job.coordinator(**options)
        if number % 3 == 0:
            dead = coordinator.trigger()
            job.changes(dead)
            job.file(dead, "out/never", b"a", b"b")
            coordinator.abort(dead)
        attempt = coordinator.trigger(idempotency_key=f"batch {number}")
        file = job.file(attempt, f"out/{number}", b"a", b"b")
        coordinator.record(attempt, [job.base(attempt)], [file], {"source": number})
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        coordinator.clean_up()
    assert coordinator.clean_up().objects == 0
    assert [stat.name for stat in store.list("out/")] == sorted(f"out/{number}" for number in range(6))
    attempts = {stat.name.split("/")[3] for stat in store.list("dstl/orders/attempts/")}
    assert attempts == {str(attempt.attempt)}


def test_a_quick_job_is_never_refused(server: GCSServer) -> None:
    """No object is changed twice within a second over a whole job."""
    quick_job(server)
    assert 429 not in server.statuses


def test_a_clean_up_that_does_not_wait_is_refused(server: GCSServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: without the wait the service refuses."""
    monkeypatch.setattr(clean_up, "let_settle", lambda *_: None)
    # However slow this machine is, no second passes by the clock of the limit.
    monkeypatch.setattr(server._model, "_seconds", lambda: 0.0)
    with suppress(UnavailableError):
        quick_job(server)
    assert server.statuses[429] > 0


def test_quick_clean_ups_are_not_refused(server: GCSServer) -> None:
    """No object is changed twice within a second: with a single try each, a refusal would fail the test."""
    store = store_on(server, tries=1)
    options = CheckpointOptions(num_retained=2)
    for number in range(5):
        coordinator = CheckpointCoordinator("orders", store, options, owner="test")
        attempt = coordinator.trigger()
        coordinator.record(attempt, [], [], {"day": number})
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        assert coordinator.clean_up().objects == 0
    assert coordinator.clean_up(num_retained=1).subsumed == (4,)


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_clean_up_survives_refusals_within_its_batches(server: GCSServer) -> None:
    """A refused part and a lost answer: another try, and all is gone; the report counts what it saw go."""
    store = store_on(server, tries=5)
    coordinator = CheckpointCoordinator("orders", store, owner="test")
    attempt = coordinator.trigger()
    for number in range(130):
        store.put(f"dstl/orders/attempts/{attempt.attempt}/changelog/{number}", b"x", precondition=ABSENT)
    coordinator.abort(attempt)
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.delete", "*/7", status=503))
    server.faults.add(ServerFault(FaultKind.DROP_ANSWER, "objects.delete", "*/8"))
    assert coordinator.clean_up().objects >= 28
    assert list(store.list("dstl/orders/attempts/")) == []


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_batch_is_as_far_away_as_one_request(server: GCSServer) -> None:
    """Latency is that of the way, which the parts of a batch go together: it hits a batch once."""
    store = store_on(server, tries=1)
    server.faults.add(ServerFault(FaultKind.LATENCY, seconds=60.0, method="objects.delete", times=None))
    assert store.delete_all([(str(number), ANY) for number in range(100)]) == [False] * 100
