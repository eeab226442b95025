"""Buckets, objects, generations and preconditions of the strict server, without HTTP.

Owns what a request does to the stored objects, each as one step under one lock. Does not own parsing,
uploads in parts (`uploads`), or faults. Shares no code with the stores that are tested against it.
"""

from __future__ import annotations

import base64
import bisect
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import google_crc32c

from dstl_dagster.testing.gcs_server.journal import Journal

__all__ = ["ApiError", "Model", "Preconditions", "StoredObject", "crc32c_text"]

MAX_COMPOSE_SOURCES = 32


class ApiError(Exception):
    """An answer that is an error, as the service words it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message


def crc32c_text(payload: bytes) -> str:
    """As in object resources and `X-Goog-Hash`."""
    return base64.b64encode(int(google_crc32c.value(payload)).to_bytes(4, "big")).decode()


@dataclass(frozen=True)
class StoredObject:
    """One live generation."""

    bucket: str
    name: str
    payload: bytes
    generation: int
    metageneration: int
    created: str
    updated: str
    crc32c: str
    md5: str | None
    content_type: str
    metadata: Mapping[str, str]
    component_count: int | None = None

    def resource(self) -> dict[str, Any]:
        """The JSON object resource."""
        resource: dict[str, Any] = {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "contentType": self.content_type,
            "storageClass": "STANDARD",
            "size": str(len(self.payload)),
            "crc32c": self.crc32c,
            "etag": base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode(),
            "timeCreated": self.created,
            "updated": self.updated,
            "timeStorageClassUpdated": self.created,
        }
        if self.md5 is not None:
            resource["md5Hash"] = self.md5
        if self.metadata:
            resource["metadata"] = dict(self.metadata)
        if self.component_count is not None:
            resource["componentCount"] = self.component_count
        return resource


@dataclass(frozen=True)
class Preconditions:
    """The four conditions of a request; None is not asked for."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def check(self, live: StoredObject | None, *, reading: bool = False) -> None:
        """Raises: ApiError 412, or 304 for a read whose not-match condition fails."""
        generation = live.generation if live else 0
        if self.generation_match is not None and self.generation_match != generation:
            raise _condition_not_met()
        if self.generation_not_match is not None and self.generation_not_match == generation:
            raise ApiError(304, "notModified", "Not Modified") if reading else _condition_not_met()
        metageneration = live.metageneration if live else None
        if self.metageneration_match is not None and self.metageneration_match != metageneration:
            raise _condition_not_met()
        if self.metageneration_not_match is not None and self.metageneration_not_match == metageneration:
            raise ApiError(304, "notModified", "Not Modified") if reading else _condition_not_met()


@dataclass
class _Bucket:
    resource: dict[str, Any]
    objects: dict[str, StoredObject] = field(default_factory=dict)
    ordered: list[bytes] = field(default_factory=list)


class Model:
    """All buckets of one server. Every method is one step.

    Args:
        folder: keeps everything there, across kills; None: in memory.
        one_update_a_second: refuse a second change of one object within a second with 429, as the service
            does when it is held to its promise.
        seconds: the clock of that limit.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        one_update_a_second: bool = False,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.RLock()
        self._buckets: dict[str, _Bucket] = {}
        self._last_generation = 0
        self._last_update: dict[tuple[str, str], float] = {}
        self._one_update_a_second = one_update_a_second
        self._seconds = seconds
        self._journal: Journal | None = None
        if folder is not None:
            journal = Journal(folder)
            for change in journal.replay():
                self._replay(change, journal)
            self._journal = journal

    def close(self) -> None:
        """Close the journal."""
        with self.lock:
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    # -- buckets

    def create_bucket(self, name: str, resource: Mapping[str, Any]) -> dict[str, Any]:
        """409 where it exists."""
        with self.lock:
            if name in self._buckets:
                raise ApiError(409, "conflict", "Your previous request to create the named bucket succeeded")
            now = _now()
            full = {
                **resource,
                "kind": "storage#bucket",
                "id": name,
                "name": name,
                "timeCreated": now,
                "updated": now,
                "metageneration": "1",
                "location": resource.get("location", "US"),
                "storageClass": resource.get("storageClass", "STANDARD"),
            }
            self._buckets[name] = _Bucket(full)
            self._write({"bucket": full})
            return full

    def bucket_resource(self, name: str) -> dict[str, Any]:
        """404 where it does not exist."""
        with self.lock:
            return dict(self._bucket(name).resource)

    def bucket_names(self) -> list[str]:
        """In order."""
        with self.lock:
            return sorted(self._buckets)

    def delete_bucket(self, name: str) -> None:
        """409 where it holds objects."""
        with self.lock:
            if self._bucket(name).objects:
                raise ApiError(409, "conflict", "The bucket you tried to delete is not empty.")
            del self._buckets[name]
            self._write({"no_bucket": name})

    # -- reading

    def find(
        self, bucket: str, name: str, generation: int | None = None, conditions: Preconditions | None = None
    ) -> StoredObject:
        """404 where there is no such live generation."""
        with self.lock:
            live = self._bucket(bucket).objects.get(name)
            if live is None or generation not in (None, live.generation):
                raise _no_such_object(bucket, name)
            (conditions or Preconditions()).check(live, reading=True)
            return live

    def names_from(self, bucket: str, first: bytes, count: int) -> list[StoredObject]:
        """Up to `count` objects from the name `first` on, in the order of UTF-8."""
        with self.lock:
            found = self._bucket(bucket)
            start = bisect.bisect_left(found.ordered, first)
            return [found.objects[key.decode()] for key in found.ordered[start : start + count]]

    # -- changing

    def insert(
        self,
        bucket: str,
        name: str,
        payload: bytes,
        resource: Mapping[str, Any],
        conditions: Preconditions,
        *,
        component_count: int | None = None,
        delete: Sequence[StoredObject] = (),
    ) -> StoredObject:
        """Make a generation, after every check; `delete` goes in the same step."""
        with self.lock:
            found = self._bucket(bucket)
            _check_name(name)
            conditions.check(found.objects.get(name))
            _check_hashes(payload, resource)
            self._check_rate(bucket, name)
            now = _now()
            made = StoredObject(
                bucket=bucket,
                name=name,
                payload=payload,
                generation=self._next_generation(),
                metageneration=1,
                created=now,
                updated=now,
                crc32c=crc32c_text(payload),
                # The service knows no MD5 of a composite object.
                md5=None if component_count else base64.b64encode(hashlib.md5(payload).digest()).decode(),  # noqa: S324 (the service's checksum, no secret)
                content_type=resource.get("contentType") or "application/octet-stream",
                metadata={str(key): str(value) for key, value in (resource.get("metadata") or {}).items()},
                component_count=component_count,
            )
            gone = [old for old in delete if old.name != name]
            if self._journal is not None:
                self._journal.write_payload(made.generation, payload)
            self._write({"put": _to_json(made), "gone": [[old.bucket, old.name] for old in gone]})
            self._put(made)
            for old in gone:
                self._drop(old.bucket, old.name)
            return made

    def compose(
        self, bucket: str, target: str, request: Mapping[str, Any], conditions: Preconditions
    ) -> StoredObject:
        """Concatenate live sources of the same bucket."""
        sources = request.get("sourceObjects") or []
        if not 1 <= len(sources) <= MAX_COMPOSE_SOURCES:
            raise ApiError(
                400, "invalid", f"The number of source components provided ({len(sources)}) must be 1 to 32"
            )
        with self.lock:
            live = [self._compose_source(bucket, source) for source in sources]
            counts = [source.component_count or 1 for source in live]
            return self.insert(
                bucket,
                target,
                b"".join(source.payload for source in live),
                request.get("destination") or {},
                conditions,
                component_count=sum(counts),
                delete=live if request.get("deleteSourceObjects") else (),
            )

    def _compose_source(self, bucket: str, source: Mapping[str, Any]) -> StoredObject:
        generation = source.get("generation")
        live = self.find(bucket, source["name"], None if generation is None else int(generation))
        wanted = (source.get("objectPreconditions") or {}).get("ifGenerationMatch")
        if wanted is not None and int(wanted) != live.generation:
            raise _condition_not_met()
        return live

    def patch(
        self, bucket: str, name: str, resource: Mapping[str, Any], conditions: Preconditions
    ) -> StoredObject:
        """Change custom metadata and content type: a new metageneration of the same generation."""
        with self.lock:
            live = self.find(bucket, name)
            conditions.check(live)
            metadata = dict(live.metadata)
            if "metadata" in resource:
                for key, value in (resource["metadata"] or {}).items():
                    if value is None:
                        metadata.pop(key, None)
                    else:
                        metadata[key] = str(value)
                if resource["metadata"] is None:
                    metadata = {}
            changed = replace(
                live,
                metadata=metadata,
                metageneration=live.metageneration + 1,
                updated=_now(),
                content_type=resource.get("contentType", live.content_type),
            )
            self._write({"put": _to_json(changed), "gone": []})
            self._put(changed)
            return changed

    def delete(self, bucket: str, name: str, generation: int | None, conditions: Preconditions) -> None:
        """404 where there is no such live generation; 412 where a condition fails."""
        with self.lock:
            live = self.find(bucket, name, generation)
            conditions.check(live)
            self._check_rate(bucket, name)
            self._write({"gone": [[bucket, name]]})
            self._drop(bucket, name)

    # -- inside, under the lock

    def _bucket(self, name: str) -> _Bucket:
        found = self._buckets.get(name)
        if found is None:
            raise ApiError(404, "notFound", "The specified bucket does not exist.")
        return found

    def _next_generation(self) -> int:
        self._last_generation = max(self._last_generation + 1, time.time_ns() // 1000)
        return self._last_generation

    def _check_rate(self, bucket: str, name: str) -> None:
        if not self._one_update_a_second:
            return
        now = self._seconds()
        last = self._last_update.get((bucket, name))
        if last is not None and now - last < 1.0:
            raise ApiError(429, "rateLimitExceeded", f"The object {bucket}/{name} exceeded the rate limit")
        self._last_update[(bucket, name)] = now

    def _put(self, made: StoredObject) -> None:
        found = self._buckets[made.bucket]
        old = found.objects.get(made.name)
        if old is None:
            bisect.insort(found.ordered, made.name.encode())
        elif self._journal is not None and old.generation != made.generation:
            self._journal.drop_payload(old.generation)
        found.objects[made.name] = made

    def _drop(self, bucket: str, name: str) -> None:
        found = self._buckets[bucket]
        old = found.objects.pop(name, None)
        if old is not None:
            del found.ordered[bisect.bisect_left(found.ordered, name.encode())]
            if self._journal is not None:
                self._journal.drop_payload(old.generation)

    def _write(self, change: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.append({**change, "last_generation": self._last_generation})

    def _replay(self, change: Mapping[str, Any], journal: Journal) -> None:
        self._last_generation = max(self._last_generation, change["last_generation"])
        if "bucket" in change:
            self._buckets[change["bucket"]["name"]] = _Bucket(change["bucket"])
        if "no_bucket" in change:
            del self._buckets[change["no_bucket"]]
        if "put" in change:
            self._put(_from_json(change["put"], journal))
        for bucket, name in change.get("gone", ()):
            self._drop(bucket, name)


def _to_json(stored: StoredObject) -> dict[str, Any]:
    document = dict(vars(stored))
    del document["payload"]
    return {**document, "metadata": dict(stored.metadata)}


def _from_json(document: Mapping[str, Any], journal: Journal) -> StoredObject:
    try:
        payload = journal.read_payload(document["generation"])
    except FileNotFoundError:
        payload = b""  # a later line of the journal replaces or deletes it
    return StoredObject(payload=payload, **document)


def _check_name(name: str) -> None:
    size = len(name.encode())
    if not 1 <= size <= 1024 or set(name) & {"\r", "\n", "\0"} or name in (".", ".."):
        raise ApiError(400, "invalid", f"Disallowed object name of {size} bytes")


def _check_hashes(payload: bytes, resource: Mapping[str, Any]) -> None:
    wanted = resource.get("crc32c")
    if wanted and wanted != crc32c_text(payload):
        raise ApiError(400, "invalid", f"Provided CRC32C {wanted!r} doesn't match calculated CRC32C.")
    wanted = resource.get("md5Hash")
    if wanted and wanted != base64.b64encode(hashlib.md5(payload).digest()).decode():  # noqa: S324 (as above)
        raise ApiError(400, "invalid", f"Provided MD5 hash {wanted!r} doesn't match calculated MD5 hash.")


def _condition_not_met() -> ApiError:
    return ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def _no_such_object(bucket: str, name: str) -> ApiError:
    return ApiError(404, "notFound", f"No such object: {bucket}/{name}")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
