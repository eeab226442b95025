"""Part of a change set is read by its frames: the same changes, fewer bytes, each frame verified."""

from __future__ import annotations

import random
import uuid

import google_crc32c
import numpy as np
import pytest

from dstl_dagster.errors import FormatError
from dstl_dagster.format import KeyGroupRange, SequenceNumber, StateChange, StateChangeSet
from dstl_dagster.format.changelog_file import reader as changelog_file_module
from dstl_dagster.format.changelog_file.change_set_codec import ChangeSetLayout
from dstl_dagster.format.changelog_file.change_set_parts import is_within, part_of
from dstl_dagster.format.changelog_file.compression import FRAME_BYTES, Compression
from dstl_dagster.format.changelog_file.encoding import ChangelogFileEncoder
from dstl_dagster.format.changelog_file.footer import Frames, decode_trailer
from dstl_dagster.format.changelog_file.reader import ChangelogFileReader

CHUNK_BYTES = 4 * FRAME_BYTES
GROUPS = 64


class Counted:
    """A file in memory; counts the bytes that are asked for, beside those of the footer."""

    place = "memory"

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.reads: list[tuple[int, int]] = []

    def size_bytes(self) -> int:
        return len(self.content)

    def read_range(self, start: int, length: int) -> bytes:
        self.reads.append((start, length))
        return self.content[start : start + length]

    def close(self) -> None:
        pass


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def file_of(compression: Compression, *sets: list[StateChange]) -> bytes:
    encoder = ChangelogFileEncoder(compression, CHUNK_BYTES)
    pieces = [encoder.header()]
    for number, changes in enumerate(sets):
        change_set = StateChangeSet(uuid.UUID(int=1), SequenceNumber(number), changes)
        pieces += [bytes(piece) for piece in encoder.change_set(change_set)]
    pieces += encoder.footer()
    assert encoder.crc32c == google_crc32c.value(b"".join(pieces))
    return b"".join(pieces)


def large_set(seed: int = 0) -> list[StateChange]:
    """Of 2 MiB that no compression makes shorter: 32 KiB for each of 64 key groups, in two changes."""
    groups = [group for _ in range(2) for group in range(GROUPS)]
    changes = [StateChange.of(group, noise(seed + at, 16 << 10)) for at, group in enumerate(groups)]
    return [StateChange.meta(b"schema"), *changes]


def changes_of(reader: ChangelogFileReader, offset: int, *groups: int) -> list[tuple[int, bytes]]:
    """What is read for these key groups, as it comes."""
    found = reader.change_set_of(offset, [KeyGroupRange.of(each, each) for each in groups])
    assert found is not None
    return list(
        zip(found.row_key_groups().tolist(), found.changes(0, len(found.layout.lengths)), strict=True)
    )


@pytest.mark.parametrize("compression", Compression)
def test_only_the_frames_of_a_key_group_are_read(compression: Compression) -> None:
    """Its changes and the metadata, in their order, for a fraction of the bytes."""
    content = file_of(compression, large_set(), large_set(seed=1000))
    source = Counted(content)
    reader = ChangelogFileReader(source)
    for group in (0, 17, GROUPS - 1):
        source.reads.clear()
        expected = [each for each in sorted(large_set(), key=lambda c: c.key_group) if each[0] in (-1, group)]
        assert changes_of(reader, 0, group) == expected
        assert sum(length for _, length in source.reads) < 12 * FRAME_BYTES < len(content) // 4
        assert len(source.reads) <= 5  # once the file's end and flag; block, first frame, the group's frames


def test_neighbours_are_one_read_and_most_of_a_set_is_all_of_it() -> None:
    """Adjacent frames are read together; most of the set is read and verified whole."""
    content = file_of(Compression.ZSTD, large_set())
    source = Counted(content)
    reader = ChangelogFileReader(source)
    changes_of(reader, 0, 3)
    source.reads.clear()
    assert len(changes_of(reader, 0, *range(20, 30))) == 21
    assert len(source.reads) == 2  # metadata, and ten key groups; the layout came with the file's end
    assert len(changes_of(reader, 0, *range(56))) == 2 * GROUPS + 1


def test_what_is_read_is_what_was_announced() -> None:
    """`stored_ranges` names each range that `change_set_of` reads afterwards, and no other."""
    source = Counted(file_of(Compression.ZSTD, large_set(), large_set(seed=1000)))
    reader = ChangelogFileReader(source)
    entries = reader.index().entries  # type: ignore[union-attr]
    groups = [KeyGroupRange.of(7, 7), KeyGroupRange.of(50, 51)]
    announced = reader.stored_ranges((each.offset, groups) for each in entries)
    source.reads.clear()
    for each in entries:
        reader.change_set_of(each.offset, groups)
    assert source.reads == announced
    assert len(source.reads) == 1 + 3 * len(entries)  # the file's flag; metadata and two runs in each


def test_a_damaged_frame_is_found_and_others_are_still_read() -> None:
    """Each frame has its own checksum."""
    content = bytearray(file_of(Compression.NONE, large_set()))
    content[1 + (1 << 20)] ^= 1  # in the middle of the body
    reader = ChangelogFileReader(Counted(bytes(content)))
    damaged = [group for group in range(GROUPS) if not _is_readable(reader, group)]
    assert damaged
    assert len(damaged) <= CHUNK_BYTES // (32 << 10) + 1
    assert any(abs(each - GROUPS // 2) <= 4 for each in damaged)


def _is_readable(reader: ChangelogFileReader, group: int) -> bool:
    try:
        changes_of(reader, 0, group)
    except FormatError:
        return False
    return True


def test_a_damaged_table_is_refused() -> None:
    """Where it is used; a read of everything does not need it."""
    content = bytearray(file_of(Compression.ZSTD, large_set()))
    end = ChangelogFileReader(Counted(bytes(content))).index().frames_end  # type: ignore[union-attr]
    assert end is not None
    content[end - 20] ^= 1
    with pytest.raises(FormatError, match="frames"):
        changes_of(ChangelogFileReader(Counted(bytes(content))), 0, 5)
    assert len(ChangelogFileReader(Counted(bytes(content))).change_set(0).layout.lengths) == 2 * GROUPS + 1


@pytest.mark.parametrize("compression", Compression)
def test_releases_without_the_table_read_the_file(
    compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ignore the bit that announces it: what they find is what they always found."""
    content = file_of(compression, large_set())

    def as_before(tail: bytes, file_bytes: int):  # type: ignore[no-untyped-def]
        trailer = decode_trailer(tail, file_bytes)
        assert trailer is not None
        assert trailer.has_frames
        return type(trailer)(*list(vars(trailer).values())[:-1])

    monkeypatch.setattr(changelog_file_module, "decode_trailer", as_before)
    whole = changes_of(ChangelogFileReader(Counted(content)), 0, 5)
    assert whole == sorted(large_set(), key=lambda change: change.key_group)


def test_a_small_set_needs_no_table() -> None:
    """A file of sets of one frame each is as it always was."""
    content = file_of(Compression.ZSTD, [StateChange.of(1, b"a")], [StateChange.of(2, b"b")])
    trailer = decode_trailer(content, len(content))
    assert trailer is not None
    assert not trailer.has_frames


def test_a_plan_holds_each_frame_once() -> None:
    """Two key groups in one frame, one that spans three, and one that is not there."""
    layout = ChangeSetLayout(
        np.array([-1, 3, 4, 9, 12], np.int32), np.ones(5, np.int64), np.array([8, 20, 20, 300, 500])
    )
    frames = Frames.of([(100, 10, 0)] * 9 + [(12, 5, 0)])
    assert layout.encoded_bytes == sum(frames.sizes)
    part = part_of(layout, frames, [KeyGroupRange.of(4, 9)])
    assert part is not None
    assert part.runs == ((0, 4),)
    assert part.layout.key_groups.tolist() == [-1, 4, 9]
    assert part.pieces == ((12, 24, 12), (64, 88, 32), (96, 400, 64))
    assert list(part.stored_ranges()) == [(0, 40)]
    assert part_of(layout, frames, [KeyGroupRange.of(4, 12)]) is None


@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_ranges_are_searched_as_they_are_compared(count: int) -> None:
    """Also where they overlap, and in any order."""
    choose = random.Random(count)
    starts = [choose.randrange(300) for _ in range(count)]
    ranges = [KeyGroupRange.of(start, start + choose.randrange(20)) for start in starts]
    groups = np.arange(-1, 330, dtype=np.int32)
    expected = [any(each.contains(group) for each in ranges) for group in groups.tolist()]
    assert is_within(groups, ranges).tolist() == expected
