"""Refusals with `Retry-After` on the strict server: obeyed, and by all threads that talk to the bucket."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.errors import UnavailableError
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import ABSENT, ANY, GCSObjectStore
from dstl_dagster.storage.gcs.errors import refusal, retry_after_seconds
from dstl_dagster.storage.policy.rate import RateLimiter, ThrottledError
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.testing.virtual_clock import VirtualClock


@pytest.fixture
def server() -> Iterator[GCSServer]:
    with GCSServer(one_update_a_second=True) as server:
        server.create_bucket("bucket")
        server.create_bucket("other")
        yield server


def client_of(server: GCSServer) -> storage.Client:
    return storage.Client(
        project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )


class Limited:
    """Stores of one process on one clock: clients and retries of their own, and one limiter."""

    def __init__(self, server: GCSServer) -> None:
        self.server = server
        self.clock = VirtualClock()
        self.limiter = RateLimiter(self.clock)

    def store(self, **policy: float | None) -> GCSObjectStore:
        # An impatient pause of its own, so that a longer one is the service's.
        given = {"first_pause_seconds": 0.001, "max_pause_seconds": 0.001, "total_seconds": None, **policy}
        retries = Retries(RetryPolicy(**given), clock=self.clock, limiter=self.limiter)  # type: ignore[arg-type]
        return GCSObjectStore(client_of(self.server), "bucket", retries=retries)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("retry_after", "least", "most"),
    [
        (lambda: "7", 7, 8),
        (lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=120), usegmt=True), 110, 122),
        (lambda: "soon", 0, 1),
        (lambda: "-3", 0, 1),
    ],
)
def test_retry_after_is_obeyed(
    server: GCSServer, status: int, retry_after: Callable[[], str], least: float, most: float
) -> None:
    """Seconds, and a date by the service's own clock; what is neither counts as none."""
    limited = Limited(server)
    store = limited.store()
    store.put("a", b"abc", precondition=ABSENT)
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.*", status=status, retry_after=retry_after()))
    assert store.get("a") == b"abc"
    assert least <= limited.clock.monotonic_seconds() <= most


@pytest.mark.parametrize("method", ["upload.start", "upload.chunk", "upload.finish", "batch", "objects.list"])
def test_every_kind_of_request_obeys(server: GCSServer, method: str) -> None:
    """An upload in parts, a batch and a listing wait as a read does."""
    limited = Limited(server)
    store = limited.store()
    server.faults.add(ServerFault(FaultKind.STATUS, method, status=503, retry_after="7"))
    upload = store.open_write("large", precondition=ABSENT, chunk_size=256 * 1024)
    upload.write(bytes(600 * 1024))
    upload.close()
    assert [stat.name for stat in store.list()] == ["large"]
    store.delete_all([("nothing", ANY)])
    assert 7 <= limited.clock.monotonic_seconds() <= 8


def test_all_stores_of_a_bucket_wait_for_one_refusal(server: GCSServer) -> None:
    """A store that was not refused itself begins no request before the time that another was told."""
    limited = Limited(server)
    limited.store().put("a", b"abc", precondition=ABSENT)
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.get", status=429, retry_after="30"))
    with pytest.raises(UnavailableError):
        limited.store(max_attempts=1).stat("a")
    assert limited.clock.monotonic_seconds() < 1
    assert limited.store().get("a") == b"abc"
    assert 30 <= limited.clock.monotonic_seconds() <= 31


def test_a_wait_longer_than_the_time_that_is_left_is_not_begun(server: GCSServer) -> None:
    """`gs.retry.total-timeout` stays the limit: the request fails at once, and no further one is sent."""
    limited = Limited(server)
    store = limited.store(total_seconds=20.0)
    store.put("a", b"abc", precondition=ABSENT)
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.get", status=429, retry_after="30"))
    server.reset_counts()
    with pytest.raises(UnavailableError, match="429"):
        store.stat("a")
    with pytest.raises(UnavailableError, match=r"in 30 s.*gs\.retry\.total-timeout"):
        store.stat("a")
    assert server.counts == {"objects.get": 1}
    assert limited.clock.monotonic_seconds() < 1
    limited.clock.advance(30)
    assert store.stat("a") is not None


def test_threads_slow_down_together(server: GCSServer) -> None:
    """Eight threads that are refused in turn keep one limit afterwards, which grows with every answer."""
    limited = Limited(server)
    store = limited.store()
    store.put("a", b"abc", precondition=ABSENT)
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.get", status=503, times=8))
    threads = [threading.Thread(target=store.stat, args=("a",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slow = limited.limiter.limit.rate
    assert slow is not None
    store.stat("a")
    grown = limited.limiter.limit.rate
    assert grown is not None
    assert grown > slow


def test_a_limit_on_one_object_slows_nobody_else(server: GCSServer) -> None:
    """429 because one object was changed twice within a second says nothing of the bucket."""
    limited = Limited(server)
    store = limited.store(max_attempts=1)
    store.put("a", b"1", precondition=ANY)
    with pytest.raises(UnavailableError, match="429"):
        store.put("a", b"2", precondition=ANY)
    assert server.statuses[429] == 1
    assert limited.limiter.limit.rate is None


def test_stores_of_a_process_share_the_limit_of_a_bucket(server: GCSServer) -> None:
    """Users bring clients of their own; a bucket has one limit all the same, and another bucket another."""
    options = GSFileSystemOptions(retry_max_attempt=2)
    one, two = (GCSObjectStore(client_of(server), "bucket", options=options) for _ in range(2))
    limiter = one._transport.retries.limiter
    assert two._transport.retries.limiter is limiter
    other = one.in_bucket("other")
    assert isinstance(other, GCSObjectStore)
    assert other._transport.retries.limiter is not limiter
    assert other._transport.retries.policy.max_attempts == 2
    back = other.in_bucket("bucket")
    assert isinstance(back, GCSObjectStore)
    assert back._transport.retries.limiter is limiter


def test_a_refusal_is_an_ordinary_error_elsewhere() -> None:
    """Spark and Dagster carry it between processes as what it is to users: UnavailableError."""
    error = refusal(429, "slow down", "gs://bucket/a", {"retry-after": "5"})
    assert isinstance(error, ThrottledError)
    assert error.retry_after_seconds == 5
    there = pickle.loads(pickle.dumps(error))
    assert type(there) is UnavailableError
    assert (there.message, there.kind) == (error.message, error.kind)


def test_a_date_without_the_services_own_is_not_believed() -> None:
    """This machine's clock may be off by more than the wait."""
    date = "Sun, 06 Nov 2033 08:49:37 GMT"
    assert retry_after_seconds({"Retry-After": date}) is None
    assert retry_after_seconds({"Retry-After": date, "Date": "Sun, 06 Nov 2033 08:49:30 GMT"}) == 7
    assert retry_after_seconds({"retry-after": date, "date": "Sun, 06 Nov 2033 08:50:00 GMT"}) == 0


def test_a_fork_frees_the_lock() -> None:
    """A child that was forked while another thread held the lock goes on."""
    limiter = RateLimiter()
    with limiter._lock:
        child = os.fork()
        if child == 0:
            limiter.wait_for_turn()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
