"""The client of google-cloud-storage that a process shares, and what its exceptions mean.

Owns both. Does not own requests (`gcs`). Imported by `gcs` alone, so that nothing else loads the client.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import google.api_core.exceptions
import google.auth.exceptions
import requests
import requests.adapters
import urllib3.exceptions
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from dstl_dagster.errors import DstlError, FormatError, InvalidInputError, UnavailableError
from dstl_dagster.storage.gcs_upload import refusal

__all__ = ["BeyondTheEndError", "shared_client", "told"]

_T = TypeVar("_T")
_POOL_CONNECTIONS = 64


class BeyondTheEndError(DstlError):
    """A range that begins behind the last byte: an answer, which the store makes an empty read of."""


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
            "no_permission",
        ) from error
    # As many connections as a wave of composes has requests; more would be thrown away each time.
    for scheme in ("https://", "http://"):
        client._http.mount(
            scheme,
            requests.adapters.HTTPAdapter(pool_connections=_POOL_CONNECTIONS, pool_maxsize=_POOL_CONNECTIONS),
        )
    return client


def told(uri: str, request: Callable[[], _T]) -> _T:
    """Make one request, with its exceptions as ours."""
    try:
        return request()
    except DstlError:
        raise
    except google.api_core.exceptions.GoogleAPICallError as error:
        if error.code == 416:
            raise BeyondTheEndError(str(error)) from error
        raise refusal(int(error.code or 500), error.message or str(error), uri) from error
    except InvalidResponse as error:
        raise refusal(int(error.response.status_code), str(error), uri) from error
    except DataCorruption as error:
        raise FormatError(f"{uri!r} was read with another checksum than it is stored with") from error
    except (google.auth.exceptions.RefreshError, google.auth.exceptions.InvalidOperation) as error:
        raise InvalidInputError(f"no valid credentials for {uri!r}: {error}", "no_permission") from error
    except (
        google.api_core.exceptions.RetryError,
        google.auth.exceptions.TransportError,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        ConnectionError,
        TimeoutError,
    ) as error:
        raise UnavailableError(f"no answer for {uri!r}: {type(error).__name__}: {error}") from error
