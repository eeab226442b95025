"""Bytes in, bytes out: puts, reads, copies and deletes.

Owns the tests of this part of the contract; inherit the whole suite, `ObjectStoreConformance`.
"""

from __future__ import annotations

import pytest

from dstl_dagster.errors import ConflictError, InvalidInputError, NotFoundError
from dstl_dagster.storage import ABSENT, ANY, Generation, ObjectStore, Source
from dstl_dagster.testing.conformance.fixtures import ConformanceFixtures, RawRead

__all__ = ["ObjectsConformance"]


class ObjectsConformance(ConformanceFixtures):
    """Part of `ObjectStoreConformance`."""

    @pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
    def test_put_stores_the_bytes(self, store: ObjectStore, raw_read: RawRead, size: int) -> None:
        """The stored bytes, and those read back, are the ones put."""
        payload = bytes(range(256)) * (size // 256 + 1)
        store.put("folder/object", payload[:size], precondition=ABSENT)
        assert raw_read("folder/object") == payload[:size]
        assert store.get("folder/object") == payload[:size]

    def test_put_returns_what_it_made(self, store: ObjectStore) -> None:
        """The stat of a put has name, size, checksum, metadata, a generation above 0, and a UTC time."""
        made = store.put("a", b"123456789", precondition=ABSENT, metadata={"key": "välue", "k2": ""})
        assert (made.name, made.size, made.crc32c) == ("a", 9, 0xE3069283)
        assert dict(made.metadata) == {"key": "välue", "k2": ""}
        assert made.generation > 0
        assert made.updated.tzinfo is not None
        assert made.updated.utcoffset() is not None

    def test_stat_returns_the_same_as_put(self, store: ObjectStore) -> None:
        """A later stat equals the one that put returned."""
        made = store.put("a", b"abc", precondition=ABSENT, metadata={"k": "v"})
        assert store.stat("a") == made

    def test_put_takes_any_buffer(self, store: ObjectStore, raw_read: RawRead) -> None:
        """bytes, bytearray and memoryview are all stored, and later changes of the buffer change nothing."""
        changing = bytearray(b"before")
        store.put("array", changing, precondition=ABSENT)
        changing[:] = b"after!"
        store.put("view", memoryview(b"xxviewxx")[2:6], precondition=ABSENT)
        assert raw_read("array") == b"before"
        assert raw_read("view") == b"view"

    def test_what_is_absent_is_none_or_not_found(self, store: ObjectStore) -> None:
        """stat of an absent object is None; reading it is NotFoundError."""
        assert store.stat("nothing") is None
        assert store.stat("nothing/below") is None
        with pytest.raises(NotFoundError):
            store.get("nothing")
        with pytest.raises(NotFoundError):
            store.get_range("nothing", 0, 1)
        with pytest.raises(NotFoundError):
            store.open_read("nothing").read()

    def test_generation_selects_what_is_read(self, store: ObjectStore) -> None:
        """Any generation but the live one is absent."""
        old = store.put("a", b"old", precondition=ABSENT)
        new = store.put("a", b"new", precondition=Generation(old.generation))
        assert store.stat("a", generation=old.generation) is None
        assert store.stat("a", generation=new.generation) == new
        assert store.get("a", generation=new.generation) == b"new"
        with pytest.raises(NotFoundError):
            store.get("a", generation=old.generation)
        with pytest.raises(NotFoundError):
            store.get_range("a", 0, 1, generation=old.generation)
        with pytest.raises(NotFoundError):
            store.open_read("a", generation=old.generation).read()

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(0, 4, b"0123"), (3, 4, b"3456"), (8, 100, b"89"), (10, 5, b""), (50, 5, b""), (2, 0, b"")],
    )
    def test_range_reads_its_bytes(
        self, store: ObjectStore, start: int, length: int, expected: bytes
    ) -> None:
        """A range returns its bytes: fewer at the end of the object, none beyond it."""
        store.put("a", b"0123456789", precondition=ABSENT)
        assert store.get_range("a", start, length) == expected

    def test_negative_range_is_refused(self, store: ObjectStore) -> None:
        """A negative start or length is InvalidInputError."""
        store.put("a", b"0123456789", precondition=ABSENT)
        for start, length in ((-1, 2), (0, -1)):
            with pytest.raises(InvalidInputError):
                store.get_range("a", start, length)

    @pytest.mark.parametrize("start", [0, 1, 200_000, 300_000, 400_000])
    def test_reader_streams_from_start(self, store: ObjectStore, start: int) -> None:
        """A reader returns all bytes from its start, in pieces of at most the requested size."""
        payload = bytes(range(250)) * 1200
        store.put("a", payload, precondition=ABSENT)
        reader = store.open_read("a", start=start)
        try:
            pieces = []
            while piece := reader.read(70_000):
                assert len(piece) <= 70_000
                pieces.append(piece)
            assert reader.read(10) == b""
        finally:
            reader.close()
        assert b"".join(pieces) == payload[start:]

    def test_reader_reads_all_the_rest(self, store: ObjectStore) -> None:
        """A negative size reads to the end."""
        store.put("a", b"0123456789", precondition=ABSENT)
        reader = store.open_read("a")
        assert reader.read(3) == b"012"
        assert reader.read() == b"3456789"
        reader.close()

    def test_reader_stays_on_its_generation(self, store: ObjectStore) -> None:
        """A reader never mixes the bytes of two generations: it continues with its own, or fails."""
        old = store.put("a", b"o" * 600_000, precondition=ABSENT)
        reader = store.open_read("a")
        first = reader.read(100_000)
        store.put("a", b"n" * 600_000, precondition=Generation(old.generation))
        try:
            rest = reader.read()
        except NotFoundError:
            rest = b""
        finally:
            reader.close()
        assert set(first + rest) == {ord("o")}

    def test_copy_makes_the_same_bytes(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A copy has the source's bytes and the metadata passed; the source stays."""
        source = store.put("a", b"bytes", precondition=ABSENT, metadata={"of": "source"})
        made = store.copy(Source("a"), "b", precondition=ABSENT, metadata={"of": "copy"})
        assert raw_read("b") == raw_read("a") == b"bytes"
        assert dict(made.metadata) == {"of": "copy"}
        assert store.stat("b") == made
        assert store.stat("a") == source

    def test_copy_checks_source_and_target(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A missing source generation is NotFoundError; a live target is ConflictError."""
        source = store.put("a", b"bytes", precondition=ABSENT)
        store.put("b", b"there", precondition=ABSENT)
        with pytest.raises(ConflictError):
            store.copy(Source("a"), "b", precondition=ABSENT)
        for missing in (Source("nothing"), Source("a", source.generation + 1)):
            with pytest.raises(NotFoundError):
                store.copy(missing, "c", precondition=ABSENT)
        assert raw_read("b") == b"there"
        assert raw_read("c") is None

    def test_delete_removes(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A deleted object is gone; deleting it again is False."""
        made = store.put("f/a", b"x", precondition=ABSENT)
        assert store.delete("f/a", precondition=Generation(made.generation)) is True
        assert raw_read("f/a") is None
        assert list(store.list()) == []
        assert store.delete("f/a", precondition=Generation(made.generation)) is False
        assert store.delete("f/a", precondition=ANY) is False

    def test_delete_spares_another_generation(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A delete of an older generation is ConflictError, and the new one stays."""
        old = store.put("a", b"old", precondition=ABSENT)
        store.put("a", b"new", precondition=Generation(old.generation))
        with pytest.raises(ConflictError):
            store.delete("a", precondition=Generation(old.generation))
        assert raw_read("a") == b"new"

    def test_delete_of_the_absent_is_refused(self, store: ObjectStore) -> None:
        """ABSENT is not a valid precondition of a delete."""
        with pytest.raises(InvalidInputError):
            store.delete("a", precondition=ABSENT)
