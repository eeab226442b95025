"""Buckets under a customer-managed key, whose listings tell no checksums, and answers without empty sizes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.checkpoint import CheckpointCoordinator, FileReport
from dstl_dagster.errors import NotFoundError, UnavailableError
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.storage import ABSENT, ANY, GCSObjectStore
from dstl_dagster.storage.gcs.json_api import stat_of_resource
from dstl_dagster.storage.preflight import check_store
from dstl_dagster.testing.conformance import ObjectStoreConformance, RawRead
from dstl_dagster.testing.gcs_server import GCSServer

KEY = {"defaultKmsKeyName": "projects/p/locations/us/keyRings/r/cryptoKeys/k"}


@pytest.fixture(scope="module")
def server() -> Iterator[GCSServer]:
    with GCSServer(omit_empty_sizes=True) as server:
        yield server


@pytest.fixture
def bucket(server: GCSServer) -> str:
    name = f"b-{uuid.uuid4()}"
    server.create_bucket(name, encryption=KEY)
    return name


def opened(server: GCSServer, bucket: str) -> Iterator[GCSObjectStore]:
    client = storage.Client(
        project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )
    yield GCSObjectStore(client, bucket)
    client.close()


@pytest.fixture
def store(server: GCSServer, bucket: str) -> Iterator[GCSObjectStore]:
    yield from opened(server, bucket)


class TestEncryptedBucket(ObjectStoreConformance):
    """The whole contract holds there."""

    @pytest.fixture
    def store(self, server: GCSServer, bucket: str) -> Iterator[GCSObjectStore]:
        yield from opened(server, bucket)

    @pytest.fixture
    def raw_read(self, server: GCSServer, bucket: str) -> RawRead:
        return lambda name: server.raw_read(bucket, name)


def test_only_who_needs_a_checksum_asks(store: GCSObjectStore, server: GCSServer) -> None:
    """A listing is one request; the first look at a checksum is one more, and later ones none."""
    made = {name: store.put(name, name.encode(), precondition=ABSENT) for name in ("a", "b")}
    server.reset_counts()
    first, second = store.list()
    assert server.counts == {"objects.list": 1}
    assert [first.crc32c, first.crc32c] == [crc32c(b"a")] * 2
    assert server.counts == {"objects.list": 1, "objects.get": 1}
    assert second == made["b"] == second
    assert first != second
    assert len({first, second}) == 2


def test_a_checksum_of_what_is_gone_is_not_found(store: GCSObjectStore) -> None:
    """A generation that was replaced after the listing has no checksum to tell."""
    store.put("a", b"old", precondition=ABSENT)
    (listed,) = store.list()
    store.put("a", b"new", precondition=ANY)
    with pytest.raises(NotFoundError):
        listed.crc32c  # noqa: B018 (a request)


def test_empty_objects_without_a_size(store: GCSObjectStore) -> None:
    """An answer without `size` speaks of an empty object."""
    made = store.put("empty", b"", precondition=ABSENT)
    assert made.size == 0
    assert store.stat("empty") == made
    assert list(store.list()) == [made]


def test_a_size_is_omitted_of_an_empty_object_alone() -> None:
    """An answer that has the checksum of some bytes, and not their number, is not an answer."""
    resource = {"generation": "1", "updated": "2030-01-01T00:00:00Z", "crc32c": "AAAAAA=="}
    assert stat_of_resource("empty", resource, lambda *_: 0).size == 0
    with pytest.raises(UnavailableError, match="size"):
        stat_of_resource("some", {**resource, "crc32c": "AAAAAQ=="}, lambda *_: 0)


def test_a_job_runs_and_its_bucket_passes_the_check(store: GCSObjectStore) -> None:
    """Record, confirm, publish, list, clean-up, audit; and the pre-flight, which lists, has no complaint."""
    coordinator = CheckpointCoordinator("job", store, owner="job")
    attempt = coordinator.trigger(idempotency_key="one")
    stream = GSRecoverableWriter(store, attempt=attempt.attempt).open(store.uri_of("out/whole"))
    stream.write(b"bytes")
    stream.persist()
    stream.write(b"more")
    committer = stream.close_for_commit()
    file = FileReport(committer.recoverable, tuple(committer.components), format="text")
    coordinator.record(attempt, [], [file], {"source": 1})
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    coordinator.clean_up()
    assert store.get("out/whole") == b"bytesmore"
    assert [each.checkpoint_id for each in coordinator.list()] == [1]
    assert coordinator.audit().garbage.objects == 0  # type: ignore[union-attr]
    assert coordinator.verify().ok
    assert check_store(store) == []
