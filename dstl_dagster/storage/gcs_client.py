"""The client of google-cloud-storage that a process shares: credentials, endpoint, connections.

Owns its creation, and what happens to a client's connections in a fork. Does not own requests
(`gcs_transport`). Imported by the Google store's modules alone, so that nothing else loads the client.
"""

from __future__ import annotations

import functools
import os
from weakref import WeakSet

import google.auth.exceptions
import requests.adapters
import requests.cookies
from google.cloud import storage

from dstl_dagster.errors import ErrorKind, InvalidInputError

__all__ = ["shared_client", "split_at_fork"]

_POOL_CONNECTIONS = 64

_clients: WeakSet[storage.Client] = WeakSet()
_left_to_parent: list[object] = []
"""Connections opened before a fork, never closed here: a thread of the parent may hold their locks."""


def split_at_fork(client: storage.Client) -> None:
    """Give every forked child its own connections: on a shared one, each would read the other's responses."""
    _clients.add(client)


def _renew_connections() -> None:
    for client in list(_clients):
        session = client._http_internal
        for each in (session, getattr(session, "_auth_request_session", None)):
            if not isinstance(each, requests.Session):
                continue
            each.cookies = requests.cookies.RequestsCookieJar()
            for adapter in each.adapters.values():
                if isinstance(adapter, requests.adapters.HTTPAdapter):
                    _left_to_parent.append((adapter.poolmanager, adapter.proxy_manager))
                    adapter.proxy_manager = {}
                    adapter.init_poolmanager(
                        adapter._pool_connections, adapter._pool_maxsize, block=adapter._pool_block
                    )


os.register_at_fork(after_in_child=_renew_connections)


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
