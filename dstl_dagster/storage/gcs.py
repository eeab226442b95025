"""Google Cloud Storage as an object store.

Owns the contract's methods, each as requests of google-cloud-storage. Does not own what all requests share
(`gcs_requests`), the loop of attempts (`retrying`), the protocol of an upload in chunks (`gcs_upload`), or
the client that a process shares and what its exceptions mean (`gcs_client`).

Every change carries the caller's precondition, and the client's own retries are off: it repeats a request
whose answer was lost and then tells a failed precondition, or writes twice, as if nothing had happened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dstl_dagster.errors import ConflictError, FormatError, InvalidInputError, NotFoundError
from dstl_dagster.format.crc32c import to_base64
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import (
    Buffer,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    Source,
)
from dstl_dagster.storage.gcs_client import BeyondTheEndError, shared_client
from dstl_dagster.storage.gcs_requests import (
    CONTENT_TYPE,
    BucketRequests,
    generation_match,
    stat_of_resource,
)
from dstl_dagster.storage.gcs_streams import GCSReader, GCSWriter
from dstl_dagster.storage.gcs_upload import DEFAULT_CHUNK_SIZE_BYTES, ResumableUpload
from dstl_dagster.storage.retrying import Try

__all__ = ["GCSObjectStore", "open_gcs"]

_LIST_PAGE_OBJECTS = 1000
_SINGLE_REQUEST_BYTES = 8 * 1024 * 1024
_CORRUPT_READS = 3


class GCSObjectStore(BucketRequests):
    """One bucket, below an optional prefix. Any thread.

    Args:
        client: a `google.cloud.storage.Client`, for example of dagster-gcp's `GCSResource`; it stays the
            caller's to close.
        bucket_name: the bucket.
        prefix: empty, or ending in `/`.
        options: time-outs and retries; what is unset is as `BackoffPolicy` has it.
        retries: in place of the options' ones, with a clock and random numbers of the caller's.
    """

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        return GCSObjectStore(self._client, bucket_name, options=self._options, retries=self._retries)

    # -- writing

    def put(
        self,
        name: str,
        payload: Buffer,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        uri, pairs, octets = self.uri_of(name), rules.check_metadata(metadata), bytes(payload)
        if len(octets) > _SINGLE_REQUEST_BYTES:
            writer = self.open_write(name, precondition=precondition, metadata=pairs)
            try:
                writer.write(octets)
                return writer.close()
            finally:
                writer.abort()

        def upload(attempt: Try) -> ObjectStat:
            blob = self._blob(name, metadata=pairs)
            blob.upload_from_string(
                octets,
                content_type=CONTENT_TYPE,
                if_generation_match=generation_match(precondition),
                checksum="crc32c",
                timeout=self._timeout(attempt),
                retry=None,
            )
            return self._stat_of(blob)

        return self._change(uri, pairs, name, upload)

    def open_write(
        self,
        name: str,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
    ) -> ObjectWriter:
        uri, pairs = self.uri_of(name), rules.check_metadata(metadata)
        size = rules.check_chunk_size(chunk_size) or DEFAULT_CHUNK_SIZE_BYTES

        def start() -> str:
            return self._ask(
                uri,
                lambda attempt: str(
                    self._blob(name, metadata=pairs).create_resumable_upload_session(
                        content_type=CONTENT_TYPE,
                        if_generation_match=generation_match(precondition),
                        timeout=self._timeout(attempt),
                        checksum=None,
                        retry=None,
                    )
                ),
            )

        return GCSWriter(
            uri,
            ResumableUpload(uri, start, self._send, self._retries, size),
            # A small object goes in one request instead of two.
            put=lambda octets: self.put(name, octets, precondition=precondition, metadata=pairs),
            stat_of=lambda resource: stat_of_resource(name, resource),
        )

    # -- reading

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        uri = self.uri_of(name)
        for reads_left in range(_CORRUPT_READS - 1, -1, -1):
            try:
                return self._download(uri, name, generation, checksum="crc32c")
            except FormatError:
                # What was turned on the way is right the next time; what is stored wrong stays wrong.
                if reads_left == 0:
                    raise
        raise AssertionError("unreachable")

    def get_range(self, name: str, start: int, length: int, *, generation: int | None = None) -> bytes:
        rules.check_range(name, start, length)
        uri = self.uri_of(name)
        if length == 0:
            if self.stat(name, generation=generation) is None:
                raise rules.missing(uri, generation)
            return b""
        try:
            return self._download(uri, name, generation, start=start, end=start + length - 1, checksum=None)
        except BeyondTheEndError:
            return b""

    def _download(self, uri: str, name: str, generation: int | None, **span: Any) -> bytes:
        def download(attempt: Try) -> bytes:
            payload = self._blob(name, generation).download_as_bytes(
                raw_download=True, timeout=self._timeout(attempt), retry=None, **span
            )
            return bytes(payload)

        return self._ask(uri, download)

    def open_read(self, name: str, *, start: int = 0, generation: int | None = None) -> ObjectReader:
        rules.check_range(name, start)
        found = self.stat(name, generation=generation)
        if found is None:
            raise rules.missing(self.uri_of(name), generation)
        # Every part is read of the generation that was found, so that no two are ever mixed.
        return GCSReader(
            self.uri_of(name),
            found,
            start,
            lambda first, length: self.get_range(name, first, length, generation=found.generation),
        )

    def list(self, prefix: str = "", *, start_offset: str | None = None) -> Iterator[ObjectStat]:
        offset = None if start_offset is None else self._prefix + start_offset
        token: str | None = None
        while True:
            page, token = self._page(self._prefix + prefix, offset, token)
            yield from page
            if token is None:
                return

    def _page(
        self, full_prefix: str, offset: str | None, token: str | None
    ) -> tuple[Sequence[ObjectStat], str | None]:
        def fetch(attempt: Try) -> tuple[Sequence[ObjectStat], str | None]:
            walk = self._client.list_blobs(
                self._bucket,
                prefix=full_prefix or None,
                start_offset=offset,
                page_token=token,
                page_size=_LIST_PAGE_OBJECTS,
                timeout=self._timeout(attempt),
                retry=None,
            )
            page = next(walk.pages, ())
            return [self._stat_of(blob) for blob in page], walk.next_page_token

        return self._ask(self.uri, fetch)

    # -- compose, copy, delete

    def compose(
        self,
        sources: Sequence[Source],
        target: str,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
        delete_sources: bool = False,
        crc32c: int | None = None,
    ) -> ObjectStat:
        rules.check_compose(sources, target)
        uri, pairs = self.uri_of(target), rules.check_metadata(metadata)

        def compose_once(attempt: Try) -> ObjectStat:
            blob = self._blob(target, metadata=pairs)
            if crc32c is not None:
                # The resource may carry the wanted checksum; the client has no parameter for it.
                blob._properties["crc32c"] = to_base64(crc32c)
            blob.compose(
                [self._blob(source.name, source.generation) for source in sources],
                if_generation_match=generation_match(precondition),
                delete_source_objects=True if delete_sources else None,
                timeout=self._timeout(attempt),
                retry=None,
            )
            return self._stat_of(blob)

        made = self._change(uri, pairs, target, compose_once)
        rules.check_crc32c(uri, made.crc32c, crc32c)
        return made

    def copy(
        self,
        source: Source,
        target: str,
        *,
        to: ObjectStore | None = None,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        destination = self if to is None else to
        if not isinstance(destination, GCSObjectStore):
            raise InvalidInputError(f"cannot copy from {self.uri!r} to another kind of store, {to!r}")
        uri, pairs = destination.uri_of(target), rules.check_metadata(metadata)
        source_blob = self._blob(source.name, source.generation)
        token: str | None = None

        def rewrite_once(attempt: Try) -> ObjectStat:
            nonlocal token
            while True:
                blob = destination._blob(target, metadata=pairs)
                # A large copy takes several calls; only the last one makes the object.
                token, _, _ = blob.rewrite(
                    source_blob,
                    token=token,
                    if_generation_match=generation_match(precondition),
                    timeout=self._timeout(attempt),
                    retry=None,
                )
                if token is None:
                    return destination._stat_of(blob)

        return destination._change(uri, pairs, target, rewrite_once)

    def delete(self, name: str, *, precondition: Precondition) -> bool:
        rules.check_delete(name, precondition)

        def delete_once(attempt: Try) -> bool:
            self._blob(name).delete(
                if_generation_match=generation_match(precondition),
                timeout=self._timeout(attempt),
                retry=None,
            )
            return True

        try:
            return self._ask(self.uri_of(name), delete_once)
        except NotFoundError as error:
            if "bucket does not exist" in error.message:
                raise
            return False
        except ConflictError:
            # The service compares before it looks: nothing there is a failed condition, too.
            if self.stat(name) is None:
                return False
            raise

    def close(self) -> None:
        """Nothing: the client is the caller's, or shared by the process."""


def open_gcs(uri: str, options: GSFileSystemOptions) -> GCSObjectStore:
    """The store of `gs://bucket[/prefix]`, on a client that this process shares.

    Raises: InvalidInputError (the URI, or no credentials).
    """
    bucket_name, prefix = rules.split_bucket_uri(uri, "gs")
    rules.check_bucket_name(bucket_name)
    client = shared_client(os.getpid(), options.storage_root_url, os.environ.get("STORAGE_EMULATOR_HOST"))
    return GCSObjectStore(client, bucket_name, prefix, options=options)
