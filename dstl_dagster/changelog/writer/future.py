"""The future of a persist: waited for, awaited, or followed by other steps.

Owns how a future and what follows it complete, with the semantics of Java's `CompletableFuture`. Does not own
the mailbox that it runs (`mailbox`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from dstl_dagster.changelog.writer.mailbox import MailboxExecutor, TaskMailbox
from dstl_dagster.errors import InvalidInputError

_logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
NextT = TypeVar("NextT")


class MailboxFuture(Future[ResultT]):
    """A future that its owner may wait for without a deadlock: waiting runs the mailbox.

    On the owner's thread `done()`, `result()` and `exception()` run what is in the mailbox, and an event loop
    there runs it while a task awaits: `await future`, `asyncio.wrap_future(future)`, `asyncio.gather`. On
    another thread they only look and wait, and the owner has to run its mailbox. It cannot be cancelled; a
    cancelled task leaves it as it is. `concurrent.futures.wait` knows nothing of mailboxes: on the owner's
    thread use `result()`.

    Steps that follow (`then_apply`, `then_accept`, `then_compose`, `when_complete`, `exceptionally`) are
    called once, in the thread that completes this future: the owner's, for a persist. Each returns the future
    of its own outcome, which fails with what the step raised. Where this future fails, what was to follow a
    success is not called, and the error (itself, in no wrapper) is the outcome.
    """

    def __init__(self, mailbox: MailboxExecutor) -> None:
        super().__init__()
        self._mailbox = mailbox
        self._own = mailbox if isinstance(mailbox, TaskMailbox) else None
        self.set_running_or_notify_cancel()

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
        # `asyncio.wrap_future` comes through here. The loop of the owner's thread would wait for a mailbox
        # that no thread runs.
        if (
            self._own is not None
            and self._own.is_owner
            and (asyncio := sys.modules.get("asyncio")) is not None
        ):
            loop = asyncio._get_running_loop()
            if loop is not None:
                self._own.run_in(loop)
        super().add_done_callback(fn)

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

        def take_step(done: Future[ResultT]) -> None:
            try:
                step(done, following)
            except BaseException as error:
                if not Future.done(following):
                    following.set_exception(error)
                if not isinstance(error, Exception):
                    raise

        self.add_done_callback(take_step)
        return following


def _settle_as(following: Future[NextT], done: Future[NextT]) -> None:
    if done.cancelled():
        following.set_exception(InvalidInputError("the future that was to follow was cancelled"))
        return
    error = done.exception()
    if error is not None:
        following.set_exception(error)
    else:
        following.set_result(done.result())
