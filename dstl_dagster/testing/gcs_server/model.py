"""Buckets, objects, generations and preconditions of the strict server, without HTTP.

Owns the effect of each request on the stored objects, as one step under one lock. Does not own parsing,
resumable uploads (`uploads`), the checks (`objects`) or faults. Shares no code with the stores that are
tested against it.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dstl_dagster.testing.gcs_server.journal import Journal
from dstl_dagster.testing.gcs_server.objects import (
    ApiError,
    Preconditions,
    StoredObject,
    check_content_type,
    check_hashes,
    check_name,
    condition_not_met,
    crc32c_text,
    md5_text,
    no_such_object,
)

__all__ = ["Model"]

MAX_COMPOSE_SOURCES = 32
_MIN_LINES = 1000


@dataclass
class _Bucket:
    resource: dict[str, Any]
    objects: dict[str, StoredObject] = field(default_factory=dict)
    ordered: list[bytes] = field(default_factory=list)


class Model:
    """All buckets of one server. Every method is one atomic step.

    Args:
        folder: persists everything there, across kills; None: in memory.
        one_update_a_second: answer a second change of one object within a second with 429, which the
            service may do.
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
            journal.compact(self._snapshot(), self._live_generations())
            self._journal = journal

    def close(self) -> None:
        with self.lock:
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    # -- buckets

    def create_bucket(self, name: str, resource: Mapping[str, Any]) -> dict[str, Any]:
        """409 if it exists."""
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
        """404 if it does not exist."""
        with self.lock:
            return dict(self._bucket(name).resource)

    def bucket_names(self) -> list[str]:
        with self.lock:
            return sorted(self._buckets)

    def delete_bucket(self, name: str) -> None:
        """409 if it holds objects."""
        with self.lock:
            if self._bucket(name).objects:
                raise ApiError(409, "conflict", "The bucket you tried to delete is not empty.")
            del self._buckets[name]
            self._write({"no_bucket": name})

    # -- reading

    def find(
        self, bucket: str, name: str, generation: int | None = None, conditions: Preconditions | None = None
    ) -> StoredObject:
        """404 if there is no such live generation."""
        with self.lock:
            live = self._bucket(bucket).objects.get(name)
            if live is None or generation not in (None, live.generation):
                raise no_such_object(bucket, name)
            (conditions or Preconditions()).check(live, reading=True)
            return live

    def names_from(self, bucket: str, first: bytes, count: int) -> list[StoredObject]:
        """Up to `count` objects from the name `first` (inclusive), in UTF-8 order."""
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
        """Create a generation after all checks; `delete` is removed in the same step."""
        with self.lock:
            found = self._bucket(bucket)
            check_name(name)
            content_type = resource.get("contentType") or "application/octet-stream"
            check_content_type(content_type)
            conditions.check(found.objects.get(name))
            check_hashes(payload, resource)
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
                # The service has no MD5 of a composite object.
                md5=None if component_count else md5_text(payload),
                content_type=content_type,
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
            raise condition_not_met()
        return live

    def patch(
        self, bucket: str, name: str, resource: Mapping[str, Any], conditions: Preconditions
    ) -> StoredObject:
        """Change custom metadata and content type: a new metageneration of the same generation."""
        with self.lock:
            live = self.find(bucket, name)
            conditions.check(live)
            content_type = resource.get("contentType", live.content_type)
            check_content_type(content_type)
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
                content_type=content_type,
            )
            self._write({"put": _to_json(changed), "gone": []})
            self._put(changed)
            return changed

    def delete(self, bucket: str, name: str, generation: int | None, conditions: Preconditions) -> None:
        """404 if there is no such live generation; 412 if a condition fails."""
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
            live_count = len(self._buckets) + sum(len(each.objects) for each in self._buckets.values())
            if self._journal.line_count > _MIN_LINES + 2 * live_count:
                self._journal.compact(self._snapshot(), self._live_generations())
            self._journal.append({**change, "last_generation": self._last_generation})

    def _snapshot(self) -> Iterator[dict[str, Any]]:
        """The changes that lead to the current state."""
        for bucket in self._buckets.values():
            yield {"bucket": bucket.resource, "last_generation": self._last_generation}
            for stored in bucket.objects.values():
                yield {"put": _to_json(stored), "gone": [], "last_generation": self._last_generation}

    def _live_generations(self) -> set[int]:
        return {
            stored.generation for bucket in self._buckets.values() for stored in bucket.objects.values()
        } | {self._last_generation}

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


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
