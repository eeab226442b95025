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

__all__ = ["ActiveUploads", "WriteBehind"]

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


class WriteBehind:
    """Writes pieces in order: on a thread of its own while that helps, so that the next one is encoded
    meanwhile, and else in the thread that gives them.

    At most two pieces wait. One thread gives them; it must end with `finish` or `abort`, after which no
    thread is left. An error of the writing is raised by the next `write`, or by `finish`.

    Args:
        write: takes one piece.
        helps: asked before each piece.
    """

    def __init__(self, write: Callable[[Piece], None], helps: Callable[[], bool]) -> None:
        self._write = write
        self._helps = helps
        self._queue: queue.Queue[Piece | None] = queue.Queue(_WAITING_PIECES)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def write(self, piece: Piece) -> None:
        """Give a piece."""
        if self._error is not None:
            raise self._error
        if self._helps():
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="dstl-changelog-write-behind", daemon=True
                )
                self._thread.start()
            self._queue.put(piece)
            return
        if self._thread is not None:
            # What was given before comes first.
            self._queue.join()
            if self._error is not None:
                raise self._error
        self._write(piece)

    def finish(self) -> None:
        """Wait until everything is written."""
        self.abort()
        if self._error is not None:
            raise self._error

    def abort(self) -> None:
        """Wait for the thread, whatever became of the pieces. May be called again."""
        if self._thread is not None and self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            # After an error pieces are still taken, and dropped: the giving thread must never block.
            if self._error is None:
                try:
                    self._write(piece)
                except BaseException as error:  # noqa: BLE001 - raised in the giving thread
                    self._error = error
            self._queue.task_done()
