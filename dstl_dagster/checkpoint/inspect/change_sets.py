"""Whether the changelog files of a checkpoint hold what they should: each file, its change sets, their rows.

Owns these checks. Does not own how a file is compared with its handle (`integrity`), nor what else a
checkpoint needs (`verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from dstl_dagster.changelog import ChangelogReader, ReadCache
from dstl_dagster.checkpoint.inspect.integrity import FileChecks, Findings, raise_unless_damage
from dstl_dagster.errors import DstlError
from dstl_dagster.format import ChangelogStateHandle
from dstl_dagster.keyed import Manifest, OperatorEntry, is_keyed, schema_of
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.state import StateSchema, check_changes
from dstl_dagster.storage import ObjectStore


@contextmanager
def change_checks(
    store: ObjectStore, manifest: Manifest, options: FsStateChangelogOptions, found: Findings
) -> Iterator[list[Callable[[], object]]]:
    """One check for each handle: its files, its change sets, and their content. In the block.

    Of a handle that is needed in part, all is checked: its files exist permanently or not at all.
    """
    with ReadCache().with_disk(options) as cache:
        reader = ChangelogReader(store, cache=cache, threads=1)  # the checks themselves run concurrently
        files = FileChecks(store, found, cache)
        checks: list[Callable[[], object]] = []
        for entry in manifest.operators.values():
            schema = _schema_of(entry, found) if entry.runs else None
            handles = _each_once(entry.handles)
            checks += [partial(_check_handle, files, reader, handle, schema, found) for handle in handles]
        yield checks


def _each_once(handles: Iterable[ChangelogStateHandle]) -> Iterable[ChangelogStateHandle]:
    """The handles, without further parts of the same one."""
    return {handle.handles_and_offsets: handle for handle in handles}.values()


def _schema_of(entry: OperatorEntry, found: Findings) -> StateSchema | None:
    try:
        return schema_of(entry.report) if is_keyed(entry.report) else None
    except DstlError as error:
        found.problem(next(entry.files()).name, f"has no readable schema in its manifest: {error.message}")
        return None


def _check_handle(
    files: FileChecks,
    reader: ChangelogReader,
    handle: ChangelogStateHandle,
    schema: StateSchema | None,
    found: Findings,
) -> None:
    undamaged = [files.is_undamaged(stream) for stream in handle.streams]
    if not all(undamaged):
        return  # reported by the file's own check; each change set in it would be once more
    try:
        batches = reader.read_batches(handle)
        if schema is not None:
            check_changes(batches, schema)
        else:
            for _ in batches:
                pass  # reading compares each change set with its checksum
    except DstlError as error:
        raise_unless_damage(error)
        names = sorted({stream.name for stream in handle.streams})
        found.problem(", ".join(names), f"does not hold what it should: {error.message}")
