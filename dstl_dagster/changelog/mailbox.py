"""A writer's one thread: commands from any thread, run on the owner's.

Owns the queue of commands and the futures that know of it. Does not own what the commands do.

Source: Flink's `MailboxExecutor`, of which the changelog uses `execute` alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import ErrorKind, InvalidInputError

__all__ = ["MailboxExecutor", "MailboxFuture", "TaskMailbox"]

ResultT = TypeVar("ResultT")


class MailboxExecutor(Protocol):
    """Something that runs commands on one thread, in order."""

    def execute(self, command: Callable[[], None], description: str) -> None:
        """Run `command` later, or now, on the owner's thread. Any thread may call."""
        ...


class TaskMailbox:
    """A mailbox that its owner, the thread that made it, empties.

    `execute` may be called from any thread; everything else from the owner's alone (InvalidInputError).
    An exception of a command is raised to the owner, and the commands behind it stay queued.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._condition = threading.Condition()
        self._commands: deque[tuple[Callable[[], None], str]] = deque()
        self._owner = threading.get_ident()

    @property
    def is_owner(self) -> bool:
        """Whether this thread is the owner."""
        return threading.get_ident() == self._owner

    def execute(self, command: Callable[[], None], description: str) -> None:
        """Queue a command; the owner runs it when it next drains the mailbox."""
        with self._condition:
            self._commands.append((command, description))
            self._condition.notify_all()

    def run_pending(self) -> int:
        """Run what is queued now, without waiting. Returns how many commands ran."""
        self._check_owner()
        count = 0
        while self._commands:
            try:
                command, _ = self._commands.popleft()
            except IndexError:
                break
            command()
            count += 1
        return count

    def run_until(self, future: Future[Any], timeout: float | None = None) -> None:
        """Run commands as they come until the future is done.

        TimeoutError after `timeout` seconds; the future and the queued commands are left as they are.
        """
        self._check_owner()
        deadline = None if timeout is None else self._clock.monotonic_seconds() + timeout
        # `Future.done` is the plain one: a mailbox future would run this mailbox to answer.
        future.add_done_callback(self._wake)
        while not Future.done(future):
            if self.run_pending():
                continue
            with self._condition:
                if self._commands or Future.done(future):
                    continue
                wait_seconds = None if deadline is None else deadline - self._clock.monotonic_seconds()
                if wait_seconds is not None and wait_seconds <= 0:
                    raise TimeoutError("the future was not done in time; its work goes on")
                self._condition.wait(wait_seconds)

    def _wake(self, _: Future[Any]) -> None:
        with self._condition:
            self._condition.notify_all()

    def _check_owner(self) -> None:
        if not self.is_owner:
            raise InvalidInputError(
                "a mailbox is run by the thread that made it: hand a command over with execute() instead",
                kind=ErrorKind.WRONG_THREAD,
            )


class MailboxFuture(Future[ResultT]):
    """A future that its owner may wait for without a deadlock: waiting runs the mailbox.

    On the owner's thread `done()`, `result()` and `exception()` run what is in the mailbox; on another
    thread they only look and wait, and the owner has to run its mailbox. It cannot be cancelled.
    `concurrent.futures.wait` knows nothing of mailboxes: on the owner's thread use `result()`.
    """

    def __init__(self, mailbox: MailboxExecutor) -> None:
        super().__init__()
        self._mailbox = mailbox if isinstance(mailbox, TaskMailbox) else None
        self.set_running_or_notify_cancel()

    def done(self) -> bool:
        if not super().done() and self._mailbox is not None and self._mailbox.is_owner:
            self._mailbox.run_pending()
        return super().done()

    def result(self, timeout: float | None = None) -> ResultT:
        self._run_mailbox(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._run_mailbox(timeout)
        return super().exception(timeout)

    def _run_mailbox(self, timeout: float | None) -> None:
        if self._mailbox is not None and self._mailbox.is_owner and not super().done():
            self._mailbox.run_until(self, timeout)
