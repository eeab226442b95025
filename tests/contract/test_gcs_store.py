"""The conformance suite over the Google store, on the strict server: plain, slow, and failing at random."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.storage import ABSENT, GCSObjectStore, Source
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.testing.conformance import ObjectStoreConformance, RawRead
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.testing.gcs_server.faults import RandomFaults
from dstl_dagster.testing.virtual_clock import VirtualClock


def make_client(server: GCSServer) -> storage.Client:
    return storage.Client(
        project="test",
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": server.url},
    )


@pytest.fixture(scope="module")
def shared_server() -> Iterator[GCSServer]:
    with GCSServer() as server:
        yield server


class TestGCS(ObjectStoreConformance):
    @pytest.fixture
    def server(self, shared_server: GCSServer) -> Iterator[GCSServer]:
        yield shared_server
        shared_server.faults.clear()

    @pytest.fixture
    def bucket(self, server: GCSServer, request: pytest.FixtureRequest) -> str:
        name = f"b{abs(hash(request.node.nodeid))}"
        server.create_bucket(name)
        return name

    @pytest.fixture
    def client(self, server: GCSServer) -> Iterator[storage.Client]:
        client = make_client(server)
        yield client
        client.close()

    @pytest.fixture
    def store(self, client: storage.Client, bucket: str) -> GCSObjectStore:
        return GCSObjectStore(client, bucket)

    @pytest.fixture
    def raw_read(self, server: GCSServer, bucket: str) -> RawRead:
        return lambda name: server.raw_read(bucket, name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a/x.csv", "text/csv"),
        ("x.jsonl", "application/x-ndjson"),
        ("part-00000.parquet", "application/vnd.apache.parquet"),
        ("x.jsonl.gz", "application/gzip"),
        ("no extension", "application/octet-stream"),
        (f"{'d' * 36}", "application/octet-stream"),
    ],
)
def test_the_content_type_is_that_of_the_name(shared_server: GCSServer, name: str, kind: str) -> None:
    """Put at once, written in parts, and composed."""
    client = make_client(shared_server)
    bucket = f"c{abs(hash(name))}"
    shared_server.create_bucket(bucket)
    store = GCSObjectStore(client, bucket)
    put = store.put(name, b"x", precondition=ABSENT)
    writer = store.open_write(f"2/{name}", precondition=ABSENT)
    writer.write(b"y")
    writer.close()
    store.compose([Source(name, put.generation)], f"3/{name}", precondition=ABSENT)
    found = {blob.name: blob.content_type for blob in client.list_blobs(bucket)}
    assert found == {name: kind, f"2/{name}": kind, f"3/{name}": kind}
    client.close()


class TestGCSBelowAPrefixWithErrors(TestGCS):
    """One request in twenty is refused or reset before its effect; all objects are below a prefix."""

    @pytest.fixture
    def store(self, client: storage.Client, bucket: str, server: GCSServer) -> GCSObjectStore:
        faults = [ServerFault(FaultKind.STATUS, status=status) for status in (503, 429, 500, 408)]
        server.faults.set_random(RandomFaults(5, 0.05, [*faults, ServerFault(FaultKind.RESET)]))
        retries = Retries(RetryPolicy(max_attempts=10, total_seconds=None), clock=VirtualClock())
        return GCSObjectStore(client, bucket, "some/prefix/", retries=retries)

    @pytest.fixture
    def raw_read(self, server: GCSServer, bucket: str) -> RawRead:
        return lambda name: server.raw_read(bucket, f"some/prefix/{name}")


@pytest.mark.soak  # in CI whole runs meet latency: tests/gcs
class TestGCSWithLatency(TestGCS):
    """Each response takes some milliseconds more."""

    @pytest.fixture
    def store(self, client: storage.Client, bucket: str, server: GCSServer) -> GCSObjectStore:
        server.faults.add(ServerFault(FaultKind.LATENCY, seconds=0.002, times=None))
        return GCSObjectStore(client, bucket)
