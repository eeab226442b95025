"""A command that takes long says that it is alive, and how far it is."""

from __future__ import annotations

import threading
from itertools import islice

import click
from click.testing import CliRunner

from dstl_dagster.cli import main, options
from dstl_dagster.cli.options import Working, moments, progress_of
from dstl_dagster.storage import NO_COST, Cost, LocalObjectStore
from dstl_dagster.storage.accounting.cost import Operation


def test_a_person_hears_after_two_seconds_and_a_log_after_thirty():
    assert list(islice(moments(at_terminal=True), 5)) == [2.0, 5.0, 10.0, 20.0, 30.0]
    assert list(islice(moments(at_terminal=False), 2)) == [30.0, 60.0]


def told(readings: list[Cost], seconds: list[float], done: int | None = None) -> str:
    """What a command prints that has requested so much at each of these moments, and has done some checks."""
    now = 100.0
    reading = iter(readings)

    def wait(ended: threading.Event, timeout: float) -> bool:
        nonlocal now
        now += timeout
        return ended.is_set()

    @click.command()
    def command() -> None:
        working = Working(lambda: next(reading), iter(seconds), clock=lambda: now, wait=wait)
        click.get_current_context().meta[options._WORKING] = working
        if done is not None:
            progress_of("checks")(done, 100)
        working.start()
        working._thread.join()
        working.stop()

    return CliRunner().invoke(command).output


def test_a_line_tells_requests_and_bytes():
    some = Cost(class_b=1_200, bytes_down=3 << 20)
    more = some + Cost.of(Operation.INSERT, bytes_up=2048)
    assert told([some, more], [2.0, 5.0]).splitlines() == [
        "... 2 s, 1,200 requests, 3 MiB read",
        "... 5 s, 1,201 requests, 3 MiB read, 2 KiB written",
    ]


def test_a_line_tells_how_much_is_done():
    assert told([Cost.of(Operation.STAT)], [2.0], done=20) == "... 2 s, 1 request, 20 of 100 checks\n"


def test_nothing_is_printed_while_a_command_waits_for_an_answer():
    one = Cost.of(Operation.STAT)
    assert told([NO_COST, one, one, one], [2.0, 5.0, 10.0, 20.0]) == "... 5 s, 1 request\n"


def test_the_thread_ends_with_the_command(tmp_path):
    """Nor does a quick command print anything of the kind."""
    LocalObjectStore(tmp_path)
    result = CliRunner().invoke(main, ["jobs", "list", "--store", tmp_path.as_uri()])
    assert result.exit_code == 0
    assert "..." not in result.output
    assert not [each for each in threading.enumerate() if each.name == "dstl-working"]
