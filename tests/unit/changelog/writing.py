"""A storage with one writer, and what the tests of its decisions ask of the two.

Does not own fakes of the upload path: those are `tests.doubles.uploads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogWriter
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, SequenceNumber
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import MemoryObjectStore

RANGE = KeyGroupRange.of(0, 3)
DEADLINE_SECONDS = 20
# No time-outs: on a busy machine a slow attempt would get a second one beside it.
FAST = FsStateChangelogOptions(
    batch_persist_delay=timedelta(0), next_attempt_delay=timedelta(0), upload_timeout=timedelta(0)
)


@contextmanager
def open_writer(
    store: Any = None, options: FsStateChangelogOptions = FAST, **arguments: Any
) -> Iterator[tuple[FsStateChangelogStorage, FsStateChangelogWriter]]:
    """A storage on `store`, or in memory, and a writer of the key groups in `RANGE`."""
    with (
        FsStateChangelogStorage(
            "job", MemoryObjectStore() if store is None else store, options, **arguments
        ) as storage,
        storage.create_writer("op", RANGE) as writer,
    ):
        yield storage, writer


def persisted(writer: FsStateChangelogWriter, from_: int = 0) -> ChangelogStateHandle:
    """The handle of everything appended since `from_`, inclusive, once it is durable."""
    result = writer.persist(SequenceNumber.of(from_), 1).result(DEADLINE_SECONDS)
    assert result.job_manager_owned_snapshot is not None
    return result.job_manager_owned_snapshot


def names_in(store: MemoryObjectStore) -> list[str]:
    """The names of all objects."""
    return [stat.name for stat in store.list()]
