"""CRC-32C: of bytes, of a concatenation, and as the text that Google Cloud Storage uses.

Owns the arithmetic. Does not own when a checksum is compared, nor what a difference means.

Source: the Castagnoli polynomial as in RFC 3720. A checksum of a concatenation follows from those of its
parts, because appending n zero bits multiplies the register by x^n modulo the polynomial.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

import google_crc32c
import numpy as np

from dstl_dagster.errors import FormatError
from dstl_dagster.storage.base import Buffer

__all__ = ["EMPTY_CRC32C", "combine", "combine_all", "crc32c", "extend", "from_base64", "to_base64"]

EMPTY_CRC32C = 0
"""The checksum of no bytes."""

_POLYNOMIAL = 0x82F63B78  # reflected: bit 31 is x^0
_ONE = 1 << 31


def crc32c(payload: Buffer) -> int:
    """The checksum of the bytes, unsigned 32 bits."""
    return extend(EMPTY_CRC32C, payload)


def extend(crc: int, payload: Buffer) -> int:
    """The checksum of what `crc` covers followed by `payload`."""
    if isinstance(payload, bytes):
        return int(google_crc32c.extend(crc, payload))
    # The library refuses a memoryview, and takes an array over the same bytes without a copy.
    return int(google_crc32c.extend(crc, np.frombuffer(payload, dtype=np.uint8)))


def combine(first_crc: int, second_crc: int, second_size: int) -> int:
    """The checksum of a concatenation, from those of its two parts and the second's size in bytes."""
    return _multiply(first_crc, _x_to_the_bytes(second_size)) ^ second_crc


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
    """The checksum that `to_base64` wrote. Raises: FormatError."""
    try:
        octets = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise FormatError(f"{text!r} is no base64 of a CRC-32C") from error
    if len(octets) != 4:
        raise FormatError(f"{text!r} holds {len(octets)} bytes; a CRC-32C has 4")
    return int.from_bytes(octets, "big")


def _multiply(left: int, right: int) -> int:
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = (left << 1) & 0xFFFFFFFF
        right = (right >> 1) ^ _POLYNOMIAL if right & 1 else right >> 1
    return product


def _power_table() -> tuple[int, ...]:
    # Entry k is x^(8 * 2^k): the operator that appends 2^k zero bytes.
    power = _ONE >> 1
    for _ in range(3):
        power = _multiply(power, power)
    table = [power]
    while len(table) < 63:
        table.append(_multiply(table[-1], table[-1]))
    return tuple(table)


_X_TO_THE_BYTES = _power_table()


def _x_to_the_bytes(count: int) -> int:
    operator = _ONE
    position = 0
    while count:
        if count & 1:
            operator = _multiply(operator, _X_TO_THE_BYTES[position])
        count >>= 1
        position += 1
    return operator
