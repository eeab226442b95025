"""Writing behind the encoder: order, errors, and no thread left."""

from __future__ import annotations

import threading

import pytest

from dstl_dagster.upload.sinks import WriteBehind


def test_pieces_are_written_in_order() -> None:
    """Everything given is written, in order, before `finish` returns; the thread is gone then."""
    written: list[bytes] = []
    before = set(threading.enumerate())
    behind = WriteBehind(lambda piece: written.append(bytes(piece)), "behind")
    pieces = [b"%d" % number for number in range(100)]
    for piece in pieces:
        behind.write(piece)
    behind.finish()
    behind.abort()
    assert written == pieces
    assert set(threading.enumerate()) == before


def test_an_error_reaches_who_gives_the_pieces() -> None:
    """After an error nothing more is written, nobody blocks, and `finish` raises it."""
    written: list[bytes] = []

    def write(piece: bytes | memoryview) -> None:
        if len(written) == 3:
            raise OSError("the disk is full")
        written.append(bytes(piece))

    behind = WriteBehind(write, "behind")

    def give_and_finish() -> None:
        for _ in range(50):
            behind.write(b"x")
        behind.finish()

    with pytest.raises(OSError, match="full"):
        give_and_finish()
    behind.abort()
    assert len(written) == 3
