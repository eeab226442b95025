"""Writing a file's pieces on a second thread while a core is free, so that encoding and writing overlap.

Owns when that is, and the order of pieces. Does not own what a piece is, nor where it goes (`sinks`). Without
it benchmarks/changelog.py, "append+persist 100 B, delay 10 ms", takes 1.14 times as long on disk and 1.19 in
memory (docs/decisions/0023).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from dstl_dagster.upload.sinks import Piece

__all__ = ["WRITE_BEHIND_BUFFERS", "ActiveUploads", "write_behind"]

WRITE_BEHIND_BUFFERS: Final = 4
"""From so many buffers of payload on a second thread is worth its start, where a core is idle."""

_WAITING_PIECES: Final = 2


class ActiveUploads:
    """How many files are being written right now. Any thread.

    Args:
        cores: of this machine.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._lock = threading.Lock()
        self._count = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count one more within the block."""
        with self._lock:
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1

    def leave_cores(self) -> bool:
        """Whether there are two cores for each. Otherwise second threads only contend."""
        return 2 * self._count <= self._cores


@contextmanager
def write_behind(
    write: Callable[[Piece], None], helps: Callable[[], bool]
) -> Iterator[Callable[[Piece], None]]:
    """Gives a `write` that hands pieces to a thread, which writes them in order while the next is encoded.

    At most two pieces wait. Leaving the block waits for the thread, whatever happened. An error of the thread
    is raised by the next call, or on leaving; nothing is written after it.

    Args:
        helps: asked before each piece. Once it is false, the calling thread writes, after what waits.
    """
    pieces: queue.Queue[Piece | None] = queue.Queue(_WAITING_PIECES)
    errors: list[BaseException] = []

    def run() -> None:
        while (piece := pieces.get()) is not None:
            # After an error pieces are still taken, and dropped: the giving thread must never block.
            if not errors:
                try:
                    write(piece)
                except BaseException as error:  # noqa: BLE001 - raised in the giving thread
                    errors.append(error)
            pieces.task_done()

    def give(piece: Piece) -> None:
        if not helps():
            pieces.join()
            take = write
        else:
            if thread.ident is None:
                thread.start()
            take = pieces.put
        if errors:
            raise errors[0]
        take(piece)

    thread = threading.Thread(target=run, name="dstl-changelog-write-behind", daemon=True)
    try:
        yield give
    finally:
        if thread.ident is not None:
            pieces.put(None)
            thread.join()
    if errors:
        raise errors[0]
