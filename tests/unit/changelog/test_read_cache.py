"""What readers of the same files keep for each other: verified first, bounded, and asked for once."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dstl_dagster.changelog import ChangelogReader, ReadCache
from dstl_dagster.changelog.reader.stored_file import StoredFile
from dstl_dagster.errors import FormatError, UnavailableError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle
from dstl_dagster.format.changelog_file.reader import ReadFooter
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import ABSENT, LocalObjectStore, MemoryObjectStore
from tests.unit.changelog.writing import open_writer, persisted
from tests.unit.checkpoint.counting import Counted

MIB = 1 << 20


class Line(Counted):
    """A bucket behind a line that may flip a bit in its next answers."""

    damaged_answers = 0

    def get_range(self, name: str, start: int, length: int, **how: Any) -> bytes | memoryview:
        found = bytearray(super().get_range(name, start, length, **how))
        if self.damaged_answers:
            self.damaged_answers -= 1
            found[len(found) // 2] ^= 1
        return bytes(found)


@pytest.fixture
def store() -> Line:
    return Line(MemoryObjectStore())


def put(store: Counted, name: str, size: int) -> StreamStateHandle:
    stat = store.put(name, bytes(range(256)) * (size // 256), precondition=ABSENT)
    store.requests.clear()
    return StreamStateHandle(name, size, stat.generation, stat.crc32c, stat.size)


def read(cache: ReadCache, store: Counted, stream: StreamStateHandle) -> bytes | None:
    source = cache.open(store, stream)
    return None if source is None else bytes(source.read_range(0, source.size_bytes()))


@pytest.fixture
def large(store: Line) -> ChangelogStateHandle:
    """A file of 10 MB: three change sets, of four key groups each."""
    options = FsStateChangelogOptions(
        compression="none", preemptive_persist_threshold_in_bytes=64 * MIB, upload_timeout=timedelta(0)
    )
    with open_writer(store, options) as (_, writer):
        for number in range(12):
            writer.append(number % 4, bytes([number]) * 850_000)
            if number % 4 == 3:
                writer.next_sequence_number()
        handle = persisted(writer)
    store.requests.clear()
    return handle


def of_group(reader: ChangelogReader, handle: ChangelogStateHandle, group: int) -> list[bytes]:
    found = reader.read(handle, key_group_range=KeyGroupRange.of(group, group))
    return [change.change for change in found]


def test_a_small_file_is_asked_for_once(store: Line) -> None:
    """Readers that know nothing of each other share it; one on another store of the same name does not."""
    stream, cache = put(store, "a", 1024), ReadCache()
    found = read(cache, store, stream)
    assert read(cache, store, stream) == found == store.inner.get("a")
    assert store.spent() == 1
    other = Line(MemoryObjectStore())
    put(other, "a", 1024)
    assert read(cache, other, stream) == found
    assert other.spent() == 1


def test_bytes_are_kept_only_once_they_are_verified(store: Line) -> None:
    """A bit flips on the way: the answer reaches no reader, and the next one is kept."""
    stream, cache = put(store, "a", 1024), ReadCache()
    store.damaged_answers = 1
    assert read(cache, store, stream) == store.inner.get("a")
    assert store.spent() == 2
    assert read(cache, store, stream) == store.inner.get("a")
    assert store.spent() == 0


def test_what_never_matches_is_never_kept(store: Line) -> None:
    """Each reader is refused, and the store asked each time."""
    stream, cache = put(store, "a", 1024), ReadCache()
    store.damaged_answers = 100
    for _ in range(2):
        with pytest.raises(FormatError, match="CRC-32C"):
            cache.open(store, stream)
        assert store.spent() == 2
    store.damaged_answers = 0
    assert read(cache, store, stream) == store.inner.get("a")


def test_ranges_of_a_large_file_are_kept_once_their_change_sets_are_verified(
    store: Line, large: ChangelogStateHandle
) -> None:
    """Who reads the same key groups again asks for nothing: neither for the footer, nor for a change."""
    cache = ReadCache()
    first = of_group(ChangelogReader(store, cache=cache), large, 2)
    assert first == [bytes([number]) * 850_000 for number in (2, 6, 10)]
    assert store.spent() > 0
    assert of_group(ChangelogReader(store, cache=cache), large, 2) == first
    assert store.spent() == 0
    assert of_group(ChangelogReader(store, cache=cache), large, 1) != first
    assert store.spent() == 3, "the footer is known"


def kept_after_damage(store: Line, large: ChangelogStateHandle, damaged: int) -> list[bytes]:
    """What two readers of one cache left in it, of whom the first met a flipped bit in one of its answers."""
    cache, wanted = ReadCache(), of_group(ChangelogReader(store), large, 2)
    requests = itertools.count()
    real = store.inner.get_range

    def flipped(*place: Any, **how: Any) -> bytes:
        found = bytearray(real(*place, **how))
        if next(requests) == damaged:
            found[len(found) // 2] ^= 1
        return bytes(found)

    store.inner.get_range = flipped
    assert of_group(ChangelogReader(store, cache=cache), large, 2) == wanted
    store.inner.get_range = real
    assert of_group(ChangelogReader(store, cache=cache), large, 2) == wanted
    return [bytes(value) for value, _ in cache._memory._kept.values() if not isinstance(value, ReadFooter)]


ANSWERS = pytest.mark.parametrize("damaged", range(4))


@ANSWERS
def test_a_range_that_was_damaged_meets_no_other_reader(
    store: Line, large: ChangelogStateHandle, damaged: int
) -> None:
    """Whichever answer it is: this reader asks again, and what the next one finds is right."""
    whole = store.inner.get(large.handles_and_offsets[0][0].name)
    kept = kept_after_damage(store, large, damaged)
    assert kept
    assert all(each in whole for each in kept)


def test_a_cache_that_keeps_before_it_verifies_is_found_out(
    store: Line, large: ChangelogStateHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken variant of the test above: ranges are kept as they come, and one of them is wrong."""
    real = StoredFile._found

    def keeps_at_once(self: StoredFile, start: int, length: int) -> bytes | memoryview:
        found = real(self, start, length)
        if self._ranges_kept is not None and (start, length) in self._expected:
            self._ranges_kept.keep(start, found)
        return found

    monkeypatch.setattr(StoredFile, "_found", keeps_at_once)
    whole = store.inner.get(large.handles_and_offsets[0][0].name)
    kept = [each for damaged in range(4) for each in kept_after_damage(store, large, damaged)]
    assert not all(each in whole for each in kept)


def test_whoever_asks_for_the_same_waits_for_the_first(store: Line) -> None:
    """Eight threads, one request: the others ask while it is under way."""
    stream, cache = put(store, "a", 1024), ReadCache()
    asked = threading.Semaphore(0)
    real = store.inner.get_range

    def slow(*place: Any, **how: Any) -> Any:
        for _ in range(8):
            assert asked.acquire(timeout=30)
        return real(*place, **how)

    store.inner.get_range = slow

    def ask(_: int) -> bytes | None:
        asked.release()
        return read(cache, store, stream)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert store.spent() == 1


def test_a_failed_request_is_made_again(store: Line) -> None:
    stream, cache = put(store, "a", 1024), ReadCache()
    real = store.inner.get_range

    def down(*_: Any, **how: Any) -> Any:
        raise UnavailableError("down")

    store.inner.get_range = down
    with pytest.raises(UnavailableError):
        cache.open(store, stream)
    store.inner.get_range = real
    assert read(cache, store, stream) == store.inner.get("a")


def test_memory_is_bounded_and_the_longest_unused_goes_first(store: Line) -> None:
    """Eight files fit; nothing takes more than an eighth."""
    streams = {name: put(store, name, MIB) for name in "abcdefghi"}
    cache = ReadCache(8 * MIB)
    for name in "abcdefghai":  # b is the longest unused when i comes
        read(cache, store, streams[name])
    assert store.spent() == 9
    for name in "acdefghi":
        read(cache, store, streams[name])
    assert store.spent() == 0
    read(cache, store, streams["b"])
    assert store.spent() == 1
    assert cache.open(store, put(store, "large", MIB + 256)) is None


@pytest.mark.parametrize("change", ["generation", "crc32c", "stored_bytes"])
def test_nothing_is_kept_that_cannot_be_proven(store: Line, change: str) -> None:
    """What a name means may change, and what has no checksum may be anything."""
    stream, cache = replace(put(store, "a", 1024), **{change: None}), ReadCache()
    assert cache.open(store, stream) is None
    assert cache.ranges(store, stream) is None


def test_a_folder_is_not_cached(tmp_path: Any) -> None:
    store = Counted(LocalObjectStore(tmp_path, durable=False))
    assert ReadCache().open(store, put(store, "a", 1024)) is None
