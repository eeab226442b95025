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
_COPIED_BYTES: Final = 1 << 14
"""Up to so many, a copy takes less time than an array over them."""

_PRODUCT_BITS: Final = 63
_LOWEST_BITS: Final = int.from_bytes(b"\1" * _PRODUCT_BITS, "big")
_ZERO_DIGITS: Final = int.from_bytes(b"0" * _PRODUCT_BITS, "big")
_LOW_COUNTS: Final = 1024
"""Factors are cached for the counts below and for their multiples: any count takes one of each."""


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
    return _after_zeros(first_crc, second_size) ^ second_crc


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


def _after_zeros(crc: int, count: int) -> int:
    """The register after `count` more zero bytes."""
    low = count % _LOW_COUNTS
    for part in (low, count - low):
        if part:
            crc = _multiplied(crc, _zeros_factor(part))
    return crc


def _multiplied(crc: int, factor: int) -> int:
    """The product of two registers modulo the polynomial; the factor is spread."""
    # Spread to one bit a byte, no sum of the product's digits carries: a digit's lowest bit is its XOR.
    product = _gathered(_spread(crc) * factor & _LOWEST_BITS)
    # Bit 62 is x^0, so the lower half is what exceeds a register: by 32 bits, as four zero bytes shift it.
    excess = product << 1 & 0xFFFFFFFF
    lowest, second, third, highest = _REDUCTION
    return (
        product >> 31
        ^ lowest[excess & 255]
        ^ second[excess >> 8 & 255]
        ^ third[excess >> 16 & 255]
        ^ highest[excess >> 24]
    )


def _spread(register: int) -> int:
    """The same bits, one to a byte."""
    return int.from_bytes(f"{register:032b}".encode(), "big") & _LOWEST_BITS


def _gathered(spread: int) -> int:
    return int((spread | _ZERO_DIGITS).to_bytes(_PRODUCT_BITS, "big"), 2)


@functools.lru_cache(maxsize=4 * _LOW_COUNTS)
def _zeros_factor(count: int) -> int:
    """The factor by which `count` zero bytes multiply a register, spread."""
    factor = _ONE
    for power in range(count.bit_length()):
        if count >> power & 1:
            factor = _multiplied(factor, _power_factor(power))
    return _spread(factor)


@functools.cache
def _power_factor(power: int) -> int:
    """As `_zeros_factor`, of 2^power zero bytes."""
    if power == 0:
        return _spread(_after_zero_byte(_ONE))
    half = _power_factor(power - 1)
    return _spread(_multiplied(_gathered(half), half))


def _after_zero_byte(crc: int) -> int:
    for _ in range(8):
        crc = (crc >> 1) ^ _POLYNOMIAL if crc & 1 else crc >> 1
    return crc


def _reduction_tables() -> tuple[list[int], ...]:
    """The image of each value of each register byte under four zero bytes; lowest byte first."""
    table = [_after_zero_byte(value) for value in range(256)]
    tables = [table]
    for _ in range(3):
        table = [value >> 8 ^ tables[-1][value & 255] for value in table]
        tables.insert(0, table)
    return tuple(tables)


_REDUCTION: Final = _reduction_tables()
