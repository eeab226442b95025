"""CRC-32C: of bytes, of a concatenation, and as the text that Google Cloud Storage uses.

Owns the arithmetic. Does not own when checksums are compared, nor what a mismatch means.

Source: the Castagnoli polynomial as in RFC 3720. The checksum of a concatenation follows from those of its
parts: a run of zero bytes multiplies the register by a power of x, modulo the polynomial.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable
from typing import Final

import google_crc32c

from dstl_dagster.errors import FormatError

EMPTY_CRC32C = 0
"""The checksum of no bytes."""

_POLYNOMIAL: Final = 0x82F63B78  # reflected: bit 31 is x^0
_ONE: Final = 1 << 31  # x^0
_ZERO_BYTE: Final = 1 << 23  # x^8
_COPIED_BYTES: Final = 1 << 14
"""Up to so many, a copy takes less time than an array over them."""


def crc32c(payload: bytes | bytearray | memoryview) -> int:
    """The checksum of the bytes, unsigned 32 bits."""
    return extend(EMPTY_CRC32C, payload)


def extend(crc: int, payload: bytes | bytearray | memoryview) -> int:
    """The checksum of what `crc` covers followed by `payload`."""
    if isinstance(payload, bytes) or len(payload) <= _COPIED_BYTES:
        return int(google_crc32c.extend(crc, bytes(payload)))
    import numpy as np  # slow to load, and no document is as long

    # The library refuses a memoryview, but accepts an array over the same bytes without a copy.
    return int(google_crc32c.extend(crc, np.frombuffer(payload, dtype=np.uint8)))


def combine(first_crc: int, second_crc: int, second_size: int) -> int:
    """The checksum of a concatenation, from those of its two parts and the second's size in bytes."""
    return _multiplied(first_crc, _zeros(second_size)) ^ second_crc


def of_second(first_crc: int, whole_crc: int, second_size: int) -> int:
    """The checksum of a concatenation's second part, from those of the first and of the whole."""
    # XOR is its own inverse: the first part's share is removed the way it is added.
    return combine(first_crc, whole_crc, second_size)


def combine_all(parts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """(checksum, size in bytes) of the concatenation of parts, each as (checksum, size in bytes)."""
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


def _multiplied(one: int, other: int) -> int:
    """The product of two registers modulo the polynomial."""
    product = 0
    while one:
        if one & _ONE:
            product ^= other
        one = one << 1 & 0xFFFFFFFF
        other = other >> 1 ^ _POLYNOMIAL if other & 1 else other >> 1
    return product


@functools.lru_cache(maxsize=4096)
def _zeros(count: int) -> int:
    """The factor by which `count` zero bytes multiply a register."""
    factor = _ONE
    for power in range(count.bit_length()):
        if count >> power & 1:
            factor = _multiplied(factor, _power_of_zeros(power))
    return factor


@functools.cache
def _power_of_zeros(power: int) -> int:
    """As `_zeros`, of 2^power zero bytes."""
    if power == 0:
        return _ZERO_BYTE
    half = _power_of_zeros(power - 1)
    return _multiplied(half, half)
