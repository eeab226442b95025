"""Passes over a state: the next one is read while the rows of this one are folded and used.

Owns the thread. Does not own what a pass reads (`passes`, `keyed_state`), nor how far reading one pass runs
ahead of itself (`changelog.read_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["one_ahead"]

T = TypeVar("T")


def one_ahead(reads: Sequence[Callable[[], T]]) -> Generator[T, None, None]:
    """What each call returns, in order. While one result is used, the next call is under way, and no more:
    two results are in memory. A single call is made by the caller's own thread.

    Raises: what a call raises, where its result would come. Close the iterator if it is not walked to its
    end: that waits for the call under way.
    """
    if len(reads) < 2:
        for read in reads:
            yield read()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="dstl-pass") as thread:
        coming = thread.submit(reads[0])
        for read in reads[1:]:
            found = coming.result()
            coming = thread.submit(read)
            yield found
            del found  # what it holds may go before the next one is there
        yield coming.result()
