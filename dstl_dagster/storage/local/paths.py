"""From object names and URIs to paths under a root.

Owns which names a folder of files cannot take. Does not own records or locks.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path
from urllib.parse import quote, unquote

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.storage import rules
from dstl_dagster.storage.local.errors import status_of
from dstl_dagster.storage.local.files import HIDDEN_FOLDER

LOCAL_BUCKET = "local"
MAX_LEVEL_BYTES = 255


def object_path(root: Path, name: str) -> Path:
    """The file of an object. Raises: InvalidInputError for a name that cannot be a path under `root`."""
    # A name that is no text is refused before it is looked up: it may not be hashable.
    return _object_path(root, name if isinstance(name, str) else rules.check_name(name))


@functools.lru_cache(maxsize=4096)
def _object_path(root: Path, name: str) -> Path:
    # Cached: a write asks for it at each of its steps, and a listing before it looks at a file.
    levels = rules.check_name(name).split("/")
    if name.startswith("/"):
        raise InvalidInputError(
            f"{name!r} is an absolute path, and names are relative to their store: leave out the first /, or "
            f"give the whole URI, {root.as_uri()}/..."
        )
    for level in levels:
        if not level:
            raise InvalidInputError(
                f"{name!r} cannot be a path: it has // or ends with /; write one / between"
            )
        if level in (".", ".."):
            raise InvalidInputError(f"{name!r} cannot be a path: one of its levels is {level!r}")
        if len(level.encode()) > MAX_LEVEL_BYTES:
            raise InvalidInputError(
                f"{name!r} cannot be a path: {level[:40]!r}... is above {MAX_LEVEL_BYTES} bytes"
            )
    # Upper case too: some file systems ignore case.
    if levels[0].lower() == HIDDEN_FOLDER:
        raise InvalidInputError(f"{name!r} lies in the store's own folder {HIDDEN_FOLDER!r}")
    return root.joinpath(*levels)


def check_inside(root: Path, path: Path) -> None:
    """Raises: InvalidInputError if a symbolic link below the root leads to the file; OSError."""
    folder = os.path.dirname(path)  # noqa: PTH120 - a text: a Path takes longer than the look
    for above in _folders_between(os.fspath(root), folder):
        status = status_of(above)
        if status is not None and stat.S_ISLNK(status.st_mode):
            raise InvalidInputError(
                f"the symbolic link {above} leads {path} out of {root}; open a store on what it leads to"
            )


@functools.lru_cache(maxsize=256)
def _folders_between(root: str, folder: str) -> tuple[str, ...]:
    """`folder` and those above it, below the root."""
    # Cached, by texts, and for all files of a folder: every read asks for them.
    found = []
    while len(folder) > len(root):
        found.append(folder)
        folder = os.path.dirname(folder)  # noqa: PTH120
    return tuple(found)


def object_uri(root: Path, name: str) -> str:
    """The `file://` URI of an object. Raises: InvalidInputError, as `object_path`."""
    object_path(root, name)
    return f"{folder_uri(root)}/{quote(name)}"


def folder_uri(root: Path) -> str:
    """The `file://` URI of a root."""
    return "file://" + quote(str(root))


def path_of_uri(uri: str) -> Path:
    """The absolute path of `file:///path`, percent-encoded as usual. Raises: InvalidInputError."""
    if not isinstance(uri, str) or not uri.startswith("file://"):
        raise InvalidInputError(
            f"{uri!r} is no file:// URI, which is what a local store takes: write file:///folder/file"
        )
    try:
        path = unquote(uri[len("file://") :], errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{uri!r} is not percent-encoded in UTF-8: write a % that means itself as %25"
        ) from error
    if path.startswith("localhost/"):
        path = path[len("localhost") :]
    if not path.startswith("/") or "\0" in path:
        raise InvalidInputError(f"{uri!r} names no absolute path: write file:///folder")
    if ".." in path.split("/"):
        raise InvalidInputError(f"{uri!r} climbs out by '..'; write the folder itself")
    if not path.strip("/"):
        raise InvalidInputError(f"{uri!r} is the root of the file system: write file:///absolute/folder")
    return Path(path)


def located(root: Path, uri: str) -> str:
    """The name, under a root, of the object that a URI names. Raises: InvalidInputError; none outside."""
    path = path_of_uri(uri)
    try:
        name = path.relative_to(root).as_posix()
    except ValueError:
        raise InvalidInputError(f"{uri!r} lies outside of {folder_uri(root)!r}") from None
    if name == "." or uri.endswith("/"):
        raise InvalidInputError(f"{uri!r} names no object: write {folder_uri(root)}/object")
    object_path(root, name)
    return name
