"""Files that Flink 2.2.1 wrote, read here; and files written here, read as Flink's own reader would.

`flink/golden.json` holds what Flink's reader yields for each file. `_flink_reader` below follows the
layout of Flink's classes, and shares nothing with the package.
"""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam
import pyarrow as pa
import pytest

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.errors import FormatError
from dstl_dagster.format import (
    ChangelogStateHandle,
    KeyGroupRange,
    SequenceNumber,
    StateChange,
    StateChangeSet,
)
from dstl_dagster.format.changelog_file.compression import Compression
from dstl_dagster.format.changelog_file.encoding import ChangelogFileEncoder
from dstl_dagster.format.changelog_file.reader import ChangelogFileReader
from dstl_dagster.storage import ABSENT, MemoryObjectStore

HERE = Path(__file__).parent / "flink"
GOLDEN = json.loads((HERE / "golden.json").read_text())
CASES = {case["name"]: case for case in GOLDEN["cases"]}
HANDLES = [
    pytest.param(handle, id=f"{case['name']}-{index}")
    for case in GOLDEN["cases"]
    for index, handle in enumerate(case["handles"])
]


class Bytes:
    """A file in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def size_bytes(self) -> int:
        return len(self.content)

    def read_range(self, start: int, length: int) -> bytes:
        return self.content[start : start + length]


def _value(seed: int, length: int) -> bytes:
    """The formula of `golden.json`."""
    return bytes(
        (seed * 131 + j * 7 + (j >> 8) * j * 13) & 255 if (j & 255) < 64 else (seed + ((j & 255) >> 4)) & 255
        for j in range(length)
    )


INPUT_SETS = [
    [StateChange(change["kg"], _value(change["seed"], change["len"])) for change in one]
    for one in GOLDEN["inputSets"]
]


def _check(expected: list[dict[str, Any]], changes: list[StateChange]) -> None:
    assert [change["kg"] for change in expected] == [change.key_group for change in changes]
    for wanted, got in zip(expected, changes, strict=True):
        assert len(got.change) == wanted["len"]
        if "hex" in wanted:
            assert got.change.hex() == wanted["hex"]
        else:
            assert hashlib.sha256(got.change).hexdigest() == wanted["sha256"]


def test_the_golden_files_are_unharmed() -> None:
    """Each file has the checksum it was recorded with."""
    for line in (HERE / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((HERE / name.removeprefix("./")).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("golden", HANDLES)
def test_files_of_flink_are_read(golden: dict[str, Any]) -> None:
    """Every handle of Flink's, plain and Snappy, yields what Flink's reader yields, as rows and columns."""
    store = MemoryObjectStore()
    for name in {part["file"] for part in golden["parts"]}:
        store.put(name, (HERE / name).read_bytes(), precondition=ABSENT)
    handle = ChangelogStateHandle.of_files(
        [(part["file"], part["offset"]) for part in golden["parts"]],
        KeyGroupRange.of(*golden["keyGroupRange"]),
    )
    expected = [change for part in golden["parts"] for change in part["changes"]]
    with FsStateChangelogStorage("job", store) as storage:
        reader = storage.create_reader()
        _check(expected, list(reader.read(handle)))
        for views in (False, True):
            columns = [
                StateChange(*row)
                for batch in reader.read_batches(handle, views=views)
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            ]
            _check(expected, columns)


def _encode(sets: list[list[StateChange]], compression: Compression, chunk_bytes: int = 1 << 20) -> bytes:
    encoder = ChangelogFileEncoder(compression, chunk_bytes)
    pieces: list[bytes] = [encoder.header()]
    for number, changes in enumerate(sets):
        change_set = StateChangeSet(uuid.UUID(int=0), SequenceNumber.of(number), changes)
        pieces.extend(bytes(piece) for piece in encoder.change_set(change_set))
    pieces.extend(encoder.footer())
    return b"".join(pieces)


def test_the_same_bytes_as_flink() -> None:
    """A set whose key groups are below 16 has the body that Flink writes, byte for byte."""
    sets = [INPUT_SETS[2], [StateChange(3, b"ccc"), StateChange(1, b""), StateChange(3, b"dd")]]
    written = _encode(sets, Compression.NONE)
    flink = (HERE / "multi-file-plain" / "file-2.bin").read_bytes()
    assert written[: len(flink)] == flink
    assert written[len(flink) :].startswith(
        bytes.fromhex("00000002 00000001 00000001 00000000 00000002 00000003 00000003 636363 00000002 6464")
    )


def test_the_vector_of_the_layout() -> None:
    """One task of two logs: sets by log id as Java compares, then position; offsets count from the flag."""
    zero, one = uuid.UUID(int=0), uuid.UUID(int=1)
    sets = [
        StateChangeSet(zero, SequenceNumber.of(2), [StateChange.of(1, b"")]),
        StateChangeSet(
            zero,
            SequenceNumber.of(7),
            [
                StateChange.of(3, b"b"),
                StateChange.meta(b"M1"),
                StateChange.of(5, b"e"),
                StateChange.meta(b"M2"),
            ],
        ),
        StateChangeSet(one, SequenceNumber.of(5), [StateChange.of(2, b"zz")]),
    ]
    encoder = ChangelogFileEncoder(Compression.NONE, 1 << 20)
    pieces = [encoder.header()]
    offsets = []
    for change_set in sets:
        offsets.append(encoder.body_size)
        pieces.extend(bytes(piece) for piece in encoder.change_set(change_set))
    assert b"".join(pieces) == bytes.fromhex(
        "00 00000001 00000001 00000001 00000000"
        "00000003 00000002 ffffffff 00000002 4d31 00000002 4d32"
        " 00000001 00000003 00000001 62 00000001 00000005 00000001 65"
        "00000001 00000001 00000002 00000002 7a7a"
    )
    assert offsets == [0, 16, 66]


def _flink_reader(content: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """Flink's StateChangeFormat, step by step as in its source: flag, decompression, skip, groups."""
    body = content[1:]
    if content[0] == 1:
        body = bytes(cramjam.snappy.decompress(body))
    at = offset
    (groups,) = struct.unpack_from(">i", body, at)
    at += 4
    for _ in range(groups):
        count, key_group = struct.unpack_from(">ii", body, at)
        at += 8
        for _ in range(count):
            (length,) = struct.unpack_from(">i", body, at)
            yield key_group, body[at + 4 : at + 4 + length]
            at += 4 + length


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.SNAPPY])
@pytest.mark.parametrize("chunk_bytes", [1_000, 1 << 20])
def test_files_written_here_are_read_as_flink_reads(compression: Compression, chunk_bytes: int) -> None:
    """Flag, body and offsets of our files are Flink's; the footer is where its reader never looks, and
    a Snappy decoder skips it.
    """
    content = _encode(INPUT_SETS, compression, chunk_bytes)
    offsets = list(ChangelogFileReader(Bytes(content), footer_required=True).offsets())
    for offset, changes in zip(offsets, INPUT_SETS, strict=True):
        expected = sorted(changes, key=lambda change: change.key_group)
        assert list(_flink_reader(content, offset)) == expected


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.SNAPPY])
def test_a_file_of_ours_without_its_footer_is_a_file_of_flinks(compression: Compression) -> None:
    """Truncated after the body, a file reads as Flink's would, unless its handle shows that we wrote it."""
    content = _encode(INPUT_SETS, compression)
    whole = ChangelogFileReader(Bytes(content))
    index = whole.index()
    assert index is not None
    last = index.entries[-1]
    cut = Bytes(content[: last.stored_offset + last.stored_size])
    reader = ChangelogFileReader(cut)
    assert list(reader.offsets()) == list(whole.offsets())
    for offset in whole.offsets():
        ours, theirs = whole.change_set(offset), reader.change_set(offset)
        assert ours.changes(0, len(ours.starts)) == theirs.changes(0, len(theirs.starts))
    with pytest.raises(FormatError, match="without its footer"):
        ChangelogFileReader(cut, footer_required=True).change_set(0)


def test_snappy_of_two_makers_decodes_alike() -> None:
    """Our Snappy file and Flink's of the same sets differ in bytes and agree in what they hold."""
    ours = _encode(INPUT_SETS, Compression.SNAPPY)
    theirs = (HERE / "single-file-snappy" / "file-0.bin").read_bytes()
    for offset in ChangelogFileReader(Bytes(ours)).offsets():
        groups: list[dict[int, list[bytes]]] = []
        for content in (ours, theirs):
            decoded = ChangelogFileReader(Bytes(content)).change_set(offset)
            by_group: dict[int, list[bytes]] = {}
            rows = zip(
                decoded.row_key_groups().tolist(), decoded.changes(0, len(decoded.starts)), strict=True
            )
            for key_group, change in rows:
                by_group.setdefault(key_group, []).append(change)
            groups.append(by_group)
        assert groups[0] == groups[1]


def test_arrow_decodes_what_it_gave() -> None:
    """A view column of a golden set is valid Arrow, checked in full."""
    content = (HERE / "single-file-plain" / "file-0.bin").read_bytes()
    decoded = ChangelogFileReader(Bytes(content)).change_set(0)
    column = decoded.view_column(0, len(decoded.starts))
    column.validate(full=True)
    assert column.type == pa.binary_view()
