"""Results in order from several threads: how many are ahead, where errors come; and what a fork renews."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.concurrency import ReadAhead, after_fork, both, gather, in_order, read_ahead
from dstl_dagster.errors import NotFoundError


@pytest.mark.parametrize("count", [1, 2, 7])
def test_so_many_calls_are_ahead_and_no_more(count: int) -> None:
    """A call begins once the result before those ahead of it was asked for; all that may, at once."""
    began = [threading.Event() for _ in range(5)]

    def call(number: int) -> int:
        began[number].set()
        for each in range(min(number, 5 - count) + count):  # those that are under way beside it
            assert began[each].wait(30)
        return number

    with closing(read_ahead([partial(call, number) for number in range(5)], count, "t")) as results:
        assert not began[0].is_set()
        for number in range(5):
            assert next(results) == number
            assert all(each.wait(30) for each in began[: number + 1 + count])
            assert not any(each.is_set() for each in began[number + 1 + count :])


def test_a_single_call_needs_no_thread() -> None:
    """It is the caller's own."""
    assert list(read_ahead([threading.current_thread], 1, "t")) == [threading.current_thread()]
    assert list(read_ahead([], 1, "t")) == []


def test_an_error_comes_in_its_turn() -> None:
    """After the results before it; leaving early waits for the call under way and makes no other."""
    calls: list[int] = []

    def call(number: int) -> int:
        calls.append(number)
        if number == 1:
            raise NotFoundError("gone")
        return number

    results = read_ahead([partial(call, number) for number in range(3)], 1, "t")
    assert next(results) == 0
    with pytest.raises(NotFoundError, match="gone"):
        next(results)
    calls.clear()
    results = read_ahead([partial(call, number) for number in (0, 2, 3)], 1, "t")
    assert next(results) == 0
    results.close()
    assert calls in ([0], [0, 2])


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 120))
def test_what_is_ahead_weighs_no_more_than_the_limit(weights: list[int], most: int) -> None:
    """What is in use counts with it; the next one may always come, and as many are begun as fit."""
    begun: list[int] = []

    def at_once(call: Callable[[], None], /) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call())
        return done

    ahead = ReadAhead([(each, partial(begun.append, number)) for number, each in enumerate(weights)], most)
    ahead.run(at_once)
    for taken in range(len(weights)):
        in_use = weights[taken - 1] if taken else 0
        held = in_use + sum(weights[taken : len(begun)])
        assert len(begun) <= taken + (not taken) or held <= most
        assert len(begun) == len(weights) or held + weights[len(begun)] > most
        ahead.take()
        assert len(begun) > taken
    assert not ahead


def test_without_threads_a_call_is_made_when_its_result_is_taken() -> None:
    made: list[int] = []
    ahead = ReadAhead([(1, partial(made.append, number)) for number in range(3)])
    assert made == []
    ahead.take()
    assert made == [0]
    ahead.close()
    assert not ahead


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_error_in_order_is_raised_when_all_have_ended(threads: int) -> None:
    """Although a later call failed first; nothing that has not begun runs after it."""
    under_way, failed = threading.Semaphore(0), threading.Event()

    def first() -> None:
        if threads > 1:
            assert failed.wait(30)
        raise NotFoundError("first")

    def second() -> None:
        failed.set()
        raise NotFoundError("second")

    with pytest.raises(NotFoundError, match="first"):
        gather([first, second, under_way.release], threads, "t")
    assert not [each for each in threading.enumerate() if each.name.startswith("t_")]


def test_a_walk_that_ends_early_begins_nothing_more() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def call(number: int) -> int:
        begun.append(number)
        assert number == 0 or gate.wait(30)
        return number

    with closing(in_order([partial(call, number) for number in range(50)], 2, "t")) as results:
        assert next(results) == 0
        gate.set()
    assert len(begun) < 50 or begun == sorted(begun)
    assert not [each for each in threading.enumerate() if each.name.startswith("t_")]


def test_both_end_before_either_error_is_raised() -> None:
    ended = threading.Event()

    def fails() -> None:
        raise NotFoundError("first")

    with pytest.raises(NotFoundError, match="first"):
        both(fails, ended.set, 2)
    assert ended.is_set()
    assert both(lambda: 1, lambda: 2, 1) == (1, 2)


class Locked:
    def __init__(self) -> None:
        self.renew()
        after_fork(self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()


def test_a_forked_child_renews_what_lives() -> None:
    """A lock that another thread held in the moment of the fork is free in the child; one that was dropped
    is not kept for it.
    """
    held, dropped = Locked(), Locked()
    gone = weakref.ref(dropped)
    del dropped
    gc.collect()
    assert gone() is None
    taken, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with held.lock:
            taken.set()
            assert leave.wait(30)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert taken.wait(30)
        child = os.fork()
        if child == 0:
            os._exit(0 if held.lock.acquire(timeout=5) else 1)
        leave.set()
        holding.result()
    assert os.waitpid(child, 0)[1] == 0
