"""CRC-32C compared with a library's: of bytes, of concatenations and of their parts."""

from __future__ import annotations

import random

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.errors import FormatError
from dstl_dagster.format import crc32c as checksums


@given(st.lists(st.binary(max_size=70), max_size=8))
def test_checksum_of_a_concatenation(parts: list[bytes]) -> None:
    """The combination of parts' checksums is the checksum of their concatenation."""
    combined = checksums.combine_all((checksums.crc32c(part), len(part)) for part in parts)
    whole = b"".join(parts)
    assert combined == (google_crc32c.value(whole), len(whole))


def test_checksum_of_any_buffer() -> None:
    """Every kind of buffer has the checksum of its bytes, slices and wide items included."""
    whole = bytes(range(256)) * 1000
    expected = google_crc32c.value(whole)
    for buffer in (whole, bytearray(whole), memoryview(whole), memoryview(bytearray(whole)).cast("I")):
        assert checksums.crc32c(buffer) == expected
    assert checksums.crc32c(memoryview(whole)[5:200_000]) == google_crc32c.value(whole[5:200_000])


def test_checksum_text() -> None:
    """Anything but the base64 of four bytes is a FormatError."""
    for text in ("", "AAAA", "!!", "AAAAAAAA"):
        with pytest.raises(FormatError):
            checksums.from_base64(text)


@given(st.binary(max_size=70), st.integers(0, 1 << 22), st.binary(max_size=70))
def test_checksum_of_a_part(first: bytes, zero_count: int, end: bytes) -> None:
    """The second part's checksum follows from the first's and the whole's, however long it is."""
    second = bytes(zero_count) + end
    whole_crc = google_crc32c.value(first + second)
    found = checksums.of_second(google_crc32c.value(first), whole_crc, len(second))
    assert found == google_crc32c.value(second)


@pytest.mark.parametrize("count", [0, 1, 100])
def test_checksums_of_many_parts(count: int) -> None:
    """Of any size, none included, behind any first part."""
    noise = random.Random(count)
    seconds = [noise.randbytes(noise.choice([0, 1, 7, noise.randrange(1 << 16)])) for _ in range(count)]
    firsts = [noise.randrange(1 << 32) for _ in range(count)]
    wholes = [checksums.extend(first, second) for first, second in zip(firsts, seconds, strict=True)]
    found = list(map(checksums.of_second, firsts, wholes, map(len, seconds)))
    assert found == list(map(google_crc32c.value, seconds))
