"""Requests to one bucket of Google Cloud Storage: credentials, time-outs, tries, errors of ours.

Owns how a request is made and tried again, and whether the bucket is there. Does not own the names of objects
or what a request says (`gcs.store`), the protocol of an upload session (`gcs.upload`), or the meaning of an
answer (`gcs.errors`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dstl_dagster.errors import ErrorKind, InvalidInputError, UnavailableError
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage.accounting.cost import Cost, CostMeter, Operation
from dstl_dagster.storage.base import Buffer
from dstl_dagster.storage.gcs.client import facts_of, shared_rate_limiter
from dstl_dagster.storage.gcs.errors import may_pass, message_of, refusal, was_refused, with_translated_errors
from dstl_dagster.storage.gcs.upload import Reply
from dstl_dagster.storage.policy.retry import Retries, RetryAttempt, RetryPolicy

if TYPE_CHECKING:
    from google.cloud import storage

_T = TypeVar("_T")
_DEFAULT_TIMEOUT_SECONDS: Final = 60.0


class GCSTransport:
    """The way to one bucket. Any thread.

    Args:
        client: stays the caller's to close.
        bucket_name: the bucket.
        options: time-outs and retries; unset ones default as in `RetryPolicy`.
        retries: override those of the options. Without them all requests of this process to the bucket slow
            down together when the service refuses one.
        meters: count each request, as it is answered or lost.
    """

    def __init__(
        self,
        client: storage.Client,
        bucket_name: str,
        options: GSFileSystemOptions | None = None,
        retries: Retries | None = None,
        meters: Sequence[CostMeter] = (),
    ) -> None:
        self.client = client
        self.bucket = client.bucket(bucket_name)
        self.options = options or GSFileSystemOptions()
        self.own_retries = retries
        self.retries = retries or Retries(
            RetryPolicy.of_requests(self.options), limiter=shared_rate_limiter(client, bucket_name)
        )
        self.meters = tuple(meters)
        self._uri = f"gs://{bucket_name}"
        self.facts = facts_of(client)
        # Else the client asks for the bucket in threads of its own, for the attributes of traces: by billed
        # requests, which it repeats for minutes after the last of ours.
        client._bucket_metadata_cache = None

    def to(self, bucket_name: str, *meters: CostMeter) -> GCSTransport:
        """The way to a bucket for the same caller: its options, retries and meters, and these meters."""
        return GCSTransport(self.client, bucket_name, self.options, self.own_retries, (*self.meters, *meters))

    def once(self, attempt: RetryAttempt) -> dict[str, Any]:
        """The arguments of a method of the client: the attempt's time-outs, and no retries of its own.

        It would repeat a request whose answer was lost, then report a failed precondition, or write twice.
        """
        return {"timeout": self._timeout_seconds(attempt), "retry": None}

    def _timeout_seconds(self, attempt: RetryAttempt) -> tuple[float | None, float | None]:
        """(connect, read); `None` is no limit."""
        connect = _seconds(self.options.http_connect_timeout)
        read = _seconds(self.options.http_read_timeout)
        if attempt.timeout_seconds is not None:
            read = attempt.timeout_seconds if read is None else min(read, attempt.timeout_seconds)
        return connect, read

    # -- requests

    def count(self, cost: Cost) -> None:
        """Count what was requested, in every meter."""
        for meter in self.meters:
            meter.add(cost)

    def _counted(
        self,
        uri: str,
        operation: Operation,
        request: Callable[[RetryAttempt], _T],
        attempt: RetryAttempt,
        bytes_up: int = 0,
    ) -> _T:
        """One request, counted: the one place through which every request of the client goes."""
        refused = False
        try:
            return with_translated_errors(uri, lambda: request(attempt))
        except Exception as error:
            refused = was_refused(error)
            raise
        finally:
            self.count(Cost.of(operation, refused=refused, again=attempt.in_doubt, bytes_up=bytes_up))

    def ask(
        self, uri: str, operation: Operation, request: Callable[[RetryAttempt], _T], *, bytes_up: int = 0
    ) -> _T:
        """Make a request, trying again where the service is unavailable.

        After an attempt whose answer was lost, a ConflictError or NotFoundError may be of our own change:
        `readback.write_own` finds out.

        Args:
            uri: of what, for messages.
            bytes_up: sent with it.
        """
        answer = self.retries.run(lambda attempt: self._counted(uri, operation, request, attempt, bytes_up))
        self.facts.buckets.add(self.bucket.name)
        return answer

    def send(
        self, uri: str, method: str, url: str, headers: Mapping[str, str], body: Buffer, attempt: RetryAttempt
    ) -> Reply:
        """One HTTP request of an upload session, made once, of the object `uri`."""
        self.count(Cost.of(Operation.SESSION, again=attempt.in_doubt, bytes_up=memoryview(body).nbytes))
        return self.send_uncounted(uri, method, url, headers, body, attempt)

    def send_uncounted(
        self, uri: str, method: str, url: str, headers: Mapping[str, str], body: Buffer, attempt: RetryAttempt
    ) -> Reply:
        """`send` for a request that its caller counts."""
        # The client's own session carries the credentials; it has no public name.
        session = self.client._http
        response = with_translated_errors(
            uri,
            lambda: session.request(
                method, url, headers=dict(headers), data=body, timeout=self._timeout_seconds(attempt)
            ),
        )
        if may_pass(response.status_code):
            raise refusal(response.status_code, message_of(response) or "", uri, response.headers)
        # A refusal is a refusal with any body. But a success that cannot be parsed, from a proxy say,
        # leaves open what the request did.
        document = None
        if "json" in response.headers.get("Content-Type", "") and response.content:
            with suppress(ValueError):
                document = response.json()
            if document is None and response.status_code < 400:
                raise UnavailableError(f"the response for {uri!r} cannot be parsed: it is no JSON document")
        return Reply(
            response.status_code,
            response.headers,
            document if isinstance(document, Mapping) else None,
            response.text if response.status_code < 400 else message_of(response) or "",
        )

    # -- the bucket

    def require_bucket(self) -> None:
        """After a 404, which reads the same for an object and for its bucket. Raises: NotFoundError.

        Costs a listing of one object until the bucket has answered anything to this client, then nothing: a
        bucket that is deleted after that is not found out here, but by the next write or listing.
        """
        if self.bucket.name in self.facts.buckets:
            return

        def list_one(attempt: RetryAttempt) -> None:
            pages = self.client.list_blobs(self.bucket, max_results=1, **self.once(attempt)).pages
            next(pages, None)

        try:
            self.ask(self._uri, Operation.LIST, list_one)
        except InvalidInputError as error:
            if error.kind != ErrorKind.NO_PERMISSION:
                raise
            # Where we may not list, there is something that we may not list.


def _seconds(milliseconds: int | None) -> float | None:
    if milliseconds is None:
        return _DEFAULT_TIMEOUT_SECONDS
    return milliseconds / 1000 or None
