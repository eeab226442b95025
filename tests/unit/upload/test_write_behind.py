"""Writing behind the encoder: order, errors, and no thread left."""

from __future__ import annotations

import threading

import pytest

from dstl_dagster.upload.sinks import Piece
from dstl_dagster.upload.write_behind import ActiveUploads, WriteBehind


def _pieces(count: int) -> list[Piece]:
    return [Piece(b"%d" % number, number) for number in range(count)]


@pytest.mark.parametrize("helps", ["always", "never", "at times"])
def test_pieces_are_written_in_order(helps: str) -> None:
    """Everything given is written, in order, before `finish` returns; the thread is gone then."""
    written: list[Piece] = []
    threads: set[threading.Thread] = set()
    before = set(threading.enumerate())
    answers = iter({"always": [True], "never": [False], "at times": [True, True, False]}[helps] * 300)

    def write(piece: Piece) -> None:
        threads.add(threading.current_thread())
        written.append(piece)

    behind = WriteBehind(write, lambda: next(answers))
    for piece in _pieces(100):
        behind.write(piece)
    behind.finish()
    behind.abort()
    assert written == _pieces(100)
    assert set(threading.enumerate()) <= before
    assert (threading.current_thread() in threads) == (helps != "always")
    assert len(threads) == (2 if helps == "at times" else 1)


@pytest.mark.parametrize("then_helps", [True, False])
def test_an_error_reaches_who_gives_the_pieces(then_helps: bool) -> None:
    """After an error nothing more is written, nobody blocks, and `finish` raises it."""
    written: list[Piece] = []
    answers = iter([True] * 4 + [then_helps] * 100)

    def write(piece: Piece) -> None:
        if len(written) == 3:
            raise OSError("the disk is full")
        written.append(piece)

    behind = WriteBehind(write, lambda: next(answers))

    def give_and_finish() -> None:
        for piece in _pieces(50):
            behind.write(piece)
        behind.finish()

    with pytest.raises(OSError, match="full"):
        give_and_finish()
    behind.abort()
    with pytest.raises(OSError, match="full"):
        behind.finish()
    assert written == _pieces(3)


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
