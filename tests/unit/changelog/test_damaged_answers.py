"""An answer that was damaged on its way is asked for once more, and never answers another reader."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dstl_dagster.changelog import ChangelogReader, ReadCache
from dstl_dagster.changelog.reader.disk_cache import DiskCache
from dstl_dagster.errors import FormatError
from dstl_dagster.format import ChangelogStateHandle
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import MemoryObjectStore, StoreCapabilities
from tests.unit.changelog.writing import open_writer, persisted

LARGE = 3 << 20


class Line(MemoryObjectStore):
    """A store whose answers may be damaged; it keeps no object open, like a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.damages = 0
        self.asked: list[tuple[int, int]] = []
        self.skip = 0
        self.at: Callable[[int], int] = lambda length: 0

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(max_useful_threads=1)

    def get_range(
        self, name: str, start: int, length: int, *, generation: int | None = None
    ) -> bytes | memoryview:
        octets = bytearray(super().get_range(name, start, length, generation=generation))
        self.asked.append((start, len(octets)))
        if len(self.asked) > self.skip and self.damages > 0:
            self.damages -= 1
            octets[self.at(len(octets))] ^= 1
        return bytes(octets)


@pytest.fixture
def written() -> Iterator[tuple[Line, ChangelogStateHandle, list[bytes]]]:
    """A file of three large changes, read in several requests."""
    store = Line()
    changes = [random.Random(number).randbytes(LARGE) for number in range(3)]
    options = FsStateChangelogOptions.from_mapping(
        {
            "state.changelog.dstl.dfs.preemptive-persist-threshold": "64 mb",
            "dstl.dfs.compression": "zstd",
        }
    )
    with open_writer(store, options) as (_, writer):
        for number, change in enumerate(changes):
            writer.append(number, change)
        yield store, persisted(writer), changes


def read(reader: ChangelogReader, handle: ChangelogStateHandle) -> list[bytes]:
    return [each.as_py() for batch in reader.read_batches(handle) for each in batch.column(1)]


PLACES = pytest.mark.parametrize("fraction", [0.0, 0.3, 0.6, 0.999])


@pytest.mark.parametrize("skip", range(4))
@PLACES
def test_a_damaged_answer_is_asked_for_again(
    written: tuple[Line, ChangelogStateHandle, list[bytes]],
    skip: int,
    fraction: float,
) -> None:
    """Wherever the flipped bit is, in whichever request; tasks that share a memory never meet it again."""
    store, handle, changes = written
    store.at, store.damages, store.skip = lambda length: int(fraction * (length - 1)), 1, skip
    cache = ReadCache()
    assert read(ChangelogReader(store, cache=cache), handle) == changes
    assert store.damages == 0 or len(store.asked) <= skip
    store.skip = len(store.asked)
    assert read(ChangelogReader(store, cache=cache), handle) == changes


def test_what_is_stored_wrong_is_an_error(
    written: tuple[Line, ChangelogStateHandle, list[bytes]],
) -> None:
    """Each time the same: asked for twice, then named with its offset."""
    store, handle, _ = written
    store.at, store.damages = lambda length: length // 3, 1_000
    with pytest.raises(FormatError, match="offset"):
        read(ChangelogReader(store, cache=ReadCache()), handle)


def test_a_damaged_download_is_not_kept_on_disk(
    written: tuple[Line, ChangelogStateHandle, list[bytes]], tmp_path: Path
) -> None:
    """It is downloaded again, and all later readers read the right file from disk."""
    store, handle, changes = written
    store.at, store.damages = lambda length: length // 3, 1
    cache = ReadCache(0, DiskCache(tmp_path, 60, 1 << 30))
    assert read(ChangelogReader(store, cache=cache), handle) == changes
    assert store.damages == 0
    store.asked.clear()
    assert read(ChangelogReader(store, cache=cache), handle) == changes
    assert store.asked == []
    cache.close()
