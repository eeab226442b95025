"""Where the suites run that need a bucket: on the strict server, or wherever the environment says.

    DSTL_GCS_ENDPOINT   the service's root, such as https://storage.googleapis.com or http://127.0.0.1:4443
    DSTL_GCS_BUCKET     an existing bucket (without a token: one that is created if it is missing)
    DSTL_GCS_TOKEN      an OAuth access token; none for an emulator

Owns reading these. Does not own what a suite creates there: each keeps below a prefix of its own, and deletes
it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import requests

from dstl_dagster.testing.gcs_server import GCSServer

_BUCKET = "protocol"


@dataclass(frozen=True)
class Endpoint:
    """A bucket, and how to talk to it. `url` does not end in a slash; no token: no credentials at all."""

    url: str
    bucket: str
    token: str | None

    def session(self) -> requests.Session:
        """For requests around the code under test."""
        session = requests.Session()
        session.trust_env = False
        if self.token:
            session.headers["Authorization"] = f"Bearer {self.token}"
        return session


@contextmanager
def endpoint_from(environment: dict[str, str] | os._Environ[str] = os.environ) -> Iterator[Endpoint]:
    """The endpoint that the environment names, else a strict server for as long as this is open."""
    url = environment.get("DSTL_GCS_ENDPOINT", "").rstrip("/")
    if not url:
        with GCSServer() as server:
            server.create_bucket(_BUCKET)
            yield Endpoint(server.url, _BUCKET, None)
        return
    token = environment.get("DSTL_GCS_TOKEN") or None
    bucket = environment.get("DSTL_GCS_BUCKET") or (_BUCKET if token is None else "")
    if not bucket:
        raise ValueError("set DSTL_GCS_BUCKET to a bucket that the token of DSTL_GCS_TOKEN may write to")
    if token is None:
        requests.post(f"{url}/storage/v1/b?project=test", json={"name": bucket}, timeout=30)
    yield Endpoint(url, bucket, token)
