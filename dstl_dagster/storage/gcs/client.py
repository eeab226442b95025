"""The client of google-cloud-storage that a process shares: credentials, endpoint, connections.

Owns its creation, what happens to a client's connections in a fork, what a client knows of the service, and
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
from weakref import WeakKeyDictionary

import google.auth.exceptions
import requests.adapters
import requests.cookies
from google.cloud import storage

from dstl_dagster.concurrency import after_fork
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.storage.gcs.errors import cleaned
from dstl_dagster.storage.policy.rate import RateLimiter

_POOL_CONNECTIONS = 64


class ServiceFacts:
    """What one client knows of the service. Any thread.

    Attributes:
        time: the newest `Date` of any success, to the second: a refusal may be of a proxy, with another
            clock. `None` before one.
        buckets: those that have answered: they exist.
        takes_batches: it has not refused one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.time: datetime | None = None
        self.buckets: set[str] = set()
        self.takes_batches = True

    def hear(self, response: requests.Response, *_: Any, **__: Any) -> None:
        if not response.ok:
            return
        with contextlib.suppress(KeyError, ValueError):
            date = parsedate_to_datetime(response.headers["Date"])
            with self._lock:
                self.time = date if self.time is None else max(date, self.time)


_facts: WeakKeyDictionary[storage.Client, ServiceFacts] = WeakKeyDictionary()
_rate_limiters: dict[tuple[str, str], RateLimiter] = {}
_left_to_parent: list[object] = []
"""Connections opened before a fork, never closed here: a thread of the parent may hold their locks."""


def facts_of(client: storage.Client) -> ServiceFacts:
    """Those of this client, from now on. And every forked child gets its own connections: on a shared one,
    each would read the other's responses.
    """
    found = _facts.get(client)
    if found is None:
        found = _facts[client] = ServiceFacts()
        session = client._http
        if isinstance(session, requests.Session):
            session.hooks["response"].append(found.hear)
    return found


def shared_rate_limiter(client: storage.Client, bucket_name: str) -> RateLimiter:
    """One for each bucket in a process, on the system's clock: users bring clients of their own, several."""
    return _rate_limiters.setdefault((str(client._connection.API_BASE_URL), bucket_name), RateLimiter())


def _renew_connections() -> None:
    for client in list(_facts):
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
