"""From a URI to a store. Owns the schemes. Does not own what a store does, nor credentials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage.base import ObjectStore
from dstl_dagster.storage.rules import check_bucket_name, split_bucket_uri, split_object_uri


def require_store_uri(uri: str) -> None:
    """Check the argument of a later `open_store`, where nothing may be opened or requested yet.

    Raises: InvalidInputError (unknown scheme, not a URI of a bucket or folder, or an impossible bucket).
    """
    if _is_bucket(uri):
        check_bucket_name(split_bucket_uri(uri, "gs")[0])
    else:
        open_store(uri)  # which takes nothing, and asks for nothing


def require_within(store_uri: str, uri: str) -> None:
    """Check that the store at `store_uri` can have an object at `uri`: its `locate`, where nothing may be
    opened yet.

    Raises: InvalidInputError.
    """
    if _is_bucket(store_uri):
        require_store_uri(store_uri)
        check_bucket_name(split_object_uri(uri, "gs")[0])
    else:
        open_store(store_uri).locate(uri)


def open_store(uri: str, options: GSFileSystemOptions | None = None, *, client: Any = None) -> ObjectStore:
    """The store on the objects that `uri` names, the same in every process.

    Args:
        uri: `memory://bucket[/prefix]` (shared within this process only), `file:///absolute/folder`, or
            `gs://bucket[/prefix]` with credentials as Google's libraries find them.
        options: time-outs and retries of `gs://`; the other schemes ignore them.
        client: for `gs://`, as `GCSObjectStore` takes it; by default one that the process shares.

    Raises: InvalidInputError (unknown scheme, or not a URI of a bucket or folder).
    """
    scheme = uri.partition("://")[0] if isinstance(uri, str) and "://" in uri else ""
    match scheme:
        # Each kind is imported on first use: `gs` alone takes half a second.
        case "memory":
            from dstl_dagster.storage.memory import open_memory

            return open_memory(uri)
        case "file":
            from dstl_dagster.storage.local.store import open_local

            return open_local(uri)
        case "gs":
            try:
                from dstl_dagster.storage.gcs.store import open_gcs
            except ModuleNotFoundError as error:
                raise InvalidInputError(
                    f"{uri!r} needs {error.name}: install dstl-dagster[gcs]", ErrorKind.NOT_INSTALLED
                ) from error
            return open_gcs(uri, options or GSFileSystemOptions(), client)
        case _:
            raise InvalidInputError(f"{uri!r} names no store: {_advice(uri)}")


def _is_bucket(uri: str) -> bool:
    """A client of it looks for credentials once it is made."""
    return isinstance(uri, str) and uri.startswith("gs://")


def _advice(uri: object) -> str:
    """The URI to write instead."""
    if isinstance(uri, Path):
        return f"did you mean the folder {uri.resolve().as_uri()}?"
    if not isinstance(uri, str) or not uri.strip():
        return "use gs://bucket/prefix or file:///absolute/folder"
    scheme, _, rest = uri.partition(":")
    if scheme in ("gs", "file", "memory"):
        return f"did you mean {scheme}://{'/' * (scheme == 'file')}{rest.lstrip('/')}?"
    if "://" in uri:
        return f"there is no store for {scheme}://; use gs://bucket/prefix or file:///absolute/folder"
    return f"did you mean the folder {Path(uri).resolve().as_uri()}?"
