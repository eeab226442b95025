"""What every object store must do: inherit the class, give it a store, run pytest.

Owns the contract's tests. Does not own how a store is made or looked into: a subclass provides the
fixtures `store` (empty) and `raw_read`, which reads an object's bytes *around* the store under test, so
that no shared mistake can hide. What a store declares not to take stands in the class attributes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import google_crc32c
import pytest

from dstl_dagster.errors import ClosedError, ConflictError, FormatError, InvalidInputError, NotFoundError
from dstl_dagster.storage.base import ABSENT, ANY, Generation, ObjectStore, Source

__all__ = ["ObjectStoreConformance", "RawRead"]

RawRead = Callable[[str], bytes | None]


def _crc32c(payload: bytes) -> int:
    # Not the package's own function: the oracle shares nothing with the code under test.
    return int.from_bytes(google_crc32c.Checksum(payload).digest(), "big")  # type: ignore[no-untyped-call] # no types


class ObjectStoreConformance:
    """Inherit, and provide the fixtures `store` and `raw_read`."""

    file_beside_folder: ClassVar[bool] = True
    """Whether `a` and `a/b` can both be objects."""
    empty_levels: ClassVar[bool] = True
    """Whether names such as `a//b` are taken."""
    long_levels: ClassVar[bool] = True
    """Whether one level of a name may have 1,000 bytes."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """An empty store."""
        raise NotImplementedError("a subclass provides the store")

    @pytest.fixture
    def raw_read(self) -> RawRead:
        """Reads an object's bytes without the store; None where there is nothing."""
        raise NotImplementedError("a subclass provides raw reads")

    # -- put and read

    @pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
    def test_put_stores_the_bytes(self, store: ObjectStore, raw_read: RawRead, size: int) -> None:
        """What was put is what lies there, and what is read."""
        payload = bytes(range(256)) * (size // 256 + 1)
        store.put("folder/object", payload[:size], precondition=ABSENT)
        assert raw_read("folder/object") == payload[:size]
        assert store.get("folder/object") == payload[:size]

    def test_put_tells_what_it_made(self, store: ObjectStore) -> None:
        """The stat of a put has name, size, checksum, metadata, a generation above 0, and a UTC time."""
        made = store.put("a", b"123456789", precondition=ABSENT, metadata={"key": "välue", "k2": ""})
        assert (made.name, made.size, made.crc32c) == ("a", 9, 0xE3069283)
        assert dict(made.metadata) == {"key": "välue", "k2": ""}
        assert made.generation > 0
        assert made.updated.tzinfo is not None
        assert made.updated.utcoffset() is not None

    def test_stat_tells_the_same_as_put(self, store: ObjectStore) -> None:
        """A later stat equals the one that the put gave."""
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
        """Asked for another generation than the live one, there is nothing."""
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
        """A range gives its bytes, shorter at the end, and none beyond it."""
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
        """A reader gives all bytes from its start, in pieces of at most the size asked for."""
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
        """A reader never mixes the bytes of two generations: it goes on with its own, or fails."""
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

    # -- preconditions and generations

    def test_create_only_refuses_a_live_object(self, store: ObjectStore, raw_read: RawRead) -> None:
        """ABSENT on a live object is ConflictError of kind precondition_failed, and changes nothing."""
        made = store.put("a", b"first", precondition=ABSENT)
        with pytest.raises(ConflictError) as raised:
            store.put("a", b"second", precondition=ABSENT)
        assert raised.value.kind == "precondition_failed"
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
        """With another generation, or where nothing is, a put is ConflictError."""
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
        """An object that is made again after its deletion has a generation it never had."""
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
        """Threads that count up with generation matches lose no step."""
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

    # -- streaming writes

    def test_stream_is_visible_only_when_closed(self, store: ObjectStore, raw_read: RawRead) -> None:
        """Before close nothing is there; after it, all of it, as close tells."""
        payload = bytes(range(256)) * 4096
        upload = store.open_write("s/a", precondition=ABSENT, metadata={"k": "v"}, chunk_size=256 * 1024)
        for start in range(0, len(payload), 300_000):
            piece = payload[start : start + 300_000]
            assert upload.write(piece) == len(piece)
            upload.flush()
            assert raw_read("s/a") is None
            assert store.stat("s/a") is None
        made = upload.close()
        assert raw_read("s/a") == payload
        assert store.stat("s/a") == made
        assert (made.size, made.crc32c) == (len(payload), _crc32c(payload))
        assert dict(made.metadata) == {"k": "v"}

    def test_stream_of_nothing_is_an_empty_object(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A stream that is closed without a write makes an empty object."""
        store.open_write("a", precondition=ABSENT).close()
        assert raw_read("a") == b""

    def test_closing_again_tells_the_same(self, store: ObjectStore) -> None:
        """A second close gives the same stat and makes nothing."""
        upload = store.open_write("a", precondition=ABSENT)
        upload.write(b"abc")
        made = upload.close()
        assert upload.close() == made
        assert store.stat("a") == made

    def test_aborted_stream_leaves_nothing(self, store: ObjectStore, raw_read: RawRead) -> None:
        """After abort nothing is there, and the stream takes no more."""
        upload = store.open_write("a", precondition=ABSENT)
        upload.write(b"x" * 600_000)
        upload.abort()
        upload.abort()
        assert raw_read("a") is None
        assert [stat.name for stat in store.list()] == []
        with pytest.raises(ClosedError):
            upload.write(b"more")
        with pytest.raises(ClosedError):
            upload.close()

    def test_dropped_stream_commits_nothing(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A stream that is collected without close makes no object, not even a cut-off one."""
        import gc

        upload = store.open_write("a", precondition=ABSENT, chunk_size=256 * 1024)
        upload.write(b"x" * 600_000)
        del upload
        gc.collect()
        assert raw_read("a") is None
        assert store.stat("a") is None

    def test_abort_after_close_changes_nothing(self, store: ObjectStore, raw_read: RawRead) -> None:
        """Once closed, a stream cannot be taken back."""
        upload = store.open_write("a", precondition=ABSENT)
        upload.write(b"abc")
        upload.close()
        upload.abort()
        assert raw_read("a") == b"abc"

    def test_stream_checks_its_precondition(self, store: ObjectStore, raw_read: RawRead) -> None:
        """An object that came while the stream was written is not replaced."""
        upload = store.open_write("a", precondition=ABSENT)
        upload.write(b"late")
        store.put("a", b"early", precondition=ABSENT)
        with pytest.raises(ConflictError):
            upload.close()
        upload.abort()
        assert raw_read("a") == b"early"

    @pytest.mark.parametrize("chunk_size", [0, -1, 1000, 256 * 1024 + 1])
    def test_bad_chunk_size_is_refused(self, store: ObjectStore, chunk_size: int) -> None:
        """A chunk is a positive multiple of 256 KiB."""
        with pytest.raises(InvalidInputError):
            store.open_write("a", precondition=ABSENT, chunk_size=chunk_size)

    # -- list

    def test_list_is_in_the_order_of_utf8(self, store: ObjectStore) -> None:
        """Names come in the order of their UTF-8 bytes, which differs from that of UTF-16."""
        wanted = ["a-b", "a.txt", "a/b", "a/c/d", "a0", "b", "z", "é", "\uffee", "\U0001f600"]
        for name in reversed(wanted):
            store.put(name, name.encode(), precondition=ABSENT)
        assert sorted(wanted, key=str.encode) == wanted
        assert [stat.name for stat in store.list()] == wanted

    def test_list_tells_what_stat_tells(self, store: ObjectStore) -> None:
        """Each listed object is as its stat."""
        for name in ("x/1", "x/2"):
            store.put(name, name.encode(), precondition=ABSENT, metadata={"n": name[-1]})
        assert list(store.list("x/")) == [store.stat("x/1"), store.stat("x/2")]

    @pytest.mark.parametrize(
        ("prefix", "expected"),
        [
            ("", ["a/1", "a/2", "ab/1", "b"]),
            ("a", ["a/1", "a/2", "ab/1"]),
            ("a/", ["a/1", "a/2"]),
            ("a/2", ["a/2"]),
            ("b/", []),
            ("c", []),
            ("a/1/x", []),
        ],
    )
    def test_list_by_prefix(self, store: ObjectStore, prefix: str, expected: list[str]) -> None:
        """A prefix is of text, not of folders."""
        for name in ("a/1", "a/2", "ab/1", "b"):
            store.put(name, b"", precondition=ABSENT)
        assert [stat.name for stat in store.list(prefix)] == expected

    @pytest.mark.parametrize(
        ("prefix", "offset", "expected"),
        [
            ("", "a/2", ["a/2", "ab/1", "b"]),
            ("", "a/15", ["a/2", "ab/1", "b"]),
            ("a/", "a/2", ["a/2"]),
            ("a/", "", ["a/1", "a/2"]),
            ("a", "aa", ["ab/1"]),
            ("", "a0", ["ab/1", "b"]),
            ("", "zzz", []),
        ],
    )
    def test_list_from_an_offset(
        self, store: ObjectStore, prefix: str, offset: str, expected: list[str]
    ) -> None:
        """The offset is inclusive, and need not be a name."""
        for name in ("a/1", "a/2", "ab/1", "b"):
            store.put(name, b"", precondition=ABSENT)
        assert [stat.name for stat in store.list(prefix, start_offset=offset)] == expected

    def test_list_survives_changes(self, store: ObjectStore) -> None:
        """Objects that live through the walk are listed once, whatever is made and deleted meanwhile."""
        lasting = [f"l/{number:03d}" for number in range(0, 60, 2)]
        passing = [f"l/{number:03d}" for number in range(1, 60, 2)]
        for name in lasting + passing:
            store.put(name, b"", precondition=ABSENT)
        seen = []
        for stat in store.list("l/"):
            seen.append(stat.name)
            if passing:
                gone = passing.pop()
                store.delete(gone, precondition=ANY)
                store.put(f"{gone}-new", b"", precondition=ABSENT)
        assert [name for name in seen if name in lasting] == lasting

    # -- compose

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
        assert (made.size, made.crc32c) == (len(b"".join(parts)), _crc32c(b"".join(parts)))
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
        """With delete_sources they are gone when it returns, and nothing else is."""
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
        there = store.put("whole", b"foreign", precondition=ABSENT)
        for precondition in (ABSENT, Generation(there.generation + 1)):
            with pytest.raises(ConflictError):
                store.compose([Source("p")], "whole", precondition=precondition, delete_sources=True)
        assert raw_read("whole") == b"foreign"
        assert raw_read("p") == b"1"

    def test_compose_compares_the_checksum_first(self, store: ObjectStore, raw_read: RawRead) -> None:
        """With a checksum that the result has not, it is FormatError, and the sources stay."""
        store.put("p", b"123456789", precondition=ABSENT)
        with pytest.raises(FormatError):
            store.compose([Source("p")], "bad", precondition=ABSENT, delete_sources=True, crc32c=1)
        assert raw_read("p") == b"123456789"
        made = store.compose(
            [Source("p")], "good", precondition=ABSENT, delete_sources=True, crc32c=0xE3069283
        )
        assert made.crc32c == 0xE3069283

    def test_one_of_many_composers_wins(self, store: ObjectStore, raw_read: RawRead) -> None:
        """Of 8 threads that compose to one absent target, one succeeds."""
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
        """Of many composes that take the same sources to different targets, one succeeds."""
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

    # -- copy and delete

    def test_copy_makes_the_same_bytes(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A copy has the bytes and the metadata that it was given; the source stays."""
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
        """ABSENT is no precondition of a delete."""
        with pytest.raises(InvalidInputError):
            store.delete("a", precondition=ABSENT)

    # -- names and metadata

    @pytest.mark.parametrize(
        "name",
        [
            "plain",
            "with space",
            "a/b/c/d/e/f",
            "ümläut/日本/😀",
            "%41?#[]*&=+",
            "a\\b",
            "-",
            "a.b..c",
            "x" * 200,
        ],
    )
    def test_names_come_back_as_given(self, store: ObjectStore, raw_read: RawRead, name: str) -> None:
        """Any legal name can be made, listed, read, located by its URI, and deleted."""
        made = store.put(name, b"x", precondition=ABSENT)
        assert made.name == name
        assert raw_read(name) == b"x"
        assert [stat.name for stat in store.list()] == [name]
        assert store.locate(store.uri_of(name)) == (store.bucket_name, store.prefix + name)
        assert store.delete(name, precondition=Generation(made.generation))

    @pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "a\rb", "x" * 1025, "é" * 513, "\ud800", ".", ".."])
    def test_impossible_names_are_refused(self, store: ObjectStore, name: str) -> None:
        """A name that no store takes is InvalidInputError from every method, before any request."""
        with pytest.raises(InvalidInputError):
            store.put(name, b"x", precondition=ABSENT)
        with pytest.raises(InvalidInputError):
            store.open_write(name, precondition=ABSENT)
        with pytest.raises(InvalidInputError):
            store.stat(name)
        with pytest.raises(InvalidInputError):
            store.get(name)
        with pytest.raises(InvalidInputError):
            store.delete(name, precondition=ANY)

    @pytest.mark.parametrize("name", ["../escape", "a/../../escape", "/absolute", "a//b", "a/./b", "a/"])
    def test_path_like_names_are_names(self, store: ObjectStore, raw_read: RawRead, name: str) -> None:
        """Such a name is an ordinary object, or refused as declared: never another object."""
        store.put("a-neighbour", b"safe", precondition=ABSENT)
        if self.empty_levels:
            store.put(name, b"x", precondition=ABSENT)
            assert raw_read(name) == b"x"
        else:
            with pytest.raises(InvalidInputError):
                store.put(name, b"x", precondition=ABSENT)
        assert raw_read("a-neighbour") == b"safe"

    def test_object_beside_objects_below_it(self, store: ObjectStore, raw_read: RawRead) -> None:
        """`a` beside `a/b` works, or is refused as declared without harm to what is there."""
        store.put("a/b", b"below", precondition=ABSENT)
        store.put("c", b"file", precondition=ABSENT)
        if self.file_beside_folder:
            store.put("a", b"beside", precondition=ABSENT)
            store.put("c/d", b"below", precondition=ABSENT)
            assert [stat.name for stat in store.list()] == ["a", "a/b", "c", "c/d"]
        else:
            for name in ("a", "c/d"):
                with pytest.raises(InvalidInputError):
                    store.put(name, b"beside", precondition=ABSENT)
            assert [stat.name for stat in store.list()] == ["a/b", "c"]
        assert raw_read("a/b") == b"below"
        assert raw_read("c") == b"file"

    def test_folder_name_is_free_once_empty(self, store: ObjectStore, raw_read: RawRead) -> None:
        """When all objects below a name are deleted, the name itself can be made."""
        made = store.put("a/b/c", b"x", precondition=ABSENT)
        store.delete("a/b/c", precondition=Generation(made.generation))
        store.put("a", b"now", precondition=ABSENT)
        assert raw_read("a") == b"now"

    def test_long_levels(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A level of 1,000 bytes works, or is refused as declared."""
        name = "f/" + "x" * 1000
        if self.long_levels:
            store.put(name, b"x", precondition=ABSENT)
            assert raw_read(name) == b"x"
        else:
            with pytest.raises(InvalidInputError):
                store.put(name, b"x", precondition=ABSENT)

    @pytest.mark.parametrize(
        "metadata", [{"k": 1}, {"": "v"}, {"sp ace": "v"}, {"ü": "v"}, {"k": "x" * 9000}]
    )
    def test_bad_metadata_is_refused(self, store: ObjectStore, metadata: dict[str, str]) -> None:
        """Metadata is text under plain ASCII keys, 8 KiB in all."""
        with pytest.raises(InvalidInputError):
            store.put("a", b"", precondition=ABSENT, metadata=metadata)
        assert store.stat("a") is None

    # -- places

    @pytest.mark.parametrize(
        "uri", ["", "a", "http://b/o", "gs://", "gs:///o", "gs://b", "gs://b/", "memory://b", "file://x/y"]
    )
    def test_uris_of_no_object_are_refused(self, store: ObjectStore, uri: str) -> None:
        """A URI without scheme, bucket or object is InvalidInputError."""
        with pytest.raises(InvalidInputError):
            store.locate(uri)

    def test_own_bucket_is_the_same_place(self, store: ObjectStore) -> None:
        """in_bucket of the own bucket sees the same objects, under their full names."""
        store.put("a", b"x", precondition=ABSENT)
        whole = store.in_bucket(store.bucket_name)
        assert whole.prefix == ""
        assert whole.get(store.prefix + "a") == b"x"

    def test_repr_and_uri_are_text(self, store: ObjectStore) -> None:
        """A store names itself by its URI."""
        assert "://" in store.uri
        assert type(store).__name__ in repr(store)
        assert isinstance(store, ObjectStore)

    def test_close_may_be_repeated(self, store: ObjectStore) -> None:
        """Closing twice is closing once."""
        store.close()
        store.close()
