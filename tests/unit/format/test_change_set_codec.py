"""The body of a change set: cases that few inputs reach."""

from __future__ import annotations

import itertools
import uuid

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.errors import FormatError, InternalError, InvalidInputError
from dstl_dagster.format import SequenceNumber, StateChange, StateChangeSet
from dstl_dagster.format.changelog_file import change_set_codec
from dstl_dagster.format.changelog_file import encoding as changelog_file_encoding
from dstl_dagster.format.changelog_file.change_set_codec import (
    ChangeSetLayout,
    decode_change_set,
    walk_change_set,
)
from dstl_dagster.format.changelog_file.compression import Compression
from dstl_dagster.format.changelog_file.encoding import ChangelogFileEncoder, encoded_chunks, plan_change_set
from dstl_dagster.format.changelog_file.reader import ChangelogFileReader
from dstl_dagster.format.changes import ChangeColumns, ChangeRun

ROWS = [StateChange(3, b"a"), StateChange(-1, b"meta"), StateChange(3, b""), StateChange(1, b"ccc")]


def _body(changes: ChangeColumns, chunk_bytes: int = 1 << 20) -> bytes:
    return b"".join(bytes(chunk) for chunk in encoded_chunks(plan_change_set(changes), chunk_bytes))


@pytest.mark.parametrize("chunk_bytes", [1, 9, 1 << 20])
@pytest.mark.parametrize("presorted", [False, True])
def test_offsets_of_64_bits_give_the_same_bytes(
    chunk_bytes: int, presorted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column too large for 32-bit offsets is encoded alike; the limit is lowered, to avoid 2 GiB."""
    rows = [*ROWS, StateChange(3, b"thirteen long"), StateChange(1, b"fourteen bytes"), StateChange(9, b"z")]
    rows = sorted(rows, key=lambda row: row.key_group) if presorted else rows
    narrow = _body(ChangeColumns.of_changes(rows))
    values = pa.array([b"before", *(row.change for row in rows)], pa.large_binary()).slice(1)
    key_groups = np.array([row.key_group for row in rows], np.int32)
    wide = ChangeColumns([ChangeRun.of_columns(key_groups, values)])
    assert len(plan_change_set(wide).columns) == 1
    monkeypatch.setattr(changelog_file_encoding, "INT32_ROOM_BYTES", 3)
    assert len(plan_change_set(wide).columns) == 6
    assert _body(wide, chunk_bytes) == narrow


def test_runs_of_every_kind_join() -> None:
    """Rows, binary and large binary columns in one set keep their order inside a key group."""

    def columns(values: list[bytes], arrow_type: pa.DataType) -> ChangeRun:
        return ChangeRun.of_columns(np.full(len(values), 7, np.int32), pa.array(values, arrow_type))

    changes = ChangeColumns(
        [
            columns([b"1"], pa.binary()),
            ChangeRun.of_rows([7], [b"2"], 1),
            columns([], pa.binary()),
            columns([b"3", b"4"], pa.large_binary()),
        ]
    )
    assert (len(changes), changes.size_bytes, changes[1]) == (4, 4, StateChange(7, b"2"))
    body, layout, _ = walk_change_set(_reader(_body(changes)))
    assert decode_change_set(body, layout).changes(0, 4) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("row_count", [100, 20_000])
@pytest.mark.parametrize("highest_group", [127, 40_000, 2**31 - 2])
@pytest.mark.parametrize("lengths", [(0, 12), (13, 40), (0, 40)])
def test_any_rows_come_out_by_key_group(row_count: int, highest_group: int, lengths: tuple[int, int]) -> None:
    """Few and many rows, small and large key groups, short and long changes: stable order, same bytes."""
    random = np.random.default_rng(row_count)
    key_groups = random.integers(-1, highest_group, row_count, np.int32, endpoint=True)
    values = [bytes([row % 256]) * random.integers(*lengths, endpoint=True) for row in range(row_count)]
    cuts = [0, row_count // 3, row_count]
    runs = [
        ChangeRun.of_columns(key_groups[start:stop], pa.array(values[start:stop], pa.binary()))
        for start, stop in itertools.pairwise(cuts)
    ]
    body, layout, _ = walk_change_set(_reader(_body(ChangeColumns(runs))))
    expected = sorted(range(row_count), key=lambda row: key_groups[row])
    decoded = decode_change_set(body, layout)
    assert decoded.row_key_groups().tolist() == key_groups[expected].tolist()
    assert decoded.changes(0, row_count) == [values[row] for row in expected]


def _reader(content: bytes):  # type: ignore[no-untyped-def]  # a read function over bytes
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        piece = content[at : at + size]
        at += len(piece)
        return piece

    return read


def test_empty_groups_end_nothing() -> None:
    """An empty group in the middle is skipped; upstream's iterator stops there."""
    words = np.array([3, 0, 5, 1, 6, 0, 0, 7], dtype=">i4").tobytes()
    body, layout, beyond = walk_change_set(_reader(words + b"rest"))
    assert (layout.counts.tolist(), beyond) == ([0, 1, 0], b"rest")
    decoded = decode_change_set(body, layout)
    assert (decoded.row_key_groups().tolist(), decoded.changes(0, 1)) == ([6], [b""])


def test_a_layout_is_not_trusted() -> None:
    """A layout that does not agree with the body in every header is refused."""
    body = _body(ChangeColumns.of_changes(ROWS))
    layout = plan_change_set(ChangeColumns.of_changes(ROWS)).layout
    decode_change_set(body, layout)
    lengths = layout.lengths.copy()
    lengths[[0, 3]] = lengths[[3, 0]]
    for wrong in (
        ChangeSetLayout(layout.key_groups[::-1].copy(), layout.counts, layout.lengths),
        ChangeSetLayout(layout.key_groups, layout.counts[::-1].copy(), layout.lengths),
        ChangeSetLayout(layout.key_groups, layout.counts, lengths),
        ChangeSetLayout(layout.key_groups, layout.counts, layout.lengths[:-1]),
    ):
        with pytest.raises(FormatError):
            decode_change_set(body, wrong)


def test_a_block_too_long_for_one_hidden_frame_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its lengths in the footer a set is walked; it is still found and verified."""
    original = changelog_file_encoding.skippable_frame_header
    monkeypatch.setattr(
        changelog_file_encoding,
        "skippable_frame_header",
        lambda compression, size: None if size < 60 else original(compression, size),
    )
    encoder = ChangelogFileEncoder(Compression.SNAPPY, 1 << 20)
    pieces = [encoder.header()]
    change_set = StateChangeSet(uuid.uuid4(), SequenceNumber(4), ROWS)
    pieces += [bytes(piece) for piece in encoder.change_set(change_set)]
    pieces += list(encoder.footer())
    assert encoder.crc32c == google_crc32c.value(b"".join(pieces))
    content = b"".join(pieces)

    class Bytes:
        def size_bytes(self) -> int:
            return len(content)

        def read_range(self, start: int, length: int) -> bytes:
            return content[start : start + length]

    reader = ChangelogFileReader(Bytes(), footer_required=True)
    index = reader.index()
    assert index is not None
    assert (index.entries[0].block_offset, index.entries[0].sequence_number) == (None, SequenceNumber(4))
    decoded = reader.change_set(0)
    assert decoded.changes(0, 4) == [b"meta", b"ccc", b"a", b""]


def test_a_file_takes_so_many_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above its limit a file refuses a set, so that its index fits into one frame."""
    monkeypatch.setattr(changelog_file_encoding, "MAX_CHANGE_SETS_PER_FILE", 1)
    encoder = ChangelogFileEncoder(Compression.NONE, 1 << 20)
    encoder.header()
    change_set = StateChangeSet(uuid.uuid4(), SequenceNumber(0), ROWS)
    list(encoder.change_set(change_set))
    with pytest.raises(InvalidInputError, match="begin another"):
        list(encoder.change_set(change_set))


def test_a_column_above_two_gigabytes_is_refused_not_wrapped() -> None:
    """Offsets that would not fit 32 bits are an error of the caller, never a silent overflow."""
    layout = ChangeSetLayout(np.array([0], np.int32), np.array([1]), np.array([2**31]))
    decoded = change_set_codec.DecodedChangeSet(
        pa.py_buffer(b""), layout, np.array([16]), np.zeros(1, np.int32)
    )
    for column in (decoded.binary_column, decoded.view_column):
        with pytest.raises(InternalError):
            column(0, 1)
