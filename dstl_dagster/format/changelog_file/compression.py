"""How the body of a changelog file is compressed, and how a footer stays invisible to decompressors. Pure.

Owns the three kinds and their framing. Does not own the codecs (cramjam, Arrow) nor the layout inside.

    none     the body as it is
    snappy   Snappy's framing format, one stream over the whole body; Flink reads and writes it
    zstd     Zstandard frames; ours alone. Flink reads such a file as a plain one, and fails

Each change set begins a new frame, so it can be read without what precedes it. It has a frame for each 64 KiB
or so, so part of it can be read too. Both formats have skippable frames, which every decoder ignores; the
footer is in those.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final

import cramjam
import google_crc32c
import pyarrow as pa

from dstl_dagster.errors import DstlError, FormatError, InternalError


class Compression(Enum):
    """The kind of a file's body. The value is the flag byte at the start of the file.

    Flink knows 0 and 1, and reads every other flag as 0.
    """

    NONE = 0
    SNAPPY = 1
    ZSTD = 2


_SNAPPY_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_BLOCK_BYTES: Final = 1 << 16
_SNAPPY_SKIPPABLE: Final = 0x80
_ZSTD_SKIPPABLE: Final = 0x184D2A50
_MAX_SKIPPABLE_BYTES: Final = {
    Compression.NONE: 2**63 - 1,
    Compression.SNAPPY: 2**24 - 1,
    Compression.ZSTD: 2**32 - 1,
}
_ZSTD_LEVEL: Final = 1

FRAME_BYTES: Final = 1 << 16
"""Of a change set, compressed by itself: the least that is decompressed to read some key groups of it. As a
Snappy block; one of a megabyte would be a few per cent smaller."""

_HONEST_RATIO: Final = 64


def stream_header(compression: Compression) -> bytes:
    """The bytes before the first compressed frame, once per file."""
    return _SNAPPY_IDENTIFIER if compression is Compression.SNAPPY else b""


def skippable_frame_header(compression: Compression, content_bytes: int) -> bytes | None:
    """The header that makes decoders skip the next `content_bytes`; None if one frame cannot hold them."""
    if content_bytes > _MAX_SKIPPABLE_BYTES[compression]:
        return None
    match compression:
        case Compression.NONE:
            return b""
        case Compression.SNAPPY:
            return bytes([_SNAPPY_SKIPPABLE]) + content_bytes.to_bytes(3, "little")
        case Compression.ZSTD:
            return struct.pack("<II", _ZSTD_SKIPPABLE, content_bytes)


def compressed(compression: Compression, chunk: pa.Buffer) -> memoryview:
    """One chunk of the body as one or more whole frames; for NONE, the chunk itself."""
    match compression:
        case Compression.NONE:
            return memoryview(chunk)
        case Compression.SNAPPY:
            # The identifier occurs once, at the start of the stream (`stream_header`).
            return memoryview(cramjam.snappy.compress(chunk))[len(_SNAPPY_IDENTIFIER) :]
        case Compression.ZSTD:
            # As bytes: a memoryview of the buffer that Arrow returns has its capacity, not its length.
            return memoryview(pa.Codec("zstd", compression_level=_ZSTD_LEVEL).compress(chunk, asbytes=True))


def decompressed(compression: Compression, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Pieces of the body from a source of frames, as they come. FormatError for anything but such frames.

    `read(n)` returns about n further bytes, fewer only at the end. The pieces are small (64 KiB and 1 MiB):
    memory follows what the frames actually hold, never what they claim.
    """
    match compression:
        case Compression.NONE:
            while piece := read(1 << 20):
                yield piece
        case Compression.SNAPPY:
            yield from _snappy_pieces(read)
        case Compression.ZSTD:
            yield from _zstd_pieces(read)


def _exactly(read: Callable[[int], bytes], byte_count: int) -> bytes:
    received = read(byte_count)
    while len(received) < byte_count:
        more = read(byte_count - len(received))
        if not more:
            raise FormatError(f"a snappy frame ends early: {byte_count - len(received)} bytes are missing")
        received += more
    return received


def decompressed_at_once(compression: Compression, stored: bytes | memoryview, size: int) -> pa.Buffer | None:
    """The `size` bytes in all frames of `stored`; `None` if they must be decompressed piece by piece.

    One call releases the GIL for all of it, and copies nothing. A claimed size that is implausible for so
    small an input is not believed, so memory follows the size of the input.

    Raises: FormatError if they hold a different number of bytes, or are damaged.
    """
    if compression is not Compression.ZSTD or size > len(stored) * _HONEST_RATIO:
        return None
    try:
        return pa.Codec("zstd").decompress(stored, size)
    except (OSError, pa.ArrowException) as error:
        raise FormatError(f"zstd frames do not hold the {size} bytes recorded for them: {error}") from error


def decompressed_whole(compression: Compression, stored: bytes | memoryview, size: int) -> pa.Buffer:
    """The `size` bytes in all frames of `stored`. Raises: FormatError if they hold a different number."""
    if compression is Compression.NONE:
        return pa.py_buffer(stored)
    whole = decompressed_at_once(compression, stored, size)
    if whole is not None:
        return whole
    pieces: list[bytes] = []
    missing = size
    for piece in decompressed(compression, in_steps(bytes(stored))):
        pieces.append(piece)
        missing -= len(piece)
        if missing < 0:
            break
    if missing != 0:
        raise FormatError(f"the frames of a change set do not hold the {size} bytes recorded for it")
    return pa.py_buffer(b"".join(pieces))


def in_steps(content: bytes) -> Callable[[int], bytes]:
    """A function that reads `content` forward, as `decompressed` takes it."""
    view = memoryview(content)
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        piece = bytes(view[at : at + size])
        at += len(piece)
        return piece

    return read


def _snappy_pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while first := read(1):
        kind = first[0]
        size = int.from_bytes(_exactly(read, 3), "little")
        if kind in (0x00, 0x01):
            if not 4 <= size <= _SNAPPY_BLOCK_BYTES + _SNAPPY_BLOCK_BYTES // 6 + 32 + 4:
                raise FormatError(f"a snappy frame claims {size} bytes")
            content = _exactly(read, size)
            yield _snappy_block(kind, content)
        elif kind == 0xFF:
            if size != 6 or _exactly(read, 6) != _SNAPPY_IDENTIFIER[4:]:
                raise FormatError("a snappy stream begins with a foreign identifier")
        elif kind >= 0x80:
            _exactly(read, size)
        else:
            raise FormatError(f"a snappy stream holds a frame of kind {kind}, which may not be skipped")


def _snappy_block(kind: int, content: bytes) -> bytes:
    checksum = int.from_bytes(content[:4], "little")
    payload = content[4:]
    if kind == 0x01:
        block = payload
    else:
        if _snappy_claim(payload) > _SNAPPY_BLOCK_BYTES:
            raise FormatError("a snappy block claims more than 64 KiB")
        try:
            block = bytes(memoryview(cramjam.snappy.decompress_raw(payload)))
        except (cramjam.DecompressionError, ValueError) as error:
            raise FormatError(f"a snappy block cannot be decompressed: {error}") from error
    if len(block) > _SNAPPY_BLOCK_BYTES:
        raise FormatError("a snappy block holds more than 64 KiB")
    crc = int(google_crc32c.value(block))
    if ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF) != checksum:
        raise FormatError("a snappy block does not match its checksum")
    return block


def _snappy_claim(payload: bytes) -> int:
    """The uncompressed length at the start of a raw block: a varint."""
    claim = 0
    for index, byte in enumerate(payload[:5]):
        claim |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return claim
    raise FormatError("a snappy block does not begin with a length")


class _ReadableSource:
    """A `read` function as the file object that Arrow needs."""

    closed = False

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            raise InternalError("a compressed stream is read in steps")
        return self._read(size)

    def close(self) -> None:
        self.closed = True


def _zstd_pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    source = pa.PythonFile(_ReadableSource(read), mode="r")
    stream = pa.CompressedInputStream(source, "zstd")
    try:
        while piece := stream.read(1 << 20):
            yield piece
    except DstlError:
        raise  # of the source
    except (OSError, pa.ArrowException) as error:
        raise FormatError(f"a zstd frame cannot be decompressed: {error}") from error
