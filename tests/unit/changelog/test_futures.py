"""A persist's future: awaited on the owner's thread, and followed by steps, as Java's `CompletableFuture`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogWriter, MailboxFuture, TaskMailbox
from dstl_dagster.errors import ClosedError, InvalidInputError, UnavailableError
from dstl_dagster.format import KeyGroupRange, SequenceNumber, SnapshotResult
from dstl_dagster.storage import MemoryObjectStore
from tests.doubles.uploads import HeldScheduler

DEADLINE_SECONDS = 20
FIRST = SequenceNumber.of(0)


class Setup:
    """A writer whose uploads end when the test says so."""

    def __init__(self, mailbox: TaskMailbox | None = None) -> None:
        self.scheduler = HeldScheduler()
        self.storage = FsStateChangelogStorage("job", MemoryObjectStore(), scheduler=self.scheduler)
        self.writer: FsStateChangelogWriter = self.storage.create_writer(
            "op", KeyGroupRange.of(0, 3), mailbox
        )

    def persist(self, change: bytes = b"x") -> MailboxFuture[SnapshotResult]:
        from_ = self.writer.next_sequence_number()
        self.writer.append(1, change)
        return self.writer.persist(from_, 1)

    def ends_elsewhere(self, end: Callable[[], object] | None = None) -> threading.Thread:
        """The uploads end in another thread, as they do."""
        thread = threading.Thread(target=end or self.scheduler.complete_all)
        thread.start()
        return thread


@pytest.fixture
def setup() -> Setup:
    return Setup()


class TestAwait:
    """On the owner's thread the event loop runs the mailbox."""

    @pytest.mark.parametrize("how", ["await", "wrap_future", "gather", "wait_for"])
    def test_a_persist_is_awaited(self, setup: Setup, how: str) -> None:
        """Each way of asyncio's to wait ends once the upload has ended in its thread; none hangs."""

        async def job() -> int:
            future = setup.persist()
            ways: dict[str, Callable[[], Any]] = {
                "await": lambda: future,
                "wrap_future": lambda: asyncio.wrap_future(future),
                "gather": lambda: asyncio.gather(future),
                "wait_for": lambda: asyncio.wait_for(future, DEADLINE_SECONDS),
            }
            waited = asyncio.ensure_future(ways[how]())
            await asyncio.sleep(0)
            assert not waited.done()
            setup.ends_elsewhere()
            got = await asyncio.wait_for(waited, DEADLINE_SECONDS)
            return sum(each.state_size for each in (got if isinstance(got, list) else [got]))

        assert asyncio.run(job()) == 1

    def test_a_result_that_came_before_the_await_is_seen(self, setup: Setup) -> None:
        """Nothing wakes the loop later: what is in the mailbox already is run at once."""

        async def job() -> int:
            future = setup.persist()
            setup.ends_elsewhere().join()
            return (await asyncio.wait_for(future, DEADLINE_SECONDS)).state_size

        assert asyncio.run(job()) == 1

    def test_a_failure_is_raised_by_the_await(self, setup: Setup) -> None:
        """As `result()` raises it."""

        async def job() -> None:
            future = setup.persist()
            setup.ends_elsewhere(setup.scheduler.fail)
            await asyncio.wait_for(future, DEADLINE_SECONDS)

        with pytest.raises(UnavailableError, match="failed by the test"):
            asyncio.run(job())

    def test_another_loop_takes_over(self, setup: Setup) -> None:
        """A loop that has ended is forgotten: what ends meanwhile is not lost, and the next loop runs it."""

        async def cancelled() -> MailboxFuture[SnapshotResult]:
            future = setup.persist(b"one")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(future, 0.001)
            return future

        async def awaited(future: MailboxFuture[SnapshotResult]) -> int:
            return (await asyncio.wait_for(future, DEADLINE_SECONDS)).state_size

        left = asyncio.run(cancelled())
        setup.ends_elsewhere().join()
        assert asyncio.run(awaited(left)) == 3
        assert setup.persist(b"").done() is False

    def test_one_mailbox_for_two_writers(self) -> None:
        """Awaiting one writer's persist also runs the other's commands, in order."""
        mailbox = TaskMailbox()
        one, other = Setup(mailbox), Setup(mailbox)

        async def job() -> list[int]:
            futures = [one.persist(), other.persist()]
            other.ends_elsewhere()
            one.ends_elsewhere()
            return [each.state_size for each in await asyncio.gather(*futures)]

        assert asyncio.run(job()) == [1, 1]


class TestSteps:
    def test_then_apply_and_accept(self, setup: Setup) -> None:
        """The result goes in; what comes out is the next result."""
        seen: list[int] = []
        size = setup.persist().then_apply(lambda result: result.state_size)
        accepted = size.then_accept(seen.append)
        assert not accepted.done()
        setup.ends_elsewhere()
        assert accepted.result(DEADLINE_SECONDS) is None
        assert (seen, size.result(0)) == ([1], 1)

    def test_then_compose_persists_again(self, setup: Setup) -> None:
        """The outcome is that of the persist which the step began."""

        def again(_: object) -> MailboxFuture[SnapshotResult]:
            future = setup.persist(b"more")
            setup.ends_elsewhere()
            return future

        both = setup.persist().then_compose(again)
        setup.ends_elsewhere()
        assert both.result(DEADLINE_SECONDS).state_size == 4

    def test_then_compose_takes_any_future(self, setup: Setup) -> None:
        """One that another thread completes ends the wait of the owner."""
        inner: Future[str] = Future()

        def compose(_: object) -> Future[str]:
            setup.ends_elsewhere(lambda: inner.set_result("done"))
            return inner

        composed = setup.persist().then_compose(compose)
        setup.ends_elsewhere()
        assert composed.result(DEADLINE_SECONDS) == "done"

    def test_then_compose_of_a_plain_result_says_what_to_use(self, setup: Setup) -> None:
        """A future is what the step returns."""
        composed = setup.persist().then_compose(lambda result: result.state_size)  # type: ignore[arg-type,return-value]
        setup.scheduler.complete_all()
        with pytest.raises(InvalidInputError, match="then_apply"):
            composed.result(DEADLINE_SECONDS)

    def test_a_failure_passes_the_steps_of_success(self, setup: Setup) -> None:
        """No step after a success is called, and the error itself is the outcome of each."""
        called: list[object] = []
        first = setup.persist()
        last = first.then_apply(called.append).then_compose(called.append).then_accept(called.append)  # type: ignore[arg-type,func-returns-value]
        setup.scheduler.fail()
        assert last.exception(DEADLINE_SECONDS) is first.exception(0)
        assert called == []

    def test_a_step_that_raises_fails_what_follows(self, setup: Setup) -> None:
        """The error reaches whoever waits, instead of a log."""
        broken = setup.persist().then_accept(lambda _: {}["gone"])
        setup.scheduler.complete_all()
        with pytest.raises(KeyError):
            broken.result(DEADLINE_SECONDS)

    def test_when_complete_sees_both_and_changes_nothing(self, setup: Setup) -> None:
        """The result and no error, or no result and the error; the outcome stays."""
        seen: list[tuple[bool, bool]] = []

        def look(result: object, error: object) -> None:
            seen.append((result is None, error is None))

        good, bad = setup.persist().when_complete(look), setup.persist().when_complete(look)
        setup.scheduler.complete()
        setup.scheduler.fail()
        assert good.result(DEADLINE_SECONDS).state_size == 1
        assert isinstance(bad.exception(DEADLINE_SECONDS), UnavailableError)
        assert seen == [(False, True), (True, False)]

    def test_when_complete_that_raises(self, setup: Setup) -> None:
        """Its error is the outcome of a success; of a failure the first error stays, with its cause."""

        def raises(*_: object) -> None:
            raise LookupError("of the action")

        good, bad = setup.persist().when_complete(raises), setup.persist().when_complete(raises)
        setup.scheduler.complete()
        setup.scheduler.fail()
        assert isinstance(good.exception(DEADLINE_SECONDS), LookupError)
        error = bad.exception(DEADLINE_SECONDS)
        assert isinstance(error, UnavailableError)
        assert isinstance(error.__cause__, OSError)

    def test_exceptionally_takes_the_place_of_a_failure(self, setup: Setup) -> None:
        """Called for a failure alone; what it returns is the result."""
        empty = SnapshotResult()
        good = setup.persist().exceptionally(lambda _: empty)
        bad = setup.persist().exceptionally(lambda _: empty)
        setup.scheduler.complete()
        setup.scheduler.fail()
        assert good.result(DEADLINE_SECONDS).state_size == 1
        assert bad.result(DEADLINE_SECONDS) is empty

    def test_a_step_on_a_finished_future_is_called_at_once(self, setup: Setup) -> None:
        """As Java's: there is no later moment."""
        future = setup.persist()
        setup.scheduler.complete_all()
        future.result(DEADLINE_SECONDS)
        seen: list[int] = []
        future.then_accept(lambda result: seen.append(result.state_size))
        assert seen == [1]


class TestClose:
    def test_what_is_durable_is_not_closed_away(self, setup: Setup) -> None:
        """Persist, then_accept, close, as seed 001 has it: an upload that has ended reaches its callback."""
        seen: list[int] = []
        future = setup.persist().then_accept(lambda result: seen.append(result.state_size))
        setup.ends_elsewhere().join()
        setup.writer.close()
        assert (seen, future.exception(0)) == ([1], None)

    def test_what_is_not_durable_fails(self, setup: Setup) -> None:
        """Close does not wait: the callback of an upload under way hears why."""
        errors: list[BaseException | None] = []
        setup.persist().when_complete(lambda _, error: errors.append(error))
        setup.writer.close()
        assert [type(error) for error in errors] == [ClosedError]

    def test_a_step_may_close_the_writer(self, setup: Setup) -> None:
        """A close inside the step that close itself completes ends once, in order."""
        future = setup.persist().then_accept(lambda _: setup.writer.close())
        waiting = setup.persist()
        setup.scheduler.complete()
        setup.writer.close()
        assert future.exception(0) is None
        assert isinstance(waiting.exception(0), ClosedError)


@pytest.mark.parametrize("end", ["complete_all", "fail", "close"])
def test_an_interrupted_step_leaves_no_other_future_pending(setup: Setup, end: str) -> None:
    """An interrupt in what follows one persist is the owner's; the persists behind it end nevertheless."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    from_ = setup.writer.next_sequence_number()
    setup.persist().when_complete(interrupt)
    behind = setup.writer.persist(from_, 2)
    if end == "complete_all":
        setup.scheduler.complete_all()
    elif end == "fail":
        setup.scheduler.fail()
    with pytest.raises(KeyboardInterrupt):
        setup.writer.close()
    assert Future.done(behind)


def test_an_interrupted_step_keeps_no_other_step_of_its_future_waiting(setup: Setup) -> None:
    """Each step on one future has an outcome of its own, which is not another one's."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    future = setup.persist()
    interrupted, behind = future.then_accept(interrupt), future.then_apply(lambda result: result.state_size)
    setup.scheduler.complete_all()
    with pytest.raises(KeyboardInterrupt):
        setup.writer.close()
    assert isinstance(Future.exception(interrupted, 0), KeyboardInterrupt)
    assert Future.result(behind, 0) == 1
