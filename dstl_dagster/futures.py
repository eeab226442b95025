"""Futures that are waited for, awaited, or followed by other steps, and the mailbox of their owner.

Owns how a future and what follows it complete, with the semantics of Java's `CompletableFuture`; and the
queue of commands, which a call of its owner's runs, or the owner's event loop. Does not own what they do.

Source: Flink's `MailboxExecutor`, of which the changelog uses `execute` alone.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import InvalidInputError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
NextT = TypeVar("NextT")


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

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._condition = threading.Condition()
        self._commands: deque[tuple[Callable[[], None], str]] = deque()
        self._owner = threading.get_ident()
        self._loop: AbstractEventLoop | None = None

    @property
    def is_owner(self) -> bool:
        """Whether this thread is the owner."""
        return threading.get_ident() == self._owner

    def execute(self, command: Callable[[], None], description: str) -> None:
        """Queue a command; the owner runs it when it next drains the mailbox, or its event loop does."""
        with self._condition:
            self._commands.append((command, description))
            self._condition.notify_all()
            loop = self._loop
        if loop is not None:
            self._wake_loop(loop)

    def run_in(self, loop: AbstractEventLoop) -> None:
        """From now on `loop`, which the owner's thread runs, also runs commands as they come.

        A loop of the owner's that runs later takes its place. One that is closed is forgotten.
        """
        self._check_owner()
        with self._condition:
            known, self._loop = self._loop is loop, loop
            missed = bool(self._commands) and not known
        if missed:
            self._wake_loop(loop)

    def _wake_loop(self, loop: AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self.run_pending)
        except RuntimeError:
            # Closed: the commands wait for a call of the owner's.
            with self._condition:
                if self._loop is loop:
                    self._loop = None

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
                "a mailbox is run by the thread that made it: hand a command over with execute() instead"
            )


class MailboxFuture(Future[ResultT]):
    """A future that its owner may wait for without a deadlock: waiting runs the mailbox.

    On the owner's thread `done()`, `result()` and `exception()` run what is in the mailbox, and an event loop
    there runs it while a task awaits: `await future`, `asyncio.wrap_future(future)`, `asyncio.gather`. On
    another thread they only look and wait, and the owner has to run its mailbox. It cannot be cancelled; a
    cancelled task leaves it as it is. `concurrent.futures.wait` knows nothing of mailboxes: on the owner's
    thread use `result()`.

    Without a mailbox it has no owner, and every thread only waits.

    Steps that follow (`then_apply`, `then_accept`, `then_run`, `then_compose`, `when_complete`,
    `exceptionally`) are called once: at once if this future is done, else in the thread that completes it,
    for a persist the owner's. Each returns the future of its own outcome, which fails with what the step
    raised. Where this future fails, what was to follow a success is not called, and the error (itself, in no
    wrapper) is the outcome.
    """

    def __init__(self, mailbox: MailboxExecutor | None = None) -> None:
        super().__init__()
        self._mailbox = mailbox
        self._own = mailbox if isinstance(mailbox, TaskMailbox) else None
        self._lock = threading.Lock()
        self._steps: list[Callable[[], None]] | None = []
        """What follows; `None` once it is called."""
        self.set_running_or_notify_cancel()
        super().add_done_callback(MailboxFuture._take_steps)  # type: ignore[arg-type]  # this future is its argument

    # -- waiting -----------------------------------------------------------------------------------

    def done(self) -> bool:
        if not super().done() and self._own is not None and self._own.is_owner:
            self._own.run_pending()
        return super().done()

    def result(self, timeout: float | None = None) -> ResultT:
        self._run_mailbox(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._run_mailbox(timeout)
        return super().exception(timeout)

    def _run_mailbox(self, timeout: float | None) -> None:
        if self._own is not None and self._own.is_owner and not super().done():
            self._own.run_until(self, timeout)

    def add_done_callback(self, fn: Callable[[Future[ResultT]], object]) -> None:
        self._let_loop_run_mailbox()  # `asyncio.wrap_future` comes through here
        super().add_done_callback(fn)

    def _let_loop_run_mailbox(self) -> None:
        """The loop of the owner's thread would wait for a mailbox that no thread runs."""
        if (
            self._own is not None
            and self._own.is_owner
            and (asyncio := sys.modules.get("asyncio")) is not None
        ):
            loop = asyncio._get_running_loop()
            if loop is not None:
                self._own.run_in(loop)

    def __await__(self) -> Generator[Any, None, ResultT]:
        import asyncio

        return asyncio.wrap_future(self).__await__()

    # -- what follows ------------------------------------------------------------------------------

    def then_apply(self, function: Callable[[ResultT], NextT]) -> MailboxFuture[NextT]:
        """The future of `function(result)`."""
        return self._followed(lambda result, following: following.set_result(function(result)))

    def then_accept(self, consumer: Callable[[ResultT], object]) -> MailboxFuture[None]:
        """Hand the result to `consumer`; the future of None, once it has returned."""

        def accept(result: ResultT, following: MailboxFuture[None]) -> None:
            consumer(result)
            following.set_result(None)

        return self._followed(accept)

    def then_run(self, action: Callable[[], object]) -> MailboxFuture[None]:
        """Call `action`; the future of None, once it has returned."""
        return self.then_accept(lambda _: action())

    def then_compose(self, function: Callable[[ResultT], Future[NextT]]) -> MailboxFuture[NextT]:
        """The outcome of the future that `function(result)` returns, such as another persist."""

        def compose(result: ResultT, following: MailboxFuture[NextT]) -> None:
            inner = function(result)
            if not isinstance(inner, Future):
                raise InvalidInputError(
                    f"then_compose: the function returned a {type(inner).__name__}, not a future: for a "
                    "plain result use then_apply"
                )
            inner.add_done_callback(lambda done: _settle_as(following, done))

        return self._followed(compose)

    def when_complete(
        self, action: Callable[[ResultT | None, BaseException | None], object]
    ) -> MailboxFuture[ResultT]:
        """Call `action(result, error)`, one of which is None; the future of this one's outcome.

        What `action` raises is the outcome of a success; of a failure the first error stays.
        """

        def completed(done: Future[ResultT], following: MailboxFuture[ResultT]) -> None:
            error = done.exception()
            try:
                action(None if error is not None else done.result(), error)
            except Exception as raised:
                if error is None:
                    raise
                _logger.warning("an action on a failed future failed too: %s", raised)
            _settle_as(following, done)

        return self._then(completed)

    def exceptionally(self, function: Callable[[BaseException], ResultT]) -> MailboxFuture[ResultT]:
        """The result, or `function(error)` in its place."""

        def recovered(done: Future[ResultT], following: MailboxFuture[ResultT]) -> None:
            error = done.exception()
            following.set_result(done.result() if error is None else function(error))

        return self._then(recovered)

    def _followed(self, step: Callable[[ResultT, MailboxFuture[NextT]], None]) -> MailboxFuture[NextT]:
        def succeeded(done: Future[ResultT], following: MailboxFuture[NextT]) -> None:
            error = done.exception()
            if error is not None:
                following.set_exception(error)
            else:
                step(done.result(), following)

        return self._then(succeeded)

    def _then(self, step: Callable[[Future[ResultT], MailboxFuture[NextT]], None]) -> MailboxFuture[NextT]:
        following: MailboxFuture[NextT] = MailboxFuture(self._mailbox)

        def take_step() -> None:
            try:
                step(self, following)
            except BaseException as error:
                if not Future.done(following):
                    following.set_exception(error)
                if not isinstance(error, Exception):
                    raise

        self._let_loop_run_mailbox()
        with self._lock:
            waits = self._steps is not None
            if self._steps is not None:
                self._steps.append(take_step)
        if not waits:
            take_step()
        return following

    def _take_steps(self) -> None:
        """In order, and the others too where one is interrupted; the interrupt goes on then."""
        with self._lock:
            steps, self._steps = self._steps or [], None
        with ExitStack() as stack:
            for step in reversed(steps):
                stack.callback(step)


def _settle_as(following: Future[NextT], done: Future[NextT]) -> None:
    if done.cancelled():
        following.set_exception(InvalidInputError("the future that was to follow was cancelled"))
        return
    error = done.exception()
    if error is not None:
        following.set_exception(error)
    else:
        following.set_result(done.result())
