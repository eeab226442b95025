"""The bytes of the recoverables, version 0: bit for bit upstream's.

Owns the byte format. Does not own where the bytes are stored.

Source: Flink's `GSCommitRecoverableSerializer` and `GSResumeRecoverableSerializer`, which write with
Java's `DataOutputStream`: big-endian numbers, and strings as a 16-bit byte length and modified UTF-8.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import ClassVar

from dstl_dagster.errors import ErrorKind, FormatError, InvalidInputError
from dstl_dagster.recoverable.blob_names import GSBlobIdentifier
from dstl_dagster.recoverable.recoverables import GSCommitRecoverable, GSResumeRecoverable

_VERSION = 0
_MAX_TEXT_BYTES = 0xFFFF


class GSCommitRecoverableSerializer:
    """Reads and writes `GSCommitRecoverable`. Stateless: use `INSTANCE`, from any thread."""

    INSTANCE: ClassVar[GSCommitRecoverableSerializer]

    @property
    def version(self) -> int:
        """The version that `serialize` writes."""
        return _VERSION

    def serialize(self, recoverable: GSCommitRecoverable) -> bytes:
        """The bytes. Raises: InvalidInputError (another type, or a name above 65,535 bytes)."""
        if not isinstance(recoverable, GSCommitRecoverable):
            raise InvalidInputError(f"{recoverable!r} is not a GSCommitRecoverable")
        return _commit_bytes(recoverable)

    def deserialize(self, version: int, data: bytes) -> GSCommitRecoverable:
        """The value; trailing bytes are ignored, as upstream does.

        Raises: FormatError (a newer version, truncated or damaged bytes), InvalidInputError (not a version).
        """
        return _read_commit(_open(version, data))


class GSResumeRecoverableSerializer:
    """Reads and writes `GSResumeRecoverable`. Stateless: use `INSTANCE`, from any thread."""

    INSTANCE: ClassVar[GSResumeRecoverableSerializer]

    @property
    def version(self) -> int:
        """The version that `serialize` writes."""
        return _VERSION

    def serialize(self, recoverable: GSResumeRecoverable) -> bytes:
        """The bytes. Raises: InvalidInputError (another type, or a name above 65,535 bytes)."""
        if not isinstance(recoverable, GSResumeRecoverable):
            raise InvalidInputError(f"{recoverable!r} is not a GSResumeRecoverable")
        return _commit_bytes(recoverable) + struct.pack(">q?", recoverable.position, recoverable.closed)

    def deserialize(self, version: int, data: bytes) -> GSResumeRecoverable:
        """The value; trailing bytes are ignored, as upstream does.

        Raises: FormatError (a newer version, truncated or damaged bytes), InvalidInputError (not a version).
        """
        source = _open(version, data)
        commit = _read_commit(source)
        (position,) = struct.unpack(">q", source.take(8))
        closed = source.take(1) != b"\0"
        if position < 0:
            raise FormatError(f"a resume recoverable cannot have the position {position}")
        return GSResumeRecoverable(
            commit.final_blob_identifier, commit.component_object_ids, position, closed
        )


GSCommitRecoverableSerializer.INSTANCE = GSCommitRecoverableSerializer()
GSResumeRecoverableSerializer.INSTANCE = GSResumeRecoverableSerializer()


@dataclass
class _Source:
    octets: bytes
    position: int = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.octets):
            raise FormatError(
                f"a recoverable ends after {len(self.octets)} bytes, {end} are needed: it was truncated"
            )
        taken = self.octets[self.position : end]
        self.position = end
        return taken


def _open(version: int, data: bytes) -> _Source:
    if not isinstance(version, int) or version < 0:
        raise InvalidInputError(f"{version!r} is not a version of a serialized recoverable")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidInputError(f"a serialized recoverable must be bytes, not {type(data).__name__}")
    if version > _VERSION:
        raise FormatError(
            f"Serialized data with version {version} cannot be read by serializer with version {_VERSION}",
            ErrorKind.NEWER_VERSION,
        )
    return _Source(bytes(data))


def _commit_bytes(recoverable: GSCommitRecoverable) -> bytes:
    final = recoverable.final_blob_identifier
    parts = [_text_bytes(final.bucket_name), _text_bytes(final.object_name)]
    parts.append(struct.pack(">i", len(recoverable.component_object_ids)))
    parts.extend(object_id.bytes for object_id in recoverable.component_object_ids)
    return b"".join(parts)


def _read_commit(source: _Source) -> GSCommitRecoverable:
    bucket_name = _read_text(source)
    object_name = _read_text(source)
    (count,) = struct.unpack(">i", source.take(4))
    # `take` checks the length before anything is allocated: a hostile count costs no memory.
    octets = source.take(16 * max(0, count))
    object_ids = [uuid.UUID(bytes=octets[start : start + 16]) for start in range(0, len(octets), 16)]
    return GSCommitRecoverable(GSBlobIdentifier(bucket_name, object_name), tuple(object_ids))


def _text_bytes(text: str) -> bytes:
    octets = bytearray()
    for unit in struct.unpack(
        f">{len(text.encode('utf-16-be', 'surrogatepass')) // 2}H", text.encode("utf-16-be", "surrogatepass")
    ):
        if 0x0001 <= unit <= 0x007F:
            octets.append(unit)
        elif unit <= 0x07FF:
            octets += bytes((0xC0 | unit >> 6, 0x80 | unit & 0x3F))
        else:
            octets += bytes((0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F))
    if len(octets) > _MAX_TEXT_BYTES:
        raise InvalidInputError(
            f"{text[:40]!r}... has {len(octets)} bytes; the format of recoverables allows {_MAX_TEXT_BYTES}"
        )
    return struct.pack(">H", len(octets)) + bytes(octets)


def _read_text(source: _Source) -> str:
    (size,) = struct.unpack(">H", source.take(2))
    octets = source.take(size)
    units: list[int] = []
    position = 0
    while position < size:
        first = octets[position]
        if first < 0x80:
            length, unit = 1, first
        elif first & 0xE0 == 0xC0:
            length, unit = 2, first & 0x1F
        elif first & 0xF0 == 0xE0:
            length, unit = 3, first & 0x0F
        else:
            raise FormatError(f"a string in a recoverable has {first:#04x} where a character must begin")
        rest = octets[position + 1 : position + length]
        if len(rest) != length - 1 or any(octet & 0xC0 != 0x80 for octet in rest):
            raise FormatError("a string in a recoverable breaks off inside a character")
        for octet in rest:
            unit = unit << 6 | octet & 0x3F
        units.append(unit)
        position += length
    return struct.pack(f">{len(units)}H", *units).decode("utf-16-be", "surrogatepass")
