"""Any bytes, read as a changelog file: changes or FormatError, in time and memory bound by the input."""

from __future__ import annotations

import struct
import tracemalloc
import uuid

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.errors import FormatError
from dstl_dagster.format import KeyGroupRange, SequenceNumber, StateChange, StateChangeSet
from dstl_dagster.format.changelog_file.change_set_codec import DecodedChangeSet
from dstl_dagster.format.changelog_file.compression import Compression
from dstl_dagster.format.changelog_file.encoding import ChangelogFileEncoder
from dstl_dagster.format.changelog_file.reader import ChangelogFileReader
from tests.profiles import examples, limit

pytestmark = limit()


class Bytes:
    """A file in memory that records how much of it was requested."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def size_bytes(self) -> int:
        return len(self.content)

    def read_range(self, start: int, length: int) -> bytes:
        assert length >= 0
        assert start >= 0
        return self.content[start : start + length]


def _read_all(content: bytes, *, footer_required: bool = False) -> list[tuple[int, bytes]] | None:
    """All changes through every path, which must agree; None if the file is refused."""
    try:
        reader = ChangelogFileReader(Bytes(content), footer_required=footer_required)
        rows: list[tuple[int, bytes]] = []
        for offset in reader.offsets():
            decoded = reader.change_set(offset)
            count = len(decoded.starts)
            changes = decoded.changes(0, count)
            views = decoded.view_column(0, count)
            views.validate(full=True)
            assert views.to_pylist() == changes
            assert decoded.binary_column(0, count).to_pylist() == changes
            own = _rows_of(decoded)
            rows += own
            some = [KeyGroupRange.of(group, group) for group, _ in own[:2] if group >= 0]
            part = reader.change_set_of(offset, some)
            groups = {-1, *(each.start_key_group for each in some)}
            found = [] if part is None else _rows_of(part)
            assert [row for row in found if row[0] in groups] == [row for row in own if row[0] in groups]
            assert set(found) <= set(own)
    except FormatError:
        return None
    return rows


def _rows_of(decoded: DecodedChangeSet) -> list[tuple[int, bytes]]:
    changes = decoded.changes(0, len(decoded.starts))
    return list(zip(decoded.row_key_groups().tolist(), changes, strict=True))


CHANGES = st.lists(st.tuples(st.integers(-1, 2**31 - 2), st.binary(max_size=40)), max_size=20).map(
    lambda rows: [StateChange(*row) for row in rows]
)


def _encode(sets: list[list[StateChange]], compression: Compression, chunk_bytes: int) -> bytes:
    encoder = ChangelogFileEncoder(compression, chunk_bytes)
    pieces = [encoder.header()]
    for number, changes in enumerate(sets):
        change_set = StateChangeSet(uuid.UUID(int=number), SequenceNumber.of(number), changes)
        pieces.extend(bytes(piece) for piece in encoder.change_set(change_set))
    pieces.extend(encoder.footer())
    return b"".join(pieces)


@given(st.lists(CHANGES, max_size=4), st.sampled_from(Compression), st.sampled_from([1, 50, 1 << 20]))
@examples(75)
def test_what_is_encoded_is_decoded(
    sets: list[list[StateChange]], compression: Compression, chunk: int
) -> None:
    """Any changes, in any number of sets, with any chunk size, come back grouped stably by key group."""
    expected = [tuple(row) for rows in sets for row in sorted(rows, key=lambda row: row.key_group)]
    assert _read_all(_encode(sets, compression, chunk), footer_required=True) == expected


@given(st.binary(max_size=200))
@examples(150)
def test_random_bytes_are_changes_or_format_error(content: bytes) -> None:
    """No bytes make the reader fail in another way."""
    _read_all(content)


@given(
    st.sampled_from([0, 1, 2, 7]),
    st.lists(st.integers(-2, 6) | st.integers(-(2**31), 2**31 - 1), max_size=30),
)
@examples(150)
def test_random_headers_are_changes_or_format_error(flag: int, words: list[int]) -> None:
    """Counts and lengths of any size, true or not, make the reader fail in no other way."""
    _read_all(bytes([flag]) + struct.pack(f">{len(words)}i", *words))


@st.composite
def _harmed_files(draw: st.DrawFn) -> bytes:
    sets = draw(st.lists(CHANGES, min_size=1, max_size=3))
    content = bytearray(
        _encode(sets, draw(st.sampled_from(Compression)), draw(st.sampled_from([50, 1 << 20])))
    )
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["set", "cut", "insert", "move"]))
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        if kind == "set" and content:
            content[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del content[at : at + draw(st.integers(1, 50))]
        elif kind == "insert":
            content[at:at] = draw(st.binary(max_size=20))
        elif kind == "move":
            content += content[at : at + draw(st.integers(1, 50))]
    return bytes(content)


@given(_harmed_files(), st.booleans())
@examples(150)
def test_harmed_files_are_changes_or_format_error(content: bytes, footer_required: bool) -> None:
    """A file of ours, altered anywhere, makes the reader fail in no other way."""
    _read_all(content, footer_required=footer_required)


def test_claims_cost_no_memory() -> None:
    """Files that claim gigabytes are refused, and take no more memory than they have bytes."""
    huge = 2**31 - 1
    claims = [
        struct.pack(">Biiii", 0, 1, 1, 0, huge),
        struct.pack(">Bi", 0, huge),
        struct.pack(">Biii", 0, 1, huge, 0),
        b"\x01\xff\x06\x00\x00sNaPpY" + b"\x00\x09\x00\x00" + b"\0\0\0\0" + b"\xff\xff\xff\xff\x0f",
        b"\x01\xff\x06\x00\x00sNaPpY" + b"\x00\xff\xff\xff" + b"\0" * 100,
        b"\x01\x80\xff\xff\xff",
        # A Zstandard frame whose header claims 2^40 bytes, without a block.
        b"\x02\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little"),
    ]
    assert _read_all(_encode([[StateChange(0, b"x")]], Compression.NONE, 1)) is not None
    pa.array([b""], pa.binary()).take(pa.array([0]))
    for content in claims:
        tracemalloc.start()
        try:
            assert _read_all(content) is None
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # What the interpreter needs for an exception and its frames; far below the claims.
        assert peak_bytes < 4 << 20


def test_a_bomb_is_refused_at_its_claimed_size() -> None:
    """Decompression stops as soon as frames exceed the size in the index, whatever else they hold."""
    content = _encode([[StateChange(0, b"\0" * (8 << 20))]], Compression.ZSTD, 16 << 20)
    reader = ChangelogFileReader(Bytes(content))
    index = reader.index()
    assert index is not None
    (entry,) = index.entries
    assert entry.stored_size < 4096
    small = _encode([[StateChange(0, b"x")]], Compression.ZSTD, 1 << 20)
    bomb = bytearray(small)
    begin = ChangelogFileReader(Bytes(small)).index()
    assert begin is not None
    frame = content[entry.stored_offset : entry.stored_offset + entry.stored_size]
    target = begin.entries[0]
    bomb[target.stored_offset : target.stored_offset + target.stored_size] = frame[: target.stored_size]
    assert _read_all(bytes(bomb)) is None
