"""The conformance suite over the Google store on any endpoint: the strict server, an emulator, a real bucket.

    export DSTL_GCS_ENDPOINT=https://storage.googleapis.com DSTL_GCS_BUCKET=my-bucket
    export DSTL_GCS_TOKEN=$(gcloud auth print-access-token)
    python -m pytest -n0 tests/contract/test_gcs_endpoint.py tests/contract/test_gcs_protocol.py

See `docs/storage/gcs.md` for what it needs, creates and deletes.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from google.auth.credentials import AnonymousCredentials, Credentials
from google.cloud import storage
from google.oauth2.credentials import Credentials as TokenCredentials

from dstl_dagster.storage import GCSObjectStore, Generation
from dstl_dagster.storage.base import MAX_BATCH_DELETES
from dstl_dagster.testing.conformance import ObjectStoreConformance, RawRead
from dstl_dagster.testing.gcs_server import GCSServer
from tests.contract.endpoint import Endpoint, endpoint_from

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with endpoint_from() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def client(endpoint: Endpoint) -> Iterator[storage.Client]:
    credentials: Credentials = (
        TokenCredentials(endpoint.token) if endpoint.token else AnonymousCredentials()  # type: ignore[no-untyped-call] # no types
    )
    client = storage.Client(
        project="test", credentials=credentials, client_options={"api_endpoint": endpoint.url}
    )
    yield client
    client.close()


@pytest.fixture(scope="module")
def below(endpoint: Endpoint, client: storage.Client) -> Iterator[str]:
    """One for a run, and nothing is left below it. It is all that a run writes to."""
    # Short, since the suite tries names of 1,003 bytes; and no test of the suite has a parameter `below`.
    prefix = f"conf-{uuid.uuid4().hex[:8]}/"
    yield prefix
    clear(GCSObjectStore(client, endpoint.bucket, prefix))


def clear(store: GCSObjectStore) -> None:
    there = [(stat.name, Generation(stat.generation)) for stat in store.list()]
    for at in range(0, len(there), MAX_BATCH_DELETES):
        store.delete_all(there[at : at + MAX_BATCH_DELETES])
    assert list(store.list()) == []


class TestEndpoint(ObjectStoreConformance):
    """Each test has an empty folder of its own below the prefix of the run."""

    @pytest.fixture
    def folder(self, below: str) -> str:
        return f"{below}{next(_numbers)}/"

    @pytest.fixture
    def store(self, endpoint: Endpoint, client: storage.Client, folder: str) -> GCSObjectStore:
        return GCSObjectStore(client, endpoint.bucket, folder)

    @pytest.fixture
    def raw_read(self, endpoint: Endpoint, folder: str) -> Iterator[RawRead]:
        with endpoint.session() as session:

            def read(name: str) -> bytes | None:
                path = f"{endpoint.bucket}/o/{quote(folder + name, safe='')}"
                answer = session.get(f"{endpoint.url}/download/storage/v1/b/{path}?alt=media", timeout=60)
                if answer.status_code == 404:
                    return None
                answer.raise_for_status()
                return answer.content

            yield read


def test_the_environment_points_both_suites_at_an_endpoint(tmp_path: Path) -> None:
    """As somebody with a bucket runs them: all requests go there, and what was there stays, alone."""
    suites = ["test_gcs_endpoint.py::TestEndpoint", "test_gcs_protocol.py"]
    with GCSServer() as server:
        server.create_bucket("theirs")
        environment = {
            **os.environ,
            "DSTL_GCS_ENDPOINT": f"{server.url}/",
            "DSTL_GCS_BUCKET": "theirs",
            "DSTL_GCS_TOKEN": "a-token",
        }
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n0", "-k", "stores or copy or list or put"),
                *(str(Path(__file__).with_name(suite)) for suite in suites),
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert " passed" in done.stdout
        assert server.counts["objects.insert"] > 20
        with endpoint_from(environment) as endpoint:
            client = storage.Client(
                project="test",
                credentials=AnonymousCredentials(),
                client_options={"api_endpoint": endpoint.url},
            )
            assert list(GCSObjectStore(client, "theirs").list()) == []


def test_a_token_needs_a_bucket() -> None:
    """No suite guesses which of somebody's buckets it may write to."""
    with (
        pytest.raises(ValueError, match="DSTL_GCS_BUCKET"),
        endpoint_from({"DSTL_GCS_ENDPOINT": "https://storage.googleapis.com", "DSTL_GCS_TOKEN": "t"}),
    ):
        pass
