"""Opening the files of a read ahead of the reader, where a request is worth waiting for together.

Owns the threads and how far they are ahead. Does not own what is fetched (`read_plan`, `sources`), nor which
copy of a file is read (`opened_file`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from dstl_dagster.changelog.opened_file import OpenedFile
from dstl_dagster.changelog.read_plan import ahead, opening_bytes
from dstl_dagster.storage import ObjectStore

__all__ = ["opened_ahead"]


def opened_ahead(
    store: ObjectStore, files: Sequence[OpenedFile], threads: int
) -> Generator[OpenedFile, None, None]:
    """Each file in its order, to be read before the next is asked for; then it is closed.

    `threads`: requests in flight, at most. Close the iterator if it is not walked to its end.
    """
    useful = store.capabilities.useful_threads(threads)
    near = store.capabilities.is_local
    if near or useful == 1 or not _worth_threads(files):
        return _one_by_one(files)
    return _ahead(files, useful)


def _worth_threads(files: Sequence[OpenedFile]) -> bool:
    """One small file is one request, which the reader's own thread may as well make."""
    sizes = [each.wanted.stream.stored_bytes for each in files]
    return len(sizes) > 1 or any(size is None or size > opening_bytes(size) for size in sizes)


def _one_by_one(files: Sequence[OpenedFile]) -> Generator[OpenedFile, None, None]:
    for each in files:
        try:
            yield each
        finally:
            each.close()


def _ahead(files: Sequence[OpenedFile], threads: int) -> Generator[OpenedFile, None, None]:
    with ExitStack() as stack:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="dstl-read")
        waiting, begun = deque(files), deque[OpenedFile]()
        # Closed after the threads have ended: none of them opens a file that is never closed.
        stack.callback(_close, begun)
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        while waiting or begun:
            _begin(waiting, begun, pool)
            file = begun[0]
            file.run_ahead(pool.submit)
            yield file
            file.close()
            begun.popleft()


def _close(files: Iterable[OpenedFile]) -> None:
    for each in files:
        each.close()


def _begin(waiting: deque[OpenedFile], begun: deque[OpenedFile], pool: ThreadPoolExecutor) -> None:
    """Begin as many files as may be held at once, those included that are."""
    held = [opening_bytes(each.wanted.stream.stored_bytes) for each in begun]
    while waiting:
        held.append(opening_bytes(waiting[0].wanted.stream.stored_bytes))
        if ahead(held) < len(held):
            return
        file = waiting.popleft()
        file.begin_with(pool.submit(file.begin))
        begun.append(file)
