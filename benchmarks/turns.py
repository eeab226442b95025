"""Contenders in turns within one run: seconds, and CPU of this process and all its descendants.

Owns the turns, the counting of CPU and how runs are printed. Does not own what runs.

CPU is read from `/proc`, in its hundredths of a second: the driver, the JVM that it started, and the JVM's
Python workers. On a machine with other work it says more than seconds do. The first turns only warm up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

__all__ = ["Run", "cpu_seconds", "in_turns", "measured", "own_processes", "ratios", "told"]

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """What one run took: seconds by the clock, and of CPU."""

    seconds: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f}/{self.cpu:.2f}"


def own_processes() -> dict[int, list[str]]:
    """This process and its descendants: the fields of `/proc/<pid>/stat` after the program's name."""
    fields: dict[int, list[str]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it ended just now
                # The name of the program, in parentheses, may hold anything.
                fields[int(path.name)] = (path / "stat").read_text().rpartition(")")[2].split()
    own, found = os.getpid(), {}
    for process in fields:
        ancestor = process
        while ancestor not in (own, 0):
            ancestor = int(fields[ancestor][1]) if ancestor in fields else 0
        if ancestor == own:
            found[process] = fields[process]
    return found


def cpu_seconds() -> float:
    """CPU seconds so far of this process and its descendants, those included that have ended."""
    return sum(sum(map(int, each[11:15])) for each in own_processes().values()) / _TICKS_A_SECOND


def measured(run: Callable[[], object]) -> Run:
    """What one call took."""
    cpu, began = cpu_seconds(), time.monotonic()
    run()
    return Run(time.monotonic() - began, cpu_seconds() - cpu)


def in_turns(
    contenders: Mapping[str, Callable[[], object]], rounds: int, *, warm_ups: int = 1
) -> dict[str, list[Run]]:
    """The runs of each contender. The order turns round: each comes first equally often."""
    found: dict[str, list[Run]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(warm_ups + rounds):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            run = measured(contenders[name])
            if turn >= warm_ups:
                found[name].append(run)
    return found


def told(runs: Mapping[str, Sequence[Run]]) -> None:
    """Print each contender's medians and all its runs, as seconds/CPU seconds."""
    for name, each in runs.items():
        seconds, cpu = median(run.seconds for run in each), median(run.cpu for run in each)
        every = " ".join(map(str, each))
        print(f"{name:44} {seconds:7.2f} s {cpu:7.2f} s of CPU   ({every})", flush=True)


def ratios(runs: Mapping[str, Sequence[Run]], one: str, other: str, aim: str) -> None:
    """Print the ratios of two contenders' runs of the same turn, by seconds and by CPU, beside the aim."""
    pairs = list(zip(runs[one], runs[other], strict=True))
    clock = [mine.seconds / theirs.seconds for mine, theirs in pairs]
    cpu = [mine.cpu / max(theirs.cpu, 0.01) for mine, theirs in pairs]
    print(
        f"{one} / {other}: {median(clock):.2f} ({min(clock):.2f} to {max(clock):.2f}); "
        f"of CPU {median(cpu):.2f} ({min(cpu):.2f} to {max(cpu):.2f}); aim {aim}",
        flush=True,
    )
