"""Preconditions, generations, and races between threads.

Owns the tests of this part of the contract; inherit the whole suite, `ObjectStoreConformance`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError
from dstl_dagster.storage import ABSENT, ANY, Generation, ObjectStore
from dstl_dagster.testing.conformance.fixtures import ConformanceFixtures, RawRead

__all__ = ["ConditionsConformance"]


class ConditionsConformance(ConformanceFixtures):
    """Part of `ObjectStoreConformance`."""

    def test_create_only_refuses_a_live_object(self, store: ObjectStore, raw_read: RawRead) -> None:
        """ABSENT on a live object is ConflictError, and changes nothing."""
        made = store.put("a", b"first", precondition=ABSENT)
        with pytest.raises(ConflictError) as raised:
            store.put("a", b"second", precondition=ABSENT)
        assert raised.value.kind == ErrorKind.CONFLICT
        assert raw_read("a") == b"first"
        assert store.stat("a") == made

    def test_generation_match_replaces(self, store: ObjectStore, raw_read: RawRead) -> None:
        """With the live generation a put replaces, and the new generation is higher."""
        old = store.put("a", b"old", precondition=ABSENT, metadata={"k": "old"})
        new = store.put("a", b"new!", precondition=Generation(old.generation))
        assert new.generation > old.generation
        assert raw_read("a") == b"new!"
        assert dict(new.metadata) == {}

    def test_generation_match_refuses_another(self, store: ObjectStore, raw_read: RawRead) -> None:
        """With another generation, or without a live object, a put is ConflictError."""
        old = store.put("a", b"old", precondition=ABSENT)
        for name, generation in (("a", old.generation + 1), ("b", old.generation)):
            with pytest.raises(ConflictError):
                store.put(name, b"new", precondition=Generation(generation))
        assert raw_read("a") == b"old"
        assert raw_read("b") is None

    def test_no_precondition_replaces(self, store: ObjectStore, raw_read: RawRead) -> None:
        """ANY creates and replaces."""
        first = store.put("a", b"1", precondition=ANY)
        second = store.put("a", b"2", precondition=ANY)
        assert second.generation > first.generation
        assert raw_read("a") == b"2"

    def test_generation_is_never_used_again(self, store: ObjectStore) -> None:
        """An object recreated after its deletion has a generation it never had."""
        generations = []
        for _ in range(4):
            generations.append(store.put("a", b"same", precondition=ABSENT).generation)
            assert store.delete("a", precondition=Generation(generations[-1]))
        assert sorted(set(generations)) == generations

    def test_one_of_many_creators_wins(self, store: ObjectStore, raw_read: RawRead) -> None:
        """Of 16 threads that create one object, one succeeds, and the bytes are the winner's."""
        barrier = threading.Barrier(16)

        def create(number: int) -> int | None:
            barrier.wait(30)
            try:
                store.put("contested", b"%d" % number, precondition=ABSENT)
            except ConflictError:
                return None
            return number

        with ThreadPoolExecutor(16) as pool:
            winners = [number for number in pool.map(create, range(16)) if number is not None]
        assert len(winners) == 1
        assert raw_read("contested") == b"%d" % winners[0]

    def test_no_update_is_lost(self, store: ObjectStore) -> None:
        """Threads that increment a counter with generation matches lose no increment."""
        store.put("count", b"0", precondition=ABSENT)

        def count_up() -> None:
            for _ in range(5):
                while True:
                    live = store.stat("count")
                    assert live is not None
                    try:
                        value = int(store.get("count", generation=live.generation))
                        store.put("count", b"%d" % (value + 1), precondition=Generation(live.generation))
                        break
                    except (ConflictError, NotFoundError):
                        continue

        with ThreadPoolExecutor(4) as pool:
            for running in [pool.submit(count_up) for _ in range(4)]:
                running.result()
        assert store.get("count") == b"20"
