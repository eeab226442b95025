"""Where the objects of a checkpoint are shown: links to the console of a bucket, paths of a folder. Pure."""

from __future__ import annotations

from urllib.parse import quote, unquote

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, FileReport
from dstl_dagster.format import readable_bytes
from dstl_dagster.timeline import BlockedFile

__all__ = [
    "blocked_list",
    "bucket_of",
    "file_links",
    "file_table",
    "folder_of",
    "published",
    "store_location",
]

_CONSOLE = "https://console.cloud.google.com/storage/browser"
_TABLE_ROWS = 50


def store_location(store_uri: str, name: str) -> dg.MetadataValue:
    """A path for a local store, the console's page for a bucket, the URI for anything else."""
    place = f"{store_uri.rstrip('/')}/{name}"
    if place.startswith("file://"):
        return dg.MetadataValue.path(f"{unquote(store_uri.rstrip('/').removeprefix('file://'))}/{name}")
    if place.startswith("gs://"):
        # The console shows a folder and an object on different pages.
        page = _CONSOLE if not name or name.endswith("/") else f"{_CONSOLE}/_details"
        return dg.MetadataValue.url(f"{page}/{quote(place[5:])}")
    return dg.MetadataValue.text(place)


def bucket_of(store_uri: str, file: FileReport) -> str:
    """The URI that the name of a file is relative to: its bucket, which a job need not have for itself."""
    scheme = store_uri.partition("://")[0]
    return (
        store_uri if scheme == "file" else f"{scheme}://{file.recoverable.final_blob_identifier.bucket_name}"
    )


def folder_of(files: tuple[FileReport, ...]) -> str:
    """The deepest folder that holds all files, with a trailing slash; empty for the store itself."""
    folders = [file.object_name.split("/")[:-1] for file in files]
    shared = []
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "".join(f"{part}/" for part in shared)


def file_links(checkpoint: Checkpoint, store_uri: str) -> dg.MetadataValue:
    """Each file with its size, linked where its place has a page of its own."""
    lines = []
    for file in checkpoint.manifest.files[:_TABLE_ROWS]:
        place = store_location(bucket_of(store_uri, file), file.object_name)
        linked = isinstance(place, dg.UrlMetadataValue)
        name = f"[{file.object_name}]({place.value})" if linked else f"`{file.object_name}`"
        lines.append(f"* {name}, {readable_bytes(file.size)}")
    more = len(checkpoint.manifest.files) - _TABLE_ROWS
    return dg.MetadataValue.md("\n".join([*lines, *([f"* and {more} more"] if more > 0 else [])]))


def file_table(files: tuple[FileReport, ...], blocked: set[str]) -> dg.MetadataValue:
    """The first files of a checkpoint, and whether each has its final name."""
    shown = [
        dg.TableRecord(
            {
                "file": file.object_name,
                "rows": "" if file.rows is None else str(file.rows),
                "size": readable_bytes(file.size),
                "components": len(file.components),
                "state": "blocked" if file.object_name in blocked else "published",
            }
        )
        for file in files[:_TABLE_ROWS]
    ]
    return dg.MetadataValue.table(shown or [dg.TableRecord({"file": "none"})])


def published(checkpoint: Checkpoint) -> dict[str, dg.MetadataValue]:
    """How many files of a checkpoint have their final names, and which are blocked; nothing before step 6."""
    files, blocked = checkpoint.manifest.files, checkpoint.blocked
    if not files or not checkpoint.committed:
        return {}
    said = f"{len(files) - len(blocked)} of {len(files)} files are published"
    shown: dict[str, dg.MetadataValue] = {"published": dg.MetadataValue.text(said)}
    return {**shown, "blocked": blocked_list(blocked)} if blocked else shown


def blocked_list(blocked: tuple[BlockedFile, ...]) -> dg.MetadataValue:
    """Each blocked file, and why it is."""
    lines = [f"* `{file.name}`: {file.reason}" for file in blocked[:_TABLE_ROWS]]
    more = [f"* and {len(blocked) - _TABLE_ROWS} more"] if len(blocked) > _TABLE_ROWS else []
    return dg.MetadataValue.md("\n".join([*lines, *more]))
