"""Answers of Google Cloud Storage, or no answer, as errors of ours.

Owns the translation, from status codes and exception types: no exception of a library leaves it, not even as
the cause of ours, because its text and its attributes hold URLs and headers. Does not own requests
(`gcs.transport`, `gcs.upload`), nor whether a request is tried again (`policy.retry`).

Texts of libraries and services are cleaned of secrets, by their form and not by a list of known ones: of a
URL all after its `?` (upload ids, signatures) and what stands before an `@` go, and so does anything that
looks like a token or a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

import google.api_core.exceptions
import google.auth.exceptions
import requests
import urllib3.exceptions
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from dstl_dagster.errors import (
    ConflictError,
    DstlError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from dstl_dagster.storage.policy.rate import ThrottledError

_T = TypeVar("_T")

# The service has one reason code, `invalid`, for every wrong argument. So its words decide, but only where
# they begin the message: nothing that a caller chose, such as an object's name, can stand there.
_CHECKSUM_MISMATCH: Final = re.compile(r"Provided (CRC32C|MD5 hash)\b")
_FORBIDDEN: Final = re.compile(r"Bucket is (a )?requester pays\b|Request violates ")
"""400 and 412 of a setting of the bucket, or an organization policy: of no one object."""
_ONE_OBJECT: Final = re.compile(r"The object ")
"""429: this object was changed within the last second. Another 429 is of the bucket's or project's rate."""


_NEVER: Final = frozenset({501, 505, 510, 511})
"""Requests that the service, or a proxy before it, never serves: a retry does not help."""


class RangeNotSatisfiableError(DstlError):
    """416: a range that begins at or after the end. An answer, which the store returns as an empty read."""


def refusal(status: int, message: str, uri: str, headers: Mapping[str, str] | None = None) -> Exception:
    """The error for a status that is not the expected one.

    Args:
        status: HTTP's.
        message: the service's own, without the request that the client puts before it.
        uri: what was asked for.
        headers: of the answer, in any case.

    """
    short = cleaned(message)
    if status in (401, 403) or _FORBIDDEN.match(message):
        return InvalidInputError(f"no permission for {uri!r}: {status} {short}", ErrorKind.NO_PERMISSION)
    if status == 412:
        return ConflictError(f"{uri!r} is not as the precondition demands; read it, then decide")
    if status == 416:
        return RangeNotSatisfiableError(f"the range begins at or after the end of {uri!r}")
    if status == 404:
        return NotFoundError(f"{uri!r} (or its bucket, or a source) does not exist: {short}")
    if may_pass(status):
        text = f"the service is unavailable for {uri!r}: {status} {short}"
        wait = retry_after_seconds(headers or {})
        if status not in (429, 503) and wait is None:
            return UnavailableError(text)
        return ThrottledError(text, wait, one_object=status == 429 and bool(_ONE_OBJECT.match(message)))
    if status == 400 and _CHECKSUM_MISMATCH.match(message):
        return FormatError(f"the bytes of {uri!r} do not have the checksum that was sent: {short}")
    return InvalidInputError(f"the service refused the request for {uri!r}: {status} {short}")


def may_pass(status: int) -> bool:
    """Whether the same request may be answered otherwise the next time, by its status alone."""
    return status in (408, 429) or (status >= 500 and status not in _NEVER)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """The `Retry-After` of an answer: seconds, or a date less the answer's own; None if there is none."""
    texts = {key.lower(): value.strip() for key, value in headers.items()}
    text = texts.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        # By the service's clock: this machine's may be off by more than the wait.
        return max(
            0.0, (parsedate_to_datetime(text) - parsedate_to_datetime(texts.get("date", ""))).total_seconds()
        )
    except (ValueError, TypeError):
        return None


class LibraryError(Exception):
    """The cause of an error of ours, in a library's own words, cleaned.

    Attributes:
        answered: the service answered with an error status.
    """

    def __init__(self, text: str, answered: bool) -> None:
        super().__init__(text, answered)
        self.answered = answered

    def __str__(self) -> str:
        return str(self.args[0])


def with_translated_errors(uri: str, request: Callable[[], _T]) -> _T:
    """Make one request; every exception of Google's client and of the network is raised as one of ours."""
    try:
        return request()
    except (
        google.api_core.exceptions.GoogleAPIError,
        google.auth.exceptions.GoogleAuthError,
        InvalidResponse,
        DataCorruption,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        ConnectionError,
        TimeoutError,
    ) as error:
        failure = _translated(uri, error)
        failure.__cause__ = LibraryError(
            f"{type(error).__module__}.{type(error).__qualname__}: {cleaned(error)}",
            isinstance(error, google.api_core.exceptions.GoogleAPICallError | InvalidResponse),
        )
    # Out of the block, or the library's exception would be its context.
    raise failure


def _translated(uri: str, error: Exception) -> Exception:
    match error:
        case google.api_core.exceptions.GoogleAPICallError():
            message = message_of(error.response) or error.message or str(error)
            return refusal(int(error.code or 500), message, uri, _headers_of(error.response))
        case InvalidResponse():
            message = message_of(error.response) or str(error)
            return refusal(int(error.response.status_code), message, uri, _headers_of(error.response))
        case DataCorruption():
            return FormatError(f"the bytes read of {uri!r} do not have its stored checksum")
        case google.auth.exceptions.GoogleAuthError() if not isinstance(
            error, google.auth.exceptions.TransportError
        ):
            if error.retryable:
                return UnavailableError(
                    f"the credentials for {uri!r} cannot be refreshed now: {cleaned(error)}"
                )
            return InvalidInputError(
                f"no valid credentials for {uri!r}: {cleaned(error)}", ErrorKind.NO_PERMISSION
            )
        case _:
            return UnavailableError(f"no answer for {uri!r}: {type(error).__name__}: {cleaned(error)}")


def was_refused(error: BaseException) -> bool:
    """Whether the service answered with an error status: it did nothing, and charges nothing.

    False where there was no answer, or one that could not be believed. `error`: of `with_translated_errors`.
    """
    return isinstance(error.__cause__, LibraryError) and error.__cause__.answered


def message_of(response: Any) -> str | None:
    """`error.message` of the answer's JSON document; the whole text where it is none, as in a download."""
    if response is None:
        return None
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return str(response.text) or None


def _headers_of(response: Any) -> Mapping[str, str]:
    headers = getattr(response, "headers", None)
    return headers if isinstance(headers, Mapping) else {}


_MOST_CHARACTERS: Final = 300
_READ_CHARACTERS: Final = 10_000
"""Of a page of errors that some proxy sends, no more is looked at."""
_HIDDEN: Final = "***"

_FIELDS: Final = (
    r"upload_?id|[a-z_-]*token|[a-z_-]*signature|[a-z_-]*credential|[a-z_-]*secret|private_key(?:_id)?|assertion"
    r"|password|passwd|pwd|(?:api_?)?key|authorization"
)
_SECRETS: Final = (
    (re.compile(r"-----BEGIN.*?(?:-----END[A-Z ]*-----|$)", re.DOTALL), _HIDDEN),
    (re.compile(r"://[^\s'\"<>]*@"), f"://{_HIDDEN}@"),
    (re.compile(r"\?[^\s'\"<>()?]*=[^\s'\"<>()]*"), f"?{_HIDDEN}"),
    (re.compile(r"\b(bearer|basic)\s+[^\s'\",]+", re.IGNORECASE), rf"\1 {_HIDDEN}"),
    # A field of a JSON document, of a form or of the representation of either; its end may have been cut off.
    (
        re.compile(rf"((?:{_FIELDS})\\?['\"]?\s*:\s*\\?)(?:'[^']*'?|\"[^\"]*\"?)", re.IGNORECASE),
        rf"\1{_HIDDEN}",
    ),
    (re.compile(rf"((?:{_FIELDS})=)[^\s&'\"<>()]+", re.IGNORECASE), rf"\1{_HIDDEN}"),
    (re.compile(r"\bya29\.[\w.-]+|\beyJ[\w-]+\.[\w.-]*|\bGOOG[\w-]{16,}|\bAIza[\w-]{20,}"), _HIDDEN),
    (re.compile(r"[\w+/=-]{120,}"), _HIDDEN),
)


def cleaned(text: object) -> str:
    """The text (or what `str` makes of an exception), at most 300 characters, with `***` for secrets."""
    found = str(text)[:_READ_CHARACTERS]
    for secret, instead in _SECRETS:
        found = secret.sub(instead, found)
    return found[:_MOST_CHARACTERS]
