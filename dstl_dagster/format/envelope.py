"""The envelope of every small durable document (timeline records, manifests, reports): one line, then JSON.

Owns the bytes around the JSON: type, version, length and checksum. Does not own what the JSON means.

    dstl/<type> <version> <length> <crc32c>\\n
    <length bytes of UTF-8 JSON>

`version` and `length` are decimal; `crc32c` is that of the JSON bytes, as eight lower-case hex digits. The
line is text on purpose: a job's history can be read with nothing but a browser on the bucket.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import google_crc32c

from dstl_dagster.errors import ErrorKind, FormatError, InvalidInputError

MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""More than any real document; a header that claims more is refused before anything is read for it."""

_MAX_HEADER_BYTES = 128


def encode_document(kind: str, version: int, fields: Mapping[str, Any]) -> bytes:
    """The bytes of one document. Canonical: keys are sorted, no white space.

    Raises: InvalidInputError if a value is not plain JSON (NaN and infinity are not).
    """
    try:
        body = json.dumps(
            fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode("utf-8")
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"a {kind} can hold only plain JSON values (text, numbers, lists, objects): {error}"
        ) from error
    header = f"dstl/{kind} {version} {len(body)} {google_crc32c.value(body):08x}\n"
    return header.encode("ascii") + body


def decode_document(kind: str, newest_version: int, payload: bytes, where: str) -> tuple[int, dict[str, Any]]:
    """The (version, fields) of a document that `encode_document` wrote.

    `where` names the object in error messages. Raises: FormatError (kind `newer_version` if a later release
    wrote it, otherwise `format`): truncated, longer than its header says, corrupt, or of another type.
    """
    head, newline, body = payload.partition(b"\n")
    words = head.split(b" ") if newline and len(head) <= _MAX_HEADER_BYTES else []
    if len(words) != 4 or words[0] != b"dstl/" + kind.encode("ascii"):
        raise FormatError(f"{where} is not a dstl {kind}: it begins with {payload[:40]!r}")
    version, length, checksum = _header_numbers(words, kind, where)
    if version > newest_version:
        raise FormatError(
            f"{where} is a {kind} of version {version}; this release reads up to {newest_version}. "
            "Upgrade dstl-dagster here.",
            kind=ErrorKind.NEWER_VERSION,
        )
    if len(body) != length:
        raise FormatError(f"{where} is truncated or has grown: it has {len(body)} bytes, not {length}")
    if google_crc32c.value(body) != checksum:
        raise FormatError(f"{where} is corrupt: its bytes do not match the checksum in its first line")
    try:
        fields = _JSON.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} has a valid checksum but is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise FormatError(f"{where} holds JSON, but not an object")
    return version, fields


@contextmanager
def reading(otherwise: str) -> Iterator[None]:
    """A block that decodes a stored document: all errors that the document causes become FormatErrors.

    A valid checksum proves that the bytes are those that were written, not that they mean anything. So an
    exception for a value of the wrong type or size is the document's fault. `otherwise`: the error's message.
    A FormatError passes unchanged, with its message and kind.
    """
    try:
        yield
    except FormatError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise FormatError(f"{otherwise}: {error!r}") from error


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is out of range for a number")
    return number


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)
"""Accepts what `encode_document` can write; refuses infinity and NaN."""


def _header_numbers(words: list[bytes], kind: str, where: str) -> tuple[int, int, int]:
    version_text, length_text, checksum_text = words[1:]
    plain = version_text.isdigit() and length_text.isdigit() and len(checksum_text) == 8
    try:
        version, length, checksum = int(version_text), int(length_text), int(checksum_text, 16)
    except ValueError:
        plain = False
    if not plain or version < 1 or length > MAX_DOCUMENT_BYTES:
        raise FormatError(f"{where} has a broken first line for a {kind}: {b' '.join(words)!r}")
    return version, length, checksum
