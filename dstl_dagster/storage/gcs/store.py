"""Google Cloud Storage as an object store.

Owns the contract's methods, and the requests that change something. Does not own reading (`gcs.reading`), how
a request is made and tried again (`gcs.transport`), what its errors mean (`gcs.errors`), names and resources
(`gcs.json_api`), the protocols of an upload in chunks (`gcs.upload`) and of a batch (`gcs.batch_deletes`), or
the client of the process (`gcs.client`).

Every change carries the caller's precondition.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from dstl_dagster.errors import ConflictError, ErrorKind, FormatError, InvalidInputError, NotFoundError
from dstl_dagster.format.crc32c import to_base64
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import rules
from dstl_dagster.storage.accounting.cost import Cost, CostMeter, Operation
from dstl_dagster.storage.base import (
    Buffer,
    Generation,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    Source,
    StoreCapabilities,
    each_deleted,
)
from dstl_dagster.storage.gcs.batch_deletes import BatchesRefusedError, batch_delete
from dstl_dagster.storage.gcs.client import shared_client
from dstl_dagster.storage.gcs.json_api import GCSNames, content_type_of, generation_match, stat_of_resource
from dstl_dagster.storage.gcs.reading import GCSReading
from dstl_dagster.storage.gcs.transport import GCSTransport
from dstl_dagster.storage.gcs.upload import DEFAULT_CHUNK_SIZE_BYTES, GCSWriter, ResumableUpload
from dstl_dagster.storage.policy.retry import Retries, RetryAttempt

if TYPE_CHECKING:
    from google.cloud import storage

_SENDS = 3
_SINGLE_REQUEST_BYTES = 8 * 1024 * 1024
_CAPABILITIES = StoreCapabilities(batch_deletes=True, seconds_between_updates=1.0)
_WITHOUT_BATCHES = replace(_CAPABILITIES, batch_deletes=False)


class GCSObjectStore(GCSReading, ObjectStore):
    """One bucket, below an optional prefix. Any thread.

    Args:
        client: a `google.cloud.storage.Client`, for example of dagster-gcp's `GCSResource`; it stays the
            caller's to close.
        bucket_name: the bucket.
        prefix: empty, or ending in `/`.
        options: time-outs and retries; unset ones default as in `RetryPolicy`.
        retries: override those of the options, with the caller's clock and jitter.
    """

    def __init__(
        self,
        client: storage.Client,
        bucket_name: str,
        prefix: str = "",
        *,
        options: GSFileSystemOptions | None = None,
        retries: Retries | None = None,
    ) -> None:
        self._attach(GCSTransport(client, rules.check_bucket_name(bucket_name), options, retries), prefix)

    @classmethod
    def _of(cls, transport: GCSTransport, prefix: str) -> GCSObjectStore:
        store = cls.__new__(cls)
        store._attach(transport, prefix)
        return store

    def _attach(self, transport: GCSTransport, prefix: str) -> None:
        self._transport = transport
        self._names = GCSNames(transport.bucket, prefix)

    def __repr__(self) -> str:
        return f"GCSObjectStore({self.uri!r})"

    @property
    def capabilities(self) -> StoreCapabilities:
        return _CAPABILITIES if self._transport.facts.takes_batches else _WITHOUT_BATCHES

    # -- where objects are

    @property
    def uri(self) -> str:
        return self._names.uri

    @property
    def bucket_name(self) -> str:
        return str(self._transport.bucket.name)

    @property
    def prefix(self) -> str:
        return self._names.prefix

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        return GCSObjectStore._of(self._transport.to(rules.check_bucket_name(bucket_name)), "")

    def locate(self, uri: str) -> tuple[str, str]:
        bucket_name, name = rules.split_object_uri(uri, "gs")
        return rules.check_bucket_name(bucket_name), name

    def uri_of(self, name: str) -> str:
        return self._names.uri_of(name)

    def counted_by(self, meter: CostMeter) -> ObjectStore:
        return GCSObjectStore._of(self._transport.to(self.bucket_name, meter), self.prefix)

    # -- writing

    def put(
        self,
        name: str,
        payload: Buffer,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        pairs, octets = rules.check_metadata(metadata), bytes(payload)
        for sends_left in range(_SENDS - 1, -1, -1):
            try:
                return self._put_once(name, octets, precondition, pairs)
            except (NotFoundError, FormatError) as error:
                # No object was created, and the bytes are still here.
                if sends_left == 0 or error.kind != ErrorKind.UPLOAD_LOST:
                    raise
                self._transport.count(Cost(retries=1))
        raise AssertionError("unreachable")

    def _put_once(
        self, name: str, octets: bytes, precondition: Precondition, pairs: Mapping[str, str]
    ) -> ObjectStat:
        if len(octets) > _SINGLE_REQUEST_BYTES:
            return super().put(name, octets, precondition=precondition, metadata=pairs)

        def upload(attempt: RetryAttempt) -> ObjectStat:
            blob = self._names.blob(name, metadata=pairs)
            blob.upload_from_string(
                octets,
                content_type=content_type_of(name),
                if_generation_match=generation_match(precondition),
                checksum="crc32c",
                **self._transport.once(attempt),
            )
            return self._stat_of(blob)

        try:
            return self._transport.ask(self.uri_of(name), Operation.INSERT, upload, bytes_up=len(octets))
        except FormatError as error:
            raise rules.damaged_upload(self.uri_of(name)) from error

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
            return self._transport.ask(
                uri,
                Operation.INSERT,
                lambda attempt: str(
                    self._names.blob(name, metadata=pairs).create_resumable_upload_session(
                        content_type=content_type_of(name),
                        if_generation_match=generation_match(precondition),
                        checksum=None,
                        **self._transport.once(attempt),
                    )
                ),
            )

        return GCSWriter(
            uri,
            ResumableUpload(uri, start, partial(self._transport.send, uri), self._transport.retries, size),
            # A small object goes in one request instead of two.
            put=lambda octets: self.put(name, octets, precondition=precondition, metadata=pairs),
            stat_of=lambda resource: stat_of_resource(name, resource, self._ask_crc32c),
        )

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
        pairs = rules.check_metadata(metadata)

        def compose_once(attempt: RetryAttempt) -> ObjectStat:
            blob = self._names.blob(target, metadata=pairs)
            if crc32c is not None:
                # The resource may carry the expected checksum; the client has no parameter for it.
                blob._properties["crc32c"] = to_base64(crc32c)
            body = {
                "sourceObjects": [
                    {"name": self._names.full_name(each.name), "generation": each.generation}
                    for each in sources
                ],
                "destination": blob._properties.copy(),
            }
            if delete_sources:
                body["deleteSourceObjects"] = True  # `Blob.compose` has it since 3.11
            match = generation_match(precondition)
            composed = blob.client._post_resource(
                f"{blob.path}/compose",
                body,
                query_params=blob._query_params | ({} if match is None else {"ifGenerationMatch": match}),
                **self._transport.once(attempt),
                _target_object=blob,
            )
            blob._set_properties(composed)
            return self._stat_of(blob)

        made = self._transport.ask(self.uri_of(target), Operation.COMPOSE, compose_once)
        rules.check_crc32c(self.uri_of(target), made.crc32c, crc32c)
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
        pairs = rules.check_metadata(metadata)
        source_blob = self._names.blob(source.name, source.generation)
        token: str | None = None

        def rewrite_once(attempt: RetryAttempt) -> ObjectStat:
            nonlocal token
            while True:
                blob = destination._names.blob(target, metadata=pairs)
                # A large copy takes several calls; only the last one makes the object.
                token, _, _ = blob.rewrite(
                    source_blob,
                    token=token,
                    if_generation_match=generation_match(precondition),
                    **self._transport.once(attempt),
                )
                if token is None:
                    return destination._stat_of(blob)
                destination._transport.count(Cost.of(Operation.REWRITE_ON))

        made = destination._transport.ask(destination.uri_of(target), Operation.REWRITE, rewrite_once)
        if not pairs.items() <= made.metadata.items():
            # Without its stamp it would count as another's for ever.
            destination.delete(target, precondition=Generation(made.generation))
            raise InvalidInputError(
                f"the service copies {self.uri_of(source.name)!r} with its metadata instead of with that of "
                "the request, so no copy is provably this package's; set no temporary bucket "
                "(gs.writer.temporary.bucket.name)"
            )
        return made

    def delete(self, name: str, *, precondition: Precondition) -> bool:
        rules.check_delete(name, precondition)
        in_doubt = False

        def delete_once(attempt: RetryAttempt) -> bool:
            nonlocal in_doubt
            in_doubt = attempt.in_doubt
            self._names.blob(name).delete(
                if_generation_match=generation_match(precondition),
                **self._transport.once(attempt),
            )
            return True

        try:
            return self._transport.ask(self.uri_of(name), Operation.DELETE, delete_once)
        except NotFoundError:
            self._transport.require_bucket()
            return in_doubt  # the try whose answer was lost has deleted it
        except ConflictError:
            # The service compares first: where nothing is live, the precondition fails too.
            if self.stat(name) is None:
                return in_doubt
            raise

    def delete_all(self, objects: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        rules.check_delete_all(objects)
        try:
            answers = list(batch_delete(self._transport, self._names, objects))
        except BatchesRefusedError:
            self._transport.facts.takes_batches = False
            return each_deleted(self, objects)
        for at, answer in enumerate(answers):
            if isinstance(answer, ConflictError) and self.stat(objects[at][0]) is None:
                answers[at] = False  # as in `delete`
        if answers and not any(answers):
            self._transport.require_bucket()
        return answers

    # -- the bucket

    def server_time(self) -> datetime | None:
        return self._transport.facts.time

    def bucket_resource(self) -> Mapping[str, Any]:
        def reload(attempt: RetryAttempt) -> Mapping[str, Any]:
            bucket = self._transport.client.bucket(self.bucket_name)
            bucket.reload(**self._transport.once(attempt))
            return dict(bucket._properties)

        return self._transport.ask(f"gs://{self.bucket_name}", Operation.BUCKET, reload)

    def missing_permissions(self, wanted: Sequence[str]) -> Sequence[str]:
        def test(attempt: RetryAttempt) -> Sequence[str]:
            granted = self._transport.bucket.test_iam_permissions(
                list(wanted), **self._transport.once(attempt)
            )
            return [permission for permission in wanted if permission not in granted]

        return self._transport.ask(f"gs://{self.bucket_name}", Operation.PERMISSIONS, test)


def open_gcs(uri: str, options: GSFileSystemOptions, client: storage.Client | None = None) -> GCSObjectStore:
    """The store of `gs://bucket[/prefix]`, by default on a client that this process shares.

    Raises: InvalidInputError (the URI, or no credentials).
    """
    bucket_name, prefix = rules.split_bucket_uri(uri, "gs")
    rules.check_bucket_name(bucket_name)
    if client is None:
        host = os.environ.get("STORAGE_EMULATOR_HOST")
        client = shared_client(os.getpid(), options.storage_root_url, host)
    return GCSObjectStore(client, bucket_name, prefix, options=options)
