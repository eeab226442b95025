"""Writing behind the encoder: order, errors, and no thread left."""

from __future__ import annotations

import itertools
import threading

import pytest

from dstl_dagster.upload.sinks import Piece
from dstl_dagster.upload.write_behind import ActiveUploads, write_behind


def _pieces(count: int) -> list[Piece]:
    return [Piece(b"%d" % number, number) for number in range(count)]


def _always() -> bool:
    return True


@pytest.mark.parametrize("helps", ["always", "never", "at times"])
def test_pieces_are_written_in_order(helps: str) -> None:
    """Everything given, and on one other thread while that helps, which is gone after the block."""
    written: list[Piece] = []
    threads: set[threading.Thread] = set()
    before = set(threading.enumerate())
    answers = itertools.cycle({"always": [True], "never": [False], "at times": [True, True, False]}[helps])

    def write(piece: Piece) -> None:
        threads.add(threading.current_thread())
        written.append(piece)

    with write_behind(write, lambda: next(answers)) as give:
        for piece in _pieces(100):
            give(piece)
    assert written == _pieces(100)
    assert set(threading.enumerate()) <= before
    assert len(threads) == (2 if helps == "at times" else 1)
    assert (threading.current_thread() in threads) == (helps != "always")


@pytest.mark.parametrize("then_helps", [True, False])
@pytest.mark.parametrize("pieces_after", [0, 50])
def test_an_error_reaches_who_gives_the_pieces(pieces_after: int, then_helps: bool) -> None:
    """By the next piece or on leaving; nothing is written after it, nobody blocks, no thread is left."""
    written: list[Piece] = []
    before = set(threading.enumerate())
    answers = itertools.chain([True] * 4, itertools.repeat(then_helps))

    def write(piece: Piece) -> None:
        if len(written) == 3:
            raise OSError("the disk is full")
        written.append(piece)

    def give_all() -> None:
        with write_behind(write, lambda: next(answers)) as give:
            for piece in _pieces(4 + pieces_after):
                give(piece)

    with pytest.raises(OSError, match="full"):
        give_all()
    assert written == _pieces(3)
    assert set(threading.enumerate()) <= before


def test_an_error_of_the_encoder_waits_for_the_thread() -> None:
    """What was given is written before the error goes on: the sink is aborted by one thread at a time."""
    written: list[Piece] = []

    def give_and_fail() -> None:
        with write_behind(written.append, _always) as give:
            give(_pieces(1)[0])
            raise ValueError("cannot be encoded")

    with pytest.raises(ValueError, match="encoded"):
        give_and_fail()
    assert written == _pieces(1)


def test_a_second_thread_needs_a_core_of_its_own() -> None:
    """Uploads take two cores each only while there are two for each."""
    active = ActiveUploads(cores=4)
    with active.one_more(), active.one_more():
        assert active.leave_cores()
        with active.one_more():
            assert not active.leave_cores()
        assert active.leave_cores()
    lonely = ActiveUploads(cores=1)
    with lonely.one_more():
        assert not lonely.leave_cores()
