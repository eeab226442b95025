"""`dstl changelog`: inspect changelog files, ours or Flink's. Writes nothing.

Owns the command and its output. Does not own how files are read (`format.changelog_file`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from dstl_dagster.cli.options import with_job_options
from dstl_dagster.cli.output import say
from dstl_dagster.errors import ErrorKind, FormatError, InvalidInputError, NotFoundError
from dstl_dagster.settings import JobOptions

_SHOWN_BYTES: Final = 16


@click.group(name="changelog")
def changelog_group() -> None:
    """Inspect changelog files."""


@changelog_group.command(name="show")
@click.argument("file")
@click.option("--changes", is_flag=True, help="Also list each change, with its first bytes.")
@with_job_options
def show(file: str, changes: bool, job_options: JobOptions, as_json: bool) -> None:
    """Show the contents of a changelog FILE: a path, or the URI of an object (file:///..., gs://bucket/...).

    Reads files of this package and of Flink. Every change set is verified; a corrupt one ends the command
    with an error.
    """
    for document in _documents(file, job_options, with_changes=changes):
        if as_json:
            click.echo(json.dumps(document))
        else:
            say(_line(document))


def _documents(file: str, options: JobOptions, *, with_changes: bool) -> Iterator[dict[str, Any]]:
    # Imported when the command runs: Arrow alone takes longer than `dstl --help` may.
    from dstl_dagster.changelog import StoredFile, begin_remote
    from dstl_dagster.format import ChangelogFileReader

    source = _open(file, options)
    try:
        reader = ChangelogFileReader(source)
        if isinstance(source, StoredFile):
            begin_remote(source, reader)
        index = reader.index()
        yield {
            "file": source.place,
            "bytes": source.size_bytes(),
            "compression": reader.compression().name.lower(),
            "footer": index is not None,
        }
        entries = {} if index is None else {entry.offset: entry for entry in index.entries}
        for offset in reader.offsets():
            try:
                change_set = reader.change_set(offset)
            except FormatError as error:
                raise FormatError(
                    f"{source.place}, offset {offset}: {error.message}", ErrorKind(error.kind)
                ) from error
            layout = change_set.layout
            document: dict[str, Any] = {"offset": offset, "size": layout.encoded_bytes}
            if offset in entries:
                entry = entries[offset]
                document |= {
                    "log": str(entry.log_id),
                    "sqn": entry.sequence_number.number,
                    "verified": "crc32c",
                }
            counts: Counter[int] = Counter()
            for key_group, count in zip(layout.key_groups.tolist(), layout.counts.tolist(), strict=True):
                counts[key_group] += count
            document["changes"] = len(layout.lengths)
            document["payload"] = int(layout.lengths.sum())
            document["key_groups"] = {
                _group_name(key_group): count for key_group, count in sorted(counts.items())
            }
            yield document
            if with_changes:
                rows = zip(
                    change_set.row_key_groups().tolist(),
                    change_set.changes(0, len(layout.lengths)),
                    strict=True,
                )
                for key_group, change in rows:
                    yield {
                        "key_group": _group_name(key_group),
                        "bytes": len(change),
                        "begins": change[:_SHOWN_BYTES].hex(),
                    }
    finally:
        source.close()


def _group_name(key_group: int) -> str:
    return "metadata" if key_group < 0 else str(key_group)


def _open(file: str, options: JobOptions) -> Any:
    from dstl_dagster.changelog import StoredFile
    from dstl_dagster.format import StreamStateHandle
    from dstl_dagster.storage import FileRanges, open_store

    if "://" not in file:
        path = Path(file)
        if not path.is_file():
            raise NotFoundError(f"there is no file {file}: expected a path, or the URI of an object")
        return FileRanges(path)
    folder, slash, name = file.rpartition("/")
    if not slash or not name or folder.endswith("/"):
        raise InvalidInputError(f"{file!r} names no object: expected scheme://place/object")
    return StoredFile(open_store(folder, options.files), StreamStateHandle(name, None))


def _line(document: dict[str, Any]) -> str:
    if "file" in document:
        footer = "with footer" if document["footer"] else "without footer (from Flink, or truncated)"
        return (
            f"{document['file']}: {document['bytes']} bytes, compression {document['compression']}, {footer}"
        )
    if "begins" in document:
        dots = "..." if document["bytes"] > _SHOWN_BYTES else ""
        return f"    {document['key_group']:>8}  {document['bytes']:>8} bytes  {document['begins']}{dots}"
    log = f" log {document['log']} sqn {document['sqn']}," if "log" in document else ""
    groups = ", ".join(f"{group}: {count}" for group, count in document["key_groups"].items())
    return (
        f"  offset {document['offset']}:{log} {document['changes']} changes, "
        f"{document['payload']} bytes of payload; by key group {{{groups}}}"
    )
