"""The client of google-cloud-storage that a process shares: credentials, endpoint, connections.

Owns its creation, what happens to a client's connections in a fork, the time that its responses report, and
which requests share a rate limit. Does not own requests (`gcs.transport`), or the limit itself
(`policy.rate`). Imported by the Google store's modules alone, so that nothing else loads the client.
"""

from __future__ import annotations

import contextlib
import functools
import netrc  # noqa: F401 - else `requests` imports it within the first request
import threading
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import google.auth.exceptions
import requests.adapters
import requests.cookies
from google.cloud import storage

from dstl_dagster.concurrency import after_fork
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.storage.gcs.errors import cleaned
from dstl_dagster.storage.policy.rate import RateLimiter

_POOL_CONNECTIONS = 64


class _HeardTime:
    """The newest `Date` of any success: a refusal may be of a proxy, with another clock. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.newest: datetime | None = None

    def __call__(self, response: requests.Response, *_: Any, **__: Any) -> None:
        if not response.ok:
            return
        with contextlib.suppress(KeyError, ValueError):
            date = parsedate_to_datetime(response.headers["Date"])
            with self._lock:
                self.newest = date if self.newest is None else max(date, self.newest)


_clients: WeakSet[storage.Client] = WeakSet()
_clocks: WeakKeyDictionary[storage.Client, _HeardTime] = WeakKeyDictionary()
_rate_limiters: dict[tuple[str, str], RateLimiter] = {}
_left_to_parent: list[object] = []
"""Connections opened before a fork, never closed here: a thread of the parent may hold their locks."""


def split_at_fork(client: storage.Client) -> None:
    """Give every forked child its own connections: on a shared one, each would read the other's responses."""
    _clients.add(client)


def listen_for_time(client: storage.Client) -> None:
    """From now on note the service's time in each response to this client."""
    session = client._http
    if client not in _clocks and isinstance(session, requests.Session):
        _clocks[client] = heard = _HeardTime()
        session.hooks["response"].append(heard)


def server_time(client: storage.Client) -> datetime | None:
    """The newest time that the service sent to this client, to the second; `None` before any response."""
    heard = _clocks.get(client)
    return None if heard is None else heard.newest


def shared_rate_limiter(client: storage.Client, bucket_name: str) -> RateLimiter:
    """One for each bucket in a process, on the system's clock: users bring clients of their own, several."""
    return _rate_limiters.setdefault((str(client._connection.API_BASE_URL), bucket_name), RateLimiter())


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


after_fork(_renew_connections)


@functools.lru_cache(maxsize=8)
def shared_client(process_id: int, root_url: str | None, emulator: str | None) -> storage.Client:
    """One client for each process and place. Raises: InvalidInputError where there are no credentials."""
    # By process: connections must not be used on both sides of a fork.
    del process_id, emulator
    client, said = None, ""
    try:
        client = storage.Client(client_options={"api_endpoint": root_url} if root_url else None)
    except (google.auth.exceptions.GoogleAuthError, ValueError) as error:
        said = cleaned(error)
    if client is None:
        # Out of the block: the error of a key file that cannot be parsed has all of it as an attribute.
        raise InvalidInputError(
            f"no Google credentials: {said}; set GOOGLE_APPLICATION_CREDENTIALS or log in with gcloud",
            ErrorKind.NO_PERMISSION,
        )
    # As many connections as a wave of composes has requests; more would be thrown away each time.
    for scheme in ("https://", "http://"):
        client._http.mount(
            scheme,
            requests.adapters.HTTPAdapter(pool_connections=_POOL_CONNECTIONS, pool_maxsize=_POOL_CONNECTIONS),
        )
    return client
