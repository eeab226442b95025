"""The client of google-cloud-storage that a process shares: credentials, endpoint, connections.

Owns its making. Does not own requests (`gcs_transport`). Imported by `gcs` alone, so that nothing else loads
the client.
"""

from __future__ import annotations

import functools

import google.auth.exceptions
import requests.adapters
from google.cloud import storage

from dstl_dagster.errors import ErrorKind, InvalidInputError

__all__ = ["shared_client"]

_POOL_CONNECTIONS = 64


@functools.lru_cache(maxsize=8)
def shared_client(process_id: int, root_url: str | None, emulator: str | None) -> storage.Client:
    """One client for each process and place. Raises: InvalidInputError where there are no credentials."""
    # By process: connections must not be used on both sides of a fork.
    del process_id, emulator
    try:
        client = storage.Client(client_options={"api_endpoint": root_url} if root_url else None)
    except google.auth.exceptions.GoogleAuthError as error:
        raise InvalidInputError(
            f"no Google credentials: {error}; set GOOGLE_APPLICATION_CREDENTIALS or log in with gcloud",
            ErrorKind.NO_PERMISSION,
        ) from error
    # As many connections as a wave of composes has requests; more would be thrown away each time.
    for scheme in ("https://", "http://"):
        client._http.mount(
            scheme,
            requests.adapters.HTTPAdapter(pool_connections=_POOL_CONNECTIONS, pool_maxsize=_POOL_CONNECTIONS),
        )
    return client
