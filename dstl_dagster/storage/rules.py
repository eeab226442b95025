"""Which requests are valid for every store, and the errors of those that are not.

Owns the rules all stores share, pure: names, metadata, URIs, preconditions, checksums. Does not own what one
kind of store refuses beyond them, nor the names that our layers choose (`format.names`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from urllib.parse import urlsplit

from dstl_dagster.errors import (
    ClosedError,
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
)
from dstl_dagster.settings.gs import CHUNK_SIZE_UNIT_BYTES
from dstl_dagster.storage.base import (
    MAX_BATCH_DELETES,
    MAX_COMPOSE_SOURCES,
    Absent,
    Generation,
    Precondition,
    Source,
)

MAX_NAME_BYTES = 1024
MAX_METADATA_BYTES = 8 * 1024


def check_name(name: str) -> str:
    """The name itself, if it is valid in every store. Raises: InvalidInputError."""
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"{name!r} is no object name: it must be a non-empty string")
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{name!r} is no object name: it cannot be encoded in UTF-8") from error
    if size > MAX_NAME_BYTES:
        raise InvalidInputError(
            f"an object name has at most {MAX_NAME_BYTES} bytes of UTF-8; {name[:60]!r}... has {size}"
        )
    for forbidden in ("\0", "\r", "\n"):
        if forbidden in name:
            raise InvalidInputError(f"{name!r} is no object name: it holds {forbidden!r}")
    if name in (".", "..") or name.startswith(".well-known/acme-challenge/"):
        raise InvalidInputError(f"{name!r} is no object name: the storage service reserves it")
    return name


def check_prefix(prefix: str) -> str:
    """A store's prefix: empty, or a name ending in one `/`. Raises: InvalidInputError."""
    if prefix == "":
        return prefix
    check_name(prefix)
    if not prefix.endswith("/") or prefix.startswith("/") or "//" in prefix:
        raise InvalidInputError(f"{prefix!r} is no prefix: levels have names, and it ends in one '/'")
    return prefix


def check_bucket_name(bucket_name: str) -> str:
    """Text without `/`, blanks or control characters. Raises: InvalidInputError."""
    if not isinstance(bucket_name, str) or not bucket_name or len(bucket_name) > 222:
        raise InvalidInputError(f"{bucket_name!r} is no bucket name")
    if any(char in "/@?#\\" or char.isspace() or not char.isprintable() for char in bucket_name):
        raise InvalidInputError(f"{bucket_name!r} is no bucket name: it holds a character no bucket has")
    return bucket_name


def check_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    """A read-only copy of the pairs. Raises: InvalidInputError (no strings, too large, an unusual key)."""
    pairs = dict(metadata or {})
    size = 0
    for key, value in pairs.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInputError(f"metadata values must be strings; {key!r} has {type(value).__name__}")
        # Services carry metadata in HTTP headers, where other keys would not come back unchanged.
        if not key or not key.isascii() or not all(char.isalnum() or char in "-_." for char in key):
            raise InvalidInputError(f"{key!r} is no metadata key: use ASCII letters, digits, '-', '_', '.'")
        size += len(key) + len(value.encode("utf-8", "surrogatepass"))
    if size > MAX_METADATA_BYTES:
        raise InvalidInputError(f"metadata has at most {MAX_METADATA_BYTES} bytes in all; this has {size}")
    return MappingProxyType(pairs)


def check_chunk_size(chunk_size: int | None) -> int | None:
    """None, or a positive multiple of 256 KiB in bytes. Raises: InvalidInputError."""
    if chunk_size is not None and (chunk_size <= 0 or chunk_size % CHUNK_SIZE_UNIT_BYTES != 0):
        raise InvalidInputError(
            f"a chunk of {chunk_size} bytes cannot be sent: it must be a positive multiple of 256 KiB"
        )
    return chunk_size


def check_compose(sources: Sequence[Source], target: str) -> None:
    """Between 1 and 32 named sources. Raises: InvalidInputError."""
    check_name(target)
    if not 1 <= len(sources) <= MAX_COMPOSE_SOURCES:
        raise InvalidInputError(
            f"one compose takes 1 to {MAX_COMPOSE_SOURCES} sources, not the {len(sources)} of {target!r}"
        )
    for source in sources:
        check_name(source.name)


def check_delete(name: str, precondition: Precondition) -> None:
    """A valid name, and not the precondition `Absent`. Raises: InvalidInputError."""
    check_name(name)
    if isinstance(precondition, Absent):
        raise InvalidInputError(f"cannot delete {name!r} on the condition that it is absent")


def check_delete_all(objects: Sequence[tuple[str, Precondition]]) -> None:
    """At most 100 objects, each as `check_delete` has it. Raises: InvalidInputError."""
    if len(objects) > MAX_BATCH_DELETES:
        raise InvalidInputError(
            f"one batch deletes at most {MAX_BATCH_DELETES} objects, not {len(objects)}: use more batches"
        )
    for name, precondition in objects:
        check_delete(name, precondition)


def check_range(name: str, start: int, length: int = 0) -> None:
    """Positions and lengths are 0 or more. Raises: InvalidInputError."""
    if start < 0 or length < 0:
        raise InvalidInputError(f"cannot read {name!r} from {start} for {length} bytes: both are 0 or more")


def check_precondition(uri: str, live_generation: int | None, precondition: Precondition) -> None:
    """Compare with the live generation, `None` where nothing is live. Raises: ConflictError."""
    match precondition:
        case Absent():
            if live_generation is not None:
                raise ConflictError(
                    f"{uri!r} exists already (generation {live_generation}); read it, then decide"
                )
        case Generation(wanted):
            if live_generation != wanted:
                there = "nothing is there" if live_generation is None else f"generation {live_generation} is"
                raise ConflictError(
                    f"{uri!r} is not of generation {wanted}: {there}; read it again, then decide"
                )


def check_crc32c(uri: str, actual: int, wanted: int | None) -> None:
    """Compare a checksum with the expected one, if any. Raises: FormatError."""
    if wanted is not None and actual != wanted:
        raise FormatError(
            f"{uri!r} has the CRC-32C {actual:#010x} where {wanted:#010x} was expected; "
            "do not trust its bytes, and keep its sources"
        )


def missing(uri: str, generation: int | None = None) -> NotFoundError:
    """The error for an object, or a generation of it, that is not there."""
    wanted = "" if generation is None else f" of generation {generation}"
    return NotFoundError(f"there is no object {uri!r}{wanted}; it was never created, or it was deleted")


def closed_writer(uri: str) -> ClosedError:
    """The error for the use of a finished or aborted upload."""
    return ClosedError(f"the upload of {uri!r} was finished or aborted; open a new one")


def lost_upload(uri: str) -> NotFoundError:
    """The error for an upload whose bytes were lost before they became an object."""
    return NotFoundError(
        f"the upload of {uri!r} is gone and created no object; write the object again", ErrorKind.UPLOAD_LOST
    )


def damaged_upload(uri: str) -> FormatError:
    """The error for an upload whose bytes were damaged in transit."""
    return FormatError(
        f"the service received bytes of {uri!r} other than those sent, and created no object; "
        "write the object again",
        ErrorKind.UPLOAD_LOST,
    )


def split_bucket_uri(uri: str, scheme: str) -> tuple[str, str]:
    """(authority, prefix) of `scheme://authority/prefix`; the prefix is empty or ends in `/`.

    Raises: InvalidInputError.
    """
    authority, path = _split(uri, scheme)
    prefix = path.strip("/")
    return authority, check_prefix(f"{prefix}/" if prefix else "")


def split_object_uri(uri: str, scheme: str) -> tuple[str, str]:
    """(authority, object name) of `scheme://authority/name`. Raises: InvalidInputError."""
    authority, path = _split(uri, scheme)
    name = path[1:]
    if not name.strip():
        raise InvalidInputError(f"{uri!r} names no object: write {scheme}://bucket/object")
    return authority, check_name(name)


def _split(uri: str, scheme: str) -> tuple[str, str]:
    if not isinstance(uri, str) or not uri.startswith(f"{scheme}://"):
        raise InvalidInputError(f"{uri!r} is no {scheme}:// URI")
    # Only the authority is split by the URI's grammar: `?`, `#` and `%` are ordinary in object names.
    rest = uri[len(scheme) + 3 :]
    authority, slash, path = rest.partition("/")
    if not authority.strip() or urlsplit(f"//{authority}").query:
        raise InvalidInputError(f"{uri!r} names no bucket: write {scheme}://bucket/object")
    return authority, slash + path
