"""CRC-32C: of bytes, of a concatenation, and as the text that Google Cloud Storage uses.

Owns the arithmetic. Does not own when checksums are compared, nor what a mismatch means.

Source: the Castagnoli polynomial as in RFC 3720. The checksum of a concatenation follows from those of its
parts: a zero byte transforms the register linearly, so tables for runs of 2^k zero bytes cover any count.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Sequence

import google_crc32c
import numpy as np
import numpy.typing as npt

from dstl_dagster.errors import FormatError

__all__ = [
    "EMPTY_CRC32C",
    "combine",
    "combine_all",
    "crc32c",
    "extend",
    "from_base64",
    "of_second",
    "of_seconds",
    "to_base64",
]

EMPTY_CRC32C = 0
"""The checksum of no bytes."""

_POLYNOMIAL = 0x82F63B78  # reflected: bit 31 is x^0

Int64s = npt.NDArray[np.int64]

_MANY = 24
"""From so many on, arrays are quicker."""


def crc32c(payload: bytes | bytearray | memoryview) -> int:
    """The checksum of the bytes, unsigned 32 bits."""
    return extend(EMPTY_CRC32C, payload)


def extend(crc: int, payload: bytes | bytearray | memoryview) -> int:
    """The checksum of what `crc` covers followed by `payload`."""
    if isinstance(payload, bytes):
        return int(google_crc32c.extend(crc, payload))
    # The library refuses a memoryview, but accepts an array over the same bytes without a copy.
    return int(google_crc32c.extend(crc, np.frombuffer(payload, dtype=np.uint8)))


def combine(first_crc: int, second_crc: int, second_size: int) -> int:
    """The checksum of a concatenation, from those of its two parts and the second's size in bytes."""
    return _after_zeros(first_crc, second_size) ^ second_crc


def of_second(first_crc: int, whole_crc: int, second_size: int) -> int:
    """The checksum of a concatenation's second part, from those of the first and of the whole."""
    # XOR is its own inverse: the first part's share is removed the way it is added.
    return combine(first_crc, whole_crc, second_size)


def of_seconds(parts: Sequence[tuple[int, int, int]]) -> list[int]:
    """`of_second` of each (first checksum, checksum of the whole, second size in bytes)."""
    if len(parts) < _MANY:
        return [of_second(*each) for each in parts]
    firsts, wholes, sizes = np.array(parts, np.int64).T
    found: list[int] = (_each_after_zeros(firsts, sizes) ^ wholes).tolist()
    return found


def combine_all(parts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """(checksum, size in bytes) of the concatenation of parts, each given as (checksum, size in bytes)."""
    crc, size = EMPTY_CRC32C, 0
    for part_crc, part_size in parts:
        crc = combine(crc, part_crc, part_size)
        size += part_size
    return crc, size


def to_base64(crc: int) -> str:
    """Standard base64 of the four big-endian bytes: 12345 is `AAAwOQ==`."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode("ascii")


def from_base64(text: str) -> int:
    """Inverse of `to_base64`. Raises: FormatError."""
    try:
        octets = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise FormatError(f"{text!r} is not the base64 of a CRC-32C") from error
    if len(octets) != 4:
        raise FormatError(f"{text!r} holds {len(octets)} bytes; a CRC-32C has 4")
    return int.from_bytes(octets, "big")


def _after_zeros(crc: int, count: int) -> int:
    """The register after `count` more zero bytes."""
    power = 0
    while count:
        if count & 1:
            lowest, second, third, highest = _zeros_tables(power)
            crc = lowest[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ highest[crc >> 24]
        count >>= 1
        power += 1
    return crc


def _each_after_zeros(crcs: Int64s, counts: Int64s) -> Int64s:
    """`_after_zeros` of each."""
    power = 0
    while counts.any():
        lowest, second, third, highest = _zeros_arrays(power)
        after = lowest[crcs & 255] ^ second[crcs >> 8 & 255] ^ third[crcs >> 16 & 255] ^ highest[crcs >> 24]
        crcs = np.where(counts & 1, after, crcs)
        counts = counts >> 1
        power += 1
    return crcs


@functools.cache
def _zeros_tables(power: int) -> tuple[list[int], ...]:
    """The image of each value of each register byte under 2^power zero bytes; lowest byte first."""
    if power == 0:
        images = [_after_zero_byte(1 << bit) for bit in range(32)]
    else:
        half = 1 << (power - 1)
        images = [_after_zeros(_after_zeros(1 << bit, half), half) for bit in range(32)]
    tables = []
    for first_bit in range(0, 32, 8):
        # The register is linear: a value's image is the XOR of that of its lowest bit and that of the rest.
        table = [0]
        for value in range(1, 256):
            lowest_bit = (value & -value).bit_length() - 1
            table.append(table[value & (value - 1)] ^ images[first_bit + lowest_bit])
        tables.append(table)
    return tuple(tables)


@functools.cache
def _zeros_arrays(power: int) -> Int64s:
    return np.array(_zeros_tables(power))


def _after_zero_byte(crc: int) -> int:
    for _ in range(8):
        crc = (crc >> 1) ^ _POLYNOMIAL if crc & 1 else crc >> 1
    return crc
