"""Hedged reads on the strict server, where one request in many stalls: the tail is cut, by counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import ABSENT, ObjectStat
from dstl_dagster.storage.gcs import GCSObjectStore
from dstl_dagster.storage.retrying import BackoffPolicy, Retries
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.testing.virtual_clock import VirtualClock

HEDGED = GSFileSystemOptions.from_mapping({"gs.read.hedging.enabled": "true"})
STALLED_EVERY = 30


class ServersClock(VirtualClock):
    """A wait ends by an answer, or times out at once if the server has begun to stall a request meanwhile."""

    def __init__(self, server: GCSServer) -> None:
        super().__init__()
        self._server = server
        self.timed_out = 0
        self.pauses = 0

    def sleep_seconds(self, seconds: float, wake: threading.Event | None = None) -> bool:
        if wake is None:
            self.pauses += 1
            return super().sleep_seconds(seconds)
        while not wake.wait(0.001):
            if self._server.faults.hits > self.timed_out:
                self.timed_out += 1
                return super().sleep_seconds(seconds)
        return True


class Bucket:
    """A store on a server that stalls every thirtieth read until it is stopped."""

    def __init__(self, server: GCSServer, options: GSFileSystemOptions, stall_seconds: float) -> None:
        self.server = server
        self.clock = ServersClock(server)
        client = storage.Client(
            project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
        )
        retries = Retries(BackoffPolicy(max_attempts=3, total_seconds=None), clock=self.clock)
        self.store = GCSObjectStore(client, "bucket", options=options, retries=retries)
        self.made = self.store.put("a", bytes(range(256)) * 8, precondition=ABSENT)
        server.reset_counts()
        for at in range(1, 4):
            fault = ServerFault(
                FaultKind.STALL, "objects.*", "a", seconds=stall_seconds, skip=at * STALLED_EVERY - 1
            )
            server.faults.add(fault)

    @property
    def requests(self) -> int:
        return sum(self.server.counts.values())


@pytest.fixture
def server() -> Iterator[GCSServer]:
    with GCSServer() as server:
        server.create_bucket("bucket")
        yield server


def read(store: GCSObjectStore, method: str, made: ObjectStat, generation: int | None) -> object:
    if method == "stat":
        return store.stat("a", generation=generation)
    if method == "get":
        return store.get("a", generation=generation)
    return store.get_range("a", 100, 1_000, generation=generation)


@pytest.mark.parametrize("method", ["stat", "get", "get_range"])
def test_one_slow_answer_in_thirty_costs_one_more_request(server: GCSServer, method: str) -> None:
    """100 reads, 3 of which would never be answered: 103 requests, no pause, and nothing is left."""
    bucket = Bucket(server, HEDGED, stall_seconds=3_600)
    expected = read(bucket.store, method, bucket.made, bucket.made.generation)
    for _ in range(99):
        assert read(bucket.store, method, bucket.made, bucket.made.generation) == expected
    assert bucket.requests == 103
    assert bucket.clock.timed_out == 3
    assert bucket.clock.pauses == 0
    hedge = bucket.store._transport._hedge
    assert hedge is not None
    assert hedge.in_flight == 3
    server.stop()
    while hedge.in_flight:
        threading.Event().wait(0.001)


def test_without_the_option_the_slow_answer_is_waited_for(server: GCSServer) -> None:
    """Off by default: the same reads wait for each stalled request to fail, and then try again."""
    bucket = Bucket(server, GSFileSystemOptions(), stall_seconds=0.01)
    for _ in range(100):
        bucket.store.stat("a", generation=bucket.made.generation)
    assert bucket.requests == 103
    assert bucket.clock.pauses == 3
    assert bucket.store._transport._hedge is None


def test_what_is_live_now_is_asked_for_once(server: GCSServer) -> None:
    """Two answers to a read of no certain generation could differ, so it is not hedged."""
    bucket = Bucket(server, HEDGED, stall_seconds=0.01)
    for _ in range(100):
        bucket.store.stat("a")
    assert bucket.requests == 103
    assert bucket.clock.pauses == 3
    assert bucket.clock.timed_out == 0


def test_a_bucket_of_the_same_store_shares_what_is_known(server: GCSServer) -> None:
    """Stores are made for each file; what one has measured, the next one uses."""
    bucket = Bucket(server, HEDGED, stall_seconds=0.01)
    again = bucket.store.in_bucket("bucket")
    assert isinstance(again, GCSObjectStore)
    assert again._transport._hedge is bucket.store._transport._hedge
