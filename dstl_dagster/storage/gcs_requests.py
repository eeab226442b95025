"""Single requests of one bucket to Google Cloud Storage: time-outs, attempts, names, and answers as stats.

Owns what every method of the store needs to make a request and to understand its answer. Does not own the
store's methods (`gcs`), or the client that a process shares and what its exceptions mean (`gcs_client`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar

from google.cloud import storage

from dstl_dagster.errors import ConflictError, NotFoundError
from dstl_dagster.format.crc32c import from_base64
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import Absent, Buffer, Generation, ObjectStat, Precondition, StoreCapabilities
from dstl_dagster.storage.gcs_client import told
from dstl_dagster.storage.gcs_upload import Reply, refusal
from dstl_dagster.storage.readback import WRITER_ID_KEY, Expected
from dstl_dagster.storage.retrying import BackoffPolicy, Retries, Try

__all__ = ["CONTENT_TYPE", "BucketRequests", "generation_match", "stat_of_resource"]

_T = TypeVar("_T")
CONTENT_TYPE = "application/octet-stream"
_DEFAULT_TIMEOUT_SECONDS = 60.0
_CAPABILITIES = StoreCapabilities(write_summed=True)


class BucketRequests:
    """The part of `GCSObjectStore` beneath its methods. Any thread."""

    def __init__(
        self,
        client: storage.Client,
        bucket_name: str,
        prefix: str = "",
        *,
        options: GSFileSystemOptions | None = None,
        retries: Retries | None = None,
    ) -> None:
        self._client = client
        self._bucket_name = rules.check_bucket_name(bucket_name)
        self._prefix = rules.check_prefix(prefix)
        self._options = options or GSFileSystemOptions()
        self._retries = retries or Retries(BackoffPolicy.from_options(self._options))
        self._bucket = client.bucket(bucket_name)

    def __repr__(self) -> str:
        return f"GCSObjectStore({self.uri!r})"

    # -- where objects are

    @property
    def capabilities(self) -> StoreCapabilities:
        return _CAPABILITIES

    @property
    def uri(self) -> str:
        return f"gs://{self._bucket_name}/{self._prefix}".rstrip("/")

    @property
    def bucket_name(self) -> str:
        return self._bucket_name

    @property
    def prefix(self) -> str:
        return self._prefix

    def locate(self, uri: str) -> tuple[str, str]:
        bucket_name, name = rules.split_object_uri(uri, "gs")
        return rules.check_bucket_name(bucket_name), name

    def uri_of(self, name: str) -> str:
        return f"gs://{self._bucket_name}/{self._full(name)}"

    def _full(self, name: str) -> str:
        rules.check_name(name)
        return rules.check_name(self._prefix + name)

    # -- the bucket

    def bucket_resource(self) -> Mapping[str, Any]:
        """The bucket's settings, as the JSON API words them. Takes storage.buckets.get."""

        def reload(attempt: Try) -> Mapping[str, Any]:
            bucket = self._client.bucket(self._bucket_name)
            bucket.reload(timeout=self._timeout(attempt), retry=None)
            return dict(bucket._properties)

        return self._ask(self.uri, reload)

    def missing_permissions(self, wanted: Sequence[str]) -> Sequence[str]:
        """Those of `wanted` that the credentials do not have here. Takes no permission itself."""

        def test(attempt: Try) -> Sequence[str]:
            granted = self._bucket.test_iam_permissions(
                list(wanted), timeout=self._timeout(attempt), retry=None
            )
            return [permission for permission in wanted if permission not in granted]

        return self._ask(self.uri, test)

    # -- one request

    def _ask(self, uri: str, request: Callable[[Try], _T]) -> _T:
        return self._retries.run(lambda attempt: told(uri, lambda: request(attempt)))

    def _change(
        self, uri: str, metadata: Mapping[str, str], name: str, request: Callable[[Try], ObjectStat]
    ) -> ObjectStat:
        """Ask, and after a lost answer look whether a refusal is our own success."""

        def once(attempt: Try) -> ObjectStat:
            try:
                return told(uri, lambda: request(attempt))
            except (ConflictError, NotFoundError):
                stamp = {WRITER_ID_KEY: metadata[WRITER_ID_KEY]} if WRITER_ID_KEY in metadata else {}
                found = self.stat(name) if stamp and attempt.in_doubt else None
                if found is None or not Expected(stamp).matches(found):
                    raise
                return found

        return self._retries.run(once)

    def _timeout(self, attempt: Try) -> tuple[float | None, float | None]:
        """(connect, read) in seconds; None is no limit."""
        connect = _seconds(self._options.http_connect_timeout)
        read = _seconds(self._options.http_read_timeout)
        if attempt.timeout_seconds is not None:
            read = attempt.timeout_seconds if read is None else min(read, attempt.timeout_seconds)
        return connect, read

    def _blob(
        self, name: str, generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> storage.Blob:
        blob = self._bucket.blob(self._full(name), generation=generation)
        if metadata is not None:
            blob.metadata = dict(metadata)
            blob.content_type = CONTENT_TYPE
        return blob

    def _stat_of(self, blob: storage.Blob) -> ObjectStat:
        return stat_of_resource(blob.name[len(self._prefix) :], blob._properties)

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: Buffer, attempt: Try) -> Reply:
        # The client's own session carries the credentials; it has no public name.
        session = self._client._http
        response = told(
            url.partition("?")[0],
            lambda: session.request(
                method, url, headers=dict(headers), data=body, timeout=self._timeout(attempt)
            ),
        )
        if response.status_code in (408, 429) or response.status_code >= 500:
            raise refusal(response.status_code, response.text, url.partition("?")[0])
        is_json = "json" in response.headers.get("Content-Type", "") and response.content
        return Reply(
            response.status_code, response.headers, response.json() if is_json else None, response.text
        )

    def stat(self, name: str, *, generation: int | None = None) -> ObjectStat | None:
        def reload(attempt: Try) -> ObjectStat:
            blob = self._blob(name, generation)
            blob.reload(timeout=self._timeout(attempt), retry=None)
            return self._stat_of(blob)

        try:
            return self._ask(self.uri_of(name), reload)
        except NotFoundError as error:
            if "bucket does not exist" in error.message:
                raise
            return None


def generation_match(precondition: Precondition) -> int | None:
    """The value of `ifGenerationMatch`; None sends none."""
    match precondition:
        case Absent():
            return 0
        case Generation(generation):
            return generation
        case _:
            return None


def stat_of_resource(name: str, resource: Mapping[str, Any]) -> ObjectStat:
    """An object resource of the JSON API, under the store's name for it."""
    return ObjectStat(
        name=name,
        generation=int(resource["generation"]),
        size=int(resource["size"]),
        crc32c=from_base64(resource["crc32c"]),
        updated=datetime.fromisoformat(resource["updated"]),
        metadata=MappingProxyType(dict(resource.get("metadata") or {})),
    )


def _seconds(milliseconds: int | None) -> float | None:
    if milliseconds is None:
        return _DEFAULT_TIMEOUT_SECONDS
    return milliseconds / 1000 or None
