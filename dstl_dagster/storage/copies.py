"""Objects of a store that was copied or moved: the same by length and checksum, in another place, under other
generations.

Owns that proof, and finding objects that documents name by the bucket they were in. Does not own what a
caller then does with an object.

An object is what its length and checksum say. The generation that a document names guards against an
overwrite while one works; in a copy of a bucket or folder, no object has it.

Files are named by bucket and full name. In a copy in another bucket, or below another prefix, those that lay
in the store have moved with it. Those that lay outside belong to the original, which may be alive: a copy
never touches them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dstl_dagster.errors import ConflictError, DstlError, InvalidInputError, NotFoundError
from dstl_dagster.storage.base import (
    Buffer,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    Precondition,
    RangeReader,
    Source,
    each_deleted,
)
from dstl_dagster.storage.wrapper import WrapperStore


def generation_of_copy(
    store: ObjectStore, name: str, size_bytes: int | None, crc32c: int | None
) -> int | None:
    """The live generation, if it has exactly these bytes; `None` if not, or if one of both is unknown.

    Ask only where the generation that was expected is gone. One request.
    """
    if size_bytes is None or crc32c is None:
        return None
    stat = store.stat(name)
    return stat.generation if stat is not None and (stat.size, stat.crc32c) == (size_bytes, crc32c) else None


@dataclass(frozen=True)
class Origin:
    """The store in which a document was written, as the document says.

    Attributes:
        home: of that store, as `home_of`; empty if unknown.
        witness: an object that lives as long as it is asked for.
        generation: that it had there; `None` if unknown.
    """

    home: str
    witness: str
    generation: int | None

    @staticmethod
    def home_of(store: ObjectStore) -> str:
        """The store's bucket and prefix."""
        return f"{store.bucket_name}/{store.prefix}"

    def is_elsewhere(self, store: ObjectStore) -> bool:
        """Whether the document was written in another bucket, or below another prefix."""
        return bool(self.home) and self.home != self.home_of(store)

    def is_copied(self, store: ObjectStore) -> bool:
        """Whether the store is certainly a copy: it is in another place, or the witness was written again.

        At most one request. A copy that keeps generations is none here.
        """
        if self.is_elsewhere(store):
            return True
        if self.generation is None:
            return False
        stat = store.stat(self.witness)
        return stat is not None and stat.generation != self.generation

    def located(self, store: ObjectStore) -> ObjectStore:
        """`store`, whose `in_bucket` takes buckets and names as the document has them."""
        return _Elsewhere(store, self.home) if self.is_elsewhere(store) else store


class _Elsewhere(WrapperStore):
    """A store that gives its buckets under the names of another one."""

    def __init__(self, inner: ObjectStore, home: str) -> None:
        super().__init__(inner)
        self._home = home

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        bucket, _, prefix = self._home.partition("/")
        whole = self._inner.in_bucket(self._inner.bucket_name)
        return _MovedBucket(whole, prefix if bucket == bucket_name else None, self._inner.prefix)


class _MovedBucket(WrapperStore):
    """A bucket in which what lay below one prefix lies below another, and nothing else is.

    Args:
        before: the prefix in names here; `None`: nothing of this bucket has moved.
        now: the prefix in `inner`.
    """

    def __init__(self, inner: ObjectStore, before: str | None, now: str) -> None:
        super().__init__(inner)
        self._before, self._now = before, now

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        raise InvalidInputError(f"bucket {bucket_name!r} is asked for in a moved one")

    def _moved(self, name: str) -> str | None:
        if self._before is None or not name.startswith(self._before):
            return None
        return self._now + name.removeprefix(self._before)

    def _there(self, name: str, error: type[DstlError] = NotFoundError) -> str:
        moved = self._moved(name)
        if moved is None:
            raise error(f"{name} is outside of the store that was copied: the original's")
        return moved

    def _target(self, name: str) -> str:
        return self._there(name, InvalidInputError)

    def _as_named(self, stat: ObjectStat) -> ObjectStat:
        return replace(stat, name=f"{self._before}{stat.name.removeprefix(self._now)}")

    def uri_of(self, name: str) -> str:
        moved = self._moved(name)
        return name if moved is None else self._inner.uri_of(moved)

    def stat(self, name: str, **options: Any) -> ObjectStat | None:
        moved = self._moved(name)
        found = None if moved is None else self._inner.stat(moved, **options)
        return None if found is None else self._as_named(found)

    def get(self, name: str, **options: Any) -> bytes:
        return self._inner.get(self._there(name), **options)

    def get_range(self, name: str, start: int, length: int, **options: Any) -> bytes | memoryview:
        return self._inner.get_range(self._there(name), start, length, **options)

    def open_ranges(self, name: str, **options: Any) -> RangeReader | None:
        return super().open_ranges(self._there(name), **options)

    def open_read(self, name: str, **options: Any) -> ObjectReader:
        return self._inner.open_read(self._there(name), **options)

    def list(self, prefix: str = "", **options: Any) -> Iterator[ObjectStat]:
        del options
        raise InvalidInputError(f"{prefix} is asked for in a moved bucket")

    def put(self, name: str, payload: Buffer, **options: Any) -> ObjectStat:
        return self._as_named(self._inner.put(self._target(name), payload, **options))

    def compose(self, sources: Sequence[Source], target: str, **options: Any) -> ObjectStat:
        moved = [replace(source, name=self._there(source.name)) for source in sources]
        return self._as_named(self._inner.compose(moved, self._target(target), **options))

    def copy(
        self, source: Source, target: str, *, to: ObjectStore | None = None, **options: Any
    ) -> ObjectStat:
        destination = to if isinstance(to, _MovedBucket) else self
        moved = replace(source, name=self._there(source.name))
        return destination._as_named(super().copy(moved, destination._target(target), to=to, **options))

    def delete(self, name: str, **options: Any) -> bool:
        moved = self._moved(name)
        return moved is not None and self._inner.delete(moved, **options)

    def delete_all(self, objects: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        return each_deleted(self, objects)
