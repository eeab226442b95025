"""A process that answers a line for each line: asked, waited for, and given up.

Owns the process. Does not own what it does, nor the turns (`peers`, `results_peers`).
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress

__all__ = ["Served"]


class Served:
    """Begins with a line of its own. Whoever takes longer than `patience_seconds` for a line is killed.

    Raises OSError where it cannot be started. `lost` says why it ended before it was asked to.
    """

    def __init__(self, name: str, command: list[str], patience_seconds: float = 600) -> None:
        self.name, self.lost = name, ""
        self._patience_seconds = patience_seconds
        # A pipe that nobody reads would fill up and block it.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._line()

    def ask(self, command: str, number: int) -> list[float] | None:
        if self.lost:
            return None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: the next line says so
            self._process.stdin.write(f"{command} {number}\n")
            self._process.stdin.flush()
        line = self._line()
        return None if self.lost else json.loads(line)

    def _line(self) -> str:
        assert self._process.stdout is not None
        killer = threading.Timer(self._patience_seconds, self._process.kill)
        killer.start()
        line = self._process.stdout.readline()
        killer.cancel()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            last = (self._errors.read().strip().splitlines() or [f"ended with status {status}"])[-1]
            slow = f"took longer than {self._patience_seconds:.0f} s"
            self.lost = slow if status == -signal.SIGKILL else last
        return line

    def end(self) -> None:
        if not self.lost:
            self._process.communicate()
