"""Runs the simulation from a shell: one point or seed with its trace, all points, or any number of seeds.

    python -m tests.simulated --seed 17
    python -m tests.simulated --point ops:3:5:lost_answer
    python -m tests.simulated --sweep
    python -m tests.simulated --duels
    python -m tests.simulated --runs 200000

Exits with 1 if a run ended wrong, after printing what was wrong and how to replay it. Owns the command line.
Does not own the runs (`campaign`).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence

from dstl_dagster.testing.fault_schedules import Fault, Request
from tests.simulated.campaign import (
    Tally,
    play_duel,
    play_duels,
    play_point,
    play_seed,
    play_seeds,
    sweep,
)
from tests.simulated.duels import DUELS
from tests.simulated.histories import HISTORIES
from tests.simulated.points import Duel, Point

_COMMAND = "python -m tests.simulated"
_SECONDS_BETWEEN_LINES = 15.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    asked = _parser().parse_args(arguments)
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # the job would only warn of the faults injected here
    try:
        return _run(asked)
    finally:
        logging.disable(before)


def _run(asked: argparse.Namespace) -> int:
    if (asked.point, asked.duel, asked.seed) != (None, None, None):
        return _replay(asked)
    began = time.monotonic()
    progress = _progress(began)
    if asked.sweep is not None:
        tally = sweep(asked.sweep or sorted(HISTORIES), asked.jobs, progress)
    elif asked.duels is not None:
        tally = play_duels(asked.duels or sorted(DUELS), asked.jobs, progress)
    else:
        tally = play_seeds(range(asked.first, asked.first + asked.runs), asked.jobs, progress)
    print(_line(tally, time.monotonic() - began))
    for failure in tally.failures[: asked.show]:
        print(f"\n{_COMMAND} {failure.replay}")
        print("\n".join(f"    {line}" for line in failure.wrong))
    return 1 if tally.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_COMMAND, description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="replay one seed")
    what.add_argument("--point", type=Point.parse, help="replay one point of a history")
    what.add_argument("--duel", type=Duel.parse, help="replay one duel")
    what.add_argument("--duels", nargs="*", metavar="DUEL", choices=sorted(DUELS), help="every duel")
    what.add_argument("--sweep", nargs="*", metavar="HISTORY", choices=sorted(HISTORIES), help="every point")
    what.add_argument("--runs", type=int, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed of --runs (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="concurrent processes")
    parser.add_argument("--show", type=int, default=10, help="failures to print (10)")
    parser.add_argument("--trace", action="store_true", help="print the trace even if all is well")
    return parser


def _replay(asked: argparse.Namespace) -> int:
    lines: list[str] = []

    def trace(process: str, request: Request, fault: Fault | None) -> None:
        harm = "" if fault is None else f"   <- {fault.value}"
        lines.append(f"{process:40} {request.index:4} {request.method:9} {request.name}{harm}")

    if asked.point is not None:
        wrong = play_point(asked.point, trace=trace, tell=lines.append)
    elif asked.duel is not None:
        wrong = play_duel(asked.duel, trace=trace, tell=lines.append)
    else:
        _what, wrong = play_seed(asked.seed, trace=trace, tell=lines.append)
    if wrong or asked.trace:
        print("\n".join(lines))
    print("\n".join(f"WRONG: {line}" for line in wrong) if wrong else "all is well")
    return 1 if wrong else 0


def _progress(began: float) -> Callable[[Tally], None]:
    printed = began

    def progress(tally: Tally) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed >= _SECONDS_BETWEEN_LINES:
            printed = now
            print(_line(tally, now - began), file=sys.stderr, flush=True)

    return progress


def _line(tally: Tally, seconds: float) -> str:
    wrong = len(tally.failures)
    return f"{tally.runs} runs, {len(tally.distinct)} distinct, {wrong} wrong, {seconds:.0f} seconds"


if __name__ == "__main__":
    sys.exit(main())
