"""The conformance suite fails on broken stores: one of its tests catches each kind of mistake."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dstl_dagster.errors import ConflictError, NotFoundError
from dstl_dagster.storage.base import ANY, ObjectReader, ObjectStat, ObjectStore, Source
from dstl_dagster.storage.memory import MemoryObjectStore
from dstl_dagster.testing.conformance import ObjectStoreConformance, RawRead
from dstl_dagster.testing.fault_store import FaultStore

SUITE = ObjectStoreConformance()


class IgnoresPreconditions(FaultStore):
    def put(self, name: str, payload: Any, **options: Any) -> ObjectStat:
        return super().put(name, payload, **{**options, "precondition": ANY})


class TakesTimeAndIgnores(IgnoresPreconditions):
    def put(self, name: str, payload: Any, **options: Any) -> ObjectStat:
        time.sleep(0.002)  # the way to the service, in which others write
        return super().put(name, payload, **options)


class ChecksThenComposes(FaultStore):
    """The precondition is checked before the compose, not within it."""

    def compose(self, sources: Any, target: str, **options: Any) -> ObjectStat:
        if self.stat(target) is not None:
            raise ConflictError("there")
        time.sleep(0.01)  # the way to the service, in which others compose
        return super().compose(sources, target, **{**options, "precondition": ANY})


class ReusesGenerations(FaultStore):
    def put(self, name: str, payload: Any, **options: Any) -> ObjectStat:
        return dataclasses.replace(super().put(name, payload, **options), generation=1)

    def delete(self, name: str, **options: Any) -> bool:
        return super().delete(name, precondition=ANY)


class ListsUnordered(FaultStore):
    def list(self, prefix: str = "", *, start_offset: str | None = None) -> Iterator[ObjectStat]:
        return iter(
            sorted(super().list(prefix, start_offset=start_offset), key=lambda s: s.name.encode("utf-16-be"))
        )


class ForgetsSourceGenerations(FaultStore):
    def compose(self, sources: Any, target: str, **options: Any) -> ObjectStat:
        return super().compose([Source(source.name) for source in sources], target, **options)


class ComposesThenCompares(FaultStore):
    """The checksum is compared after the sources are deleted."""

    def compose(self, sources: Any, target: str, **options: Any) -> ObjectStat:
        from dstl_dagster.storage.rules import check_crc32c

        made = super().compose(sources, target, **{**options, "crc32c": None})
        check_crc32c(target, made.crc32c, options.get("crc32c"))
        return made


class DropsMetadata(FaultStore):
    def put(self, name: str, payload: Any, **options: Any) -> ObjectStat:
        return super().put(name, payload, **{**options, "metadata": None})


class ReadsTheLatest(FaultStore):
    """A reader continues with whatever generation is live."""

    def open_read(self, name: str, *, start: int = 0, generation: int | None = None) -> ObjectReader:
        store = self

        class Reader:
            position = start

            def read(self, size: int = -1) -> bytes:
                part = store.get(name)[self.position :][: None if size < 0 else size]
                self.position += len(part)
                return part

            def close(self) -> None: ...

        if self.stat(name, generation=generation) is None:
            raise NotFoundError("no")
        return Reader()


class ShowsStreamsEarly(FaultStore):
    def open_write(self, name: str, **options: Any) -> Any:
        upload = super().open_write(name, **options)
        super().put(name, b"", precondition=ANY)
        return upload


BROKEN: list[tuple[type[FaultStore], str]] = [
    (IgnoresPreconditions, "test_create_only_refuses_a_live_object"),
    (IgnoresPreconditions, "test_one_of_many_creators_wins"),
    (TakesTimeAndIgnores, "test_no_update_is_lost"),
    (ChecksThenComposes, "test_one_of_many_composers_wins"),
    (ReusesGenerations, "test_generation_is_never_used_again"),
    (ListsUnordered, "test_list_is_in_the_order_of_utf8"),
    (ForgetsSourceGenerations, "test_compose_needs_every_source"),
    (ComposesThenCompares, "test_compose_compares_the_checksum_first"),
    (DropsMetadata, "test_put_returns_what_it_made"),
    (ReadsTheLatest, "test_reader_stays_on_its_generation"),
    (ShowsStreamsEarly, "test_stream_checks_its_precondition"),
]


@pytest.mark.parametrize(("broken", "test"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_store_is_caught(broken: type[FaultStore], test: str) -> None:
    """The named test of the suite passes on a good store and fails on the broken one."""

    def run(store: ObjectStore, whole: MemoryObjectStore) -> None:
        def raw_read(name: str) -> bytes | None:
            kept = whole._account.bucket("memory").objects.get(name)
            return kept.payload if kept else None

        check = getattr(SUITE, test)
        given: dict[str, ObjectStore | RawRead] = {"store": store}
        if "raw_read" in check.__code__.co_varnames:
            given["raw_read"] = raw_read
        check(**given)

    good = MemoryObjectStore()
    run(FaultStore(good), good)
    bad = MemoryObjectStore()
    with pytest.raises((AssertionError, ConflictError, NotFoundError, pytest.fail.Exception)):
        run(broken(bad), bad)
