"""Compose: bytes, sources, preconditions, checksum, and races.

Owns the tests of this part of the contract; inherit the whole suite, `ObjectStoreConformance`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dstl_dagster.errors import ConflictError, FormatError, InvalidInputError, NotFoundError
from dstl_dagster.storage import ABSENT, Generation, ObjectStore, Source
from dstl_dagster.testing.conformance.fixtures import ConformanceFixtures, RawRead, crc32c_of

__all__ = ["ComposesConformance"]


class ComposesConformance(ConformanceFixtures):
    """Part of `ObjectStoreConformance`."""

    @pytest.mark.parametrize("count", [1, 2, 31, 32])
    def test_compose_concatenates(self, store: ObjectStore, raw_read: RawRead, count: int) -> None:
        """The target has the sources' bytes in order, and their checksum; the sources stay."""
        parts = [b"<%d>" % number * number for number in range(count)]
        for number, part in enumerate(parts):
            store.put(f"p/{number}", part, precondition=ABSENT)
        sources = [Source(f"p/{number}") for number in range(count)]
        made = store.compose(sources, "whole", precondition=ABSENT, metadata={"k": "v"})
        assert raw_read("whole") == b"".join(parts)
        assert store.stat("whole") == made
        assert (made.size, made.crc32c) == (len(b"".join(parts)), crc32c_of(b"".join(parts)))
        assert dict(made.metadata) == {"k": "v"}
        assert [raw_read(f"p/{number}") for number in range(count)] == parts

    @pytest.mark.parametrize("count", [0, 33])
    def test_compose_takes_1_to_32_sources(self, store: ObjectStore, count: int) -> None:
        """No source and 33 sources are InvalidInputError."""
        store.put("p", b"x", precondition=ABSENT)
        with pytest.raises(InvalidInputError):
            store.compose([Source("p")] * count, "whole", precondition=ABSENT)
        assert store.stat("whole") is None

    def test_compose_takes_a_source_twice(self, store: ObjectStore, raw_read: RawRead) -> None:
        """One object may be several sources."""
        store.put("p", b"xy", precondition=ABSENT)
        store.compose([Source("p"), Source("p")], "whole", precondition=ABSENT)
        assert raw_read("whole") == b"xyxy"

    def test_compose_deletes_its_sources(self, store: ObjectStore, raw_read: RawRead) -> None:
        """With delete_sources the sources are gone when it returns, and nothing else is."""
        for name in ("p/1", "p/2", "p/3"):
            store.put(name, name.encode(), precondition=ABSENT)
        store.compose([Source("p/1"), Source("p/2")], "whole", precondition=ABSENT, delete_sources=True)
        assert raw_read("whole") == b"p/1p/2"
        assert [stat.name for stat in store.list()] == ["p/3", "whole"]

    def test_compose_onto_a_source_keeps_it(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A target that is also a source is replaced, and not deleted as a source."""
        first = store.put("a", b"1", precondition=ABSENT)
        store.put("b", b"2", precondition=ABSENT)
        store.compose(
            [Source("a", first.generation), Source("b")],
            "a",
            precondition=Generation(first.generation),
            delete_sources=True,
        )
        assert raw_read("a") == b"12"
        assert raw_read("b") is None

    def test_compose_needs_every_source(self, store: ObjectStore) -> None:
        """A missing source, or another generation of it, is NotFoundError, and nothing has changed."""
        first = store.put("p/1", b"1", precondition=ABSENT)
        second = store.put("p/2", b"2", precondition=ABSENT)
        for missing in (Source("p/3"), Source("p/2", second.generation + 1)):
            with pytest.raises(NotFoundError):
                store.compose(
                    [Source("p/1", first.generation), missing],
                    "whole",
                    precondition=ABSENT,
                    delete_sources=True,
                )
        assert list(store.list()) == [first, second]

    def test_compose_checks_its_precondition(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A live target is ConflictError; target and sources stay."""
        store.put("p", b"1", precondition=ABSENT)
        foreign = store.put("whole", b"foreign", precondition=ABSENT)
        for precondition in (ABSENT, Generation(foreign.generation + 1)):
            with pytest.raises(ConflictError):
                store.compose([Source("p")], "whole", precondition=precondition, delete_sources=True)
        assert raw_read("whole") == b"foreign"
        assert raw_read("p") == b"1"

    def test_compose_compares_the_checksum_first(self, store: ObjectStore, raw_read: RawRead) -> None:
        """If the result does not have the checksum passed, it is FormatError, and the sources stay."""
        store.put("p", b"123456789", precondition=ABSENT)
        with pytest.raises(FormatError):
            store.compose([Source("p")], "bad", precondition=ABSENT, delete_sources=True, crc32c=1)
        assert raw_read("p") == b"123456789"
        made = store.compose(
            [Source("p")], "good", precondition=ABSENT, delete_sources=True, crc32c=0xE3069283
        )
        assert made.crc32c == 0xE3069283

    def test_one_of_many_composers_wins(self, store: ObjectStore, raw_read: RawRead) -> None:
        """Of 8 threads composing to one absent target, one succeeds."""
        parts = [store.put(f"p/{number}", b"%d" % number, precondition=ABSENT) for number in range(8)]
        barrier = threading.Barrier(8)

        def compose(number: int) -> int | None:
            barrier.wait(30)
            source = Source(parts[number].name, parts[number].generation)
            try:
                store.compose([source], "contested", precondition=ABSENT)
            except ConflictError:
                return None
            return number

        with ThreadPoolExecutor(8) as pool:
            winners = [number for number in pool.map(compose, range(8)) if number is not None]
        assert len(winners) == 1
        assert raw_read("contested") == b"%d" % winners[0]

    def test_compose_taking_its_sources_happens_once(self, store: ObjectStore) -> None:
        """Of many composes that delete the same sources into different targets, one succeeds."""
        part = store.put("p", b"once", precondition=ABSENT)
        barrier = threading.Barrier(6)

        def compose(number: int) -> bool:
            barrier.wait(30)
            try:
                store.compose(
                    [Source("p", part.generation)], f"t/{number}", precondition=ABSENT, delete_sources=True
                )
            except NotFoundError:
                return False
            return True

        with ThreadPoolExecutor(6) as pool:
            outcomes = list(pool.map(compose, range(6)))
        assert outcomes.count(True) == 1
        assert len(list(store.list())) == 1
