"""A process that stops before one of its requests until it is resumed: a zombie.

Owns the waiting thread. Does not own what it runs. Nothing runs concurrently: while the process runs the
caller waits, and while the caller runs the process waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Paused:
    """Runs `act` at once, up to its request number `at` (from 0).

    Args:
        act: takes a function that it must call before each request.
    """

    def __init__(self, act: Callable[[Callable[[], None]], object], at: int) -> None:
        self._act = act
        self._requests_left = at
        self._stopped = threading.Semaphore(0)
        self._resumed = threading.Semaphore(0)
        self._raised: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="dstl-zombie")
        self._thread.start()
        self._stopped.acquire()

    def resume(self, requests: int | None = None) -> None:
        """Let it run for so many more requests, or to its end. Raises what it raised."""
        if not self._ended:
            self._requests_left = -1 if requests is None else requests
            self._resumed.release()
            self._stopped.acquire()
        if requests is None:
            self._thread.join()
        if self._ended and self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised

    def _run(self) -> None:
        try:
            self._act(self._before_request)
        except BaseException as error:
            self._raised = error
        finally:
            self._ended = True
            self._stopped.release()

    def _before_request(self) -> None:
        if self._requests_left == 0:
            self._stopped.release()
            self._resumed.acquire()
        self._requests_left -= 1
