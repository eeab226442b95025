"""The bytes of the recoverables, version 0: bit for bit upstream's.

Owns the byte format. Does not own where the bytes are stored.

Source: Flink's `GSCommitRecoverableSerializer` and `GSResumeRecoverableSerializer`, which write with
Java's `DataOutputStream`: big-endian numbers, and strings as a 16-bit byte length and modified UTF-8.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, TypeVar

from dstl_dagster.errors import ErrorKind, FormatError, InvalidInputError
from dstl_dagster.recoverable.recoverables import GSBlobIdentifier, GSCommitRecoverable, GSResumeRecoverable

_VERSION: Final = 0
_MAX_TEXT_BYTES: Final = 0xFFFF
_R = TypeVar("_R", bound=GSCommitRecoverable)


class _Serializer(Generic[_R]):
    _kind: type[_R]

    @property
    def version(self) -> int:
        return _VERSION

    def serialize(self, recoverable: _R) -> bytes:
        """The bytes. Raises: InvalidInputError (another type, or a name above 65,535 bytes)."""
        if not isinstance(recoverable, self._kind):
            raise InvalidInputError(f"{recoverable!r} is not a {self._kind.__name__}")
        final = recoverable.final_blob_identifier
        parts = [_text_bytes(final.bucket_name), _text_bytes(final.object_name)]
        parts.append(struct.pack(">i", len(recoverable.component_object_ids)))
        parts.extend(object_id.bytes for object_id in recoverable.component_object_ids)
        return b"".join([*parts, self._rest_bytes(recoverable)])

    def deserialize(self, version: int, data: bytes) -> _R:
        """The value; trailing bytes are ignored, as upstream does.

        Raises: FormatError (a newer version, truncated or damaged bytes), InvalidInputError (not a version).
        """
        if not isinstance(version, int) or version < 0:
            raise InvalidInputError(f"{version!r} is not a version of a serialized recoverable")
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidInputError(f"a serialized recoverable must be bytes, not {type(data).__name__}")
        if version > _VERSION:
            raise FormatError(
                f"Serialized data with version {version} cannot be read "
                f"by serializer with version {_VERSION}",
                ErrorKind.NEWER_VERSION,
            )
        source = _Source(bytes(data))
        final = GSBlobIdentifier(_read_text(source), _read_text(source))
        (count,) = struct.unpack(">i", source.take(4))
        # `take` checks the length before anything is allocated: a hostile count costs no memory.
        octets = source.take(16 * max(0, count))
        object_ids = [uuid.UUID(bytes=octets[start : start + 16]) for start in range(0, len(octets), 16)]
        return self._kind(final, object_ids, *self._read_rest(source))

    def _rest_bytes(self, recoverable: _R) -> bytes:
        del recoverable
        return b""

    def _read_rest(self, source: _Source) -> tuple[object, ...]:
        """The arguments of the value beyond those of a commit."""
        del source
        return ()


class GSCommitRecoverableSerializer(_Serializer[GSCommitRecoverable]):
    """Reads and writes `GSCommitRecoverable`. Stateless: use `INSTANCE`, from any thread."""

    INSTANCE: ClassVar[GSCommitRecoverableSerializer]
    _kind = GSCommitRecoverable


class GSResumeRecoverableSerializer(_Serializer[GSResumeRecoverable]):
    """Reads and writes `GSResumeRecoverable`. Stateless: use `INSTANCE`, from any thread."""

    INSTANCE: ClassVar[GSResumeRecoverableSerializer]
    _kind = GSResumeRecoverable

    def _rest_bytes(self, recoverable: GSResumeRecoverable) -> bytes:
        return struct.pack(">q?", recoverable.position, recoverable.closed)

    def _read_rest(self, source: _Source) -> tuple[object, ...]:
        (position,) = struct.unpack(">q", source.take(8))
        if position < 0:
            raise FormatError(f"a resume recoverable cannot have the position {position}")
        return position, source.take(1) != b"\0"


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


def _text_bytes(text: str) -> bytes:
    # Modified UTF-8 is UTF-8 of each UTF-16 unit by itself, surrogates included, with NUL as two bytes.
    units = text.encode("utf-16-be", "surrogatepass")
    characters = "".join(map(chr, struct.unpack(f">{len(units) // 2}H", units)))
    octets = characters.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    if len(octets) > _MAX_TEXT_BYTES:
        raise InvalidInputError(
            f"{text[:40]!r}... has {len(octets)} bytes; the format of recoverables allows {_MAX_TEXT_BYTES}"
        )
    return struct.pack(">H", len(octets)) + octets


def _read_text(source: _Source) -> str:
    (size,) = struct.unpack(">H", source.take(2))
    octets = source.take(size).replace(b"\xc0\x80", b"\0")
    try:
        characters = octets.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise FormatError(f"a string in a recoverable is no modified UTF-8: {error}") from error
    if max(characters, default="") > "\uffff":
        raise FormatError("a string in a recoverable is no modified UTF-8: it has a character of four bytes")
    # Two surrogates are one character.
    return characters.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
