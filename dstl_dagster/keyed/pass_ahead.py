"""Passes over a state: the next ones are read while the rows of this one are folded and used.

Owns the threads, and how many a process has. Does not own what a pass reads (`passes`, `keyed_state`), nor
how far reading one pass runs ahead of itself (`changelog.read_plan`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

__all__ = ["passes_ahead", "read_ahead"]

T = TypeVar("T")

_MOST_AHEAD: Final = 3
"""Each is in memory, 32 MiB of changes. With more, one thread that folds does not keep up."""


def passes_ahead() -> int:
    """As many as a process that has the machine to itself reads meanwhile: one for each core, up to three."""
    return min(_MOST_AHEAD, os.cpu_count() or 1)


def read_ahead(reads: Sequence[Callable[[], T]], count: int = 1) -> Generator[T, None, None]:
    """What each call returns, in order. While one result is used, the next `count` calls are under way, and
    no more: as many results and one are in memory. A single call is made by the caller's own thread.

    Raises: what a call raises, where its result would come. Close the iterator if it is not walked to its
    end: that waits for the calls under way.
    """
    if len(reads) < 2:
        for read in reads:
            yield read()
        return
    following = iter(reads)
    with ThreadPoolExecutor(min(count, len(reads)), thread_name_prefix="dstl-pass") as threads:
        coming = deque(threads.submit(read) for read in islice(following, count))
        while coming:
            found = coming.popleft().result()
            coming.extend(threads.submit(read) for read in islice(following, 1))
            yield found
            del found  # what it holds may go before the next one is there
