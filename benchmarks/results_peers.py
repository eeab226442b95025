"""10,000 upserts, and full reads between them, by this package and its peers in turns.

Owns the turns, the sizes and everybody's limit of time. Does not own what a peer does (`peers`).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from conditions import conditions
from peers import ENVIRONMENT, PACKAGES, PEERS, served
from results_page import Curve, Plot, Point
from served import Served

__all__ = ["Taken", "in_turns", "upserts"]

NAMES: Final = {
    "ours": "dstl-dagster",
    "ours-synced": "dstl-dagster, synced",
    "parquet": "rewriting the table (Parquet)",
    "delta": "Delta (delta-rs)",
    "iceberg": "Iceberg (pyiceberg)",
    "lance": "Lance",
    "rocksdb": "RocksDB (rocksdict)",
    "slatedb": "SlateDB",
}
LARGE: Final = ("ours", "parquet")
"""Who is measured with ten million rows."""
READS: Final = 3
assert set(NAMES) == set(PEERS)


@dataclass
class Taken:
    """What one of them took: seconds and bytes of each upsert, seconds of the reads after so many upserts."""

    seconds: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)
    reads: dict[int, list[float]] = field(default_factory=dict)
    lost: str = ""


class Contender:
    """One of them at work. Once it has spent its time it is not asked again: it has shorter curves."""

    def __init__(self, name: str, row_count: int, limit_seconds: float) -> None:
        self.taken = Taken()
        self._left_seconds = limit_seconds
        try:
            self._served: Served | None = served(name, row_count, patience_seconds=4 * limit_seconds)
        except OSError as error:
            self._served, self.taken.lost = None, f"cannot be started ({error.strerror})"

    def _ask(self, command: str, number: int) -> list[float] | None:
        if self._served is None or self._left_seconds <= 0:
            return None
        began = time.monotonic()
        found = self._served.ask(command, number)
        self._left_seconds -= time.monotonic() - began
        return found

    def upsert(self, number: int) -> None:
        found = self._ask("upsert", number)
        if found is not None:
            self.taken.seconds.append(found[0])
            self.taken.bytes.append(found[2])

    def read(self, length: int) -> None:
        """After so many upserts, unless it fell behind."""
        if len(self.taken.seconds) == length:
            reads = [self._ask("read", number) for number in range(READS)]
            self.taken.reads[length] = [each[0] for each in reads if each is not None]

    def end(self) -> Taken:
        if self._served is not None:
            self._served.end()
            self.taken.lost = self._served.lost
        return self.taken


def in_turns(
    names: Sequence[str], row_count: int, lengths: Sequence[int], limit_seconds: float
) -> dict[str, Taken]:
    """Each round one after another, with the same keys; all rows are read after each of these lengths."""
    contenders = {name: Contender(name, row_count, limit_seconds) for name in names}
    done = 0
    for length in lengths:
        for number in range(done + 1, length + 1):
            for contender in contenders.values():
                contender.upsert(number)
        done = length
        for contender in contenders.values():
            contender.read(length)
    return {name: contender.end() for name, contender in contenders.items()}


def versions() -> str:
    """Of the peers that are installed."""
    program = (
        "import sys; from importlib.metadata import version, PackageNotFoundError\n"
        "for name in sys.argv[1:]:\n"
        "  try: print(name, version(name))\n"
        "  except PackageNotFoundError: pass"
    )
    names = [package.partition("[")[0] for package in PACKAGES.values()]
    command = [str(ENVIRONMENT / "bin" / "python"), "-c", program, *names]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "no peers installed"
    return ", ".join(told.split("\n")[:-1])


def curves(found: Mapping[str, Mapping[int, Sequence[float]]]) -> list[Curve]:
    """By name, then by size; who has nothing has no curve."""
    return [
        Curve(NAMES[name], [Point(size, values) for size, values in sorted(sizes.items()) if values])
        for name, sizes in found.items()
        if any(sizes.values())
    ]


def upserts(quick: bool, alone: Curve) -> Iterator[Plot]:
    """Against the size of the state, and a read against how many there were since the table was written.

    `alone`: reads of a log that is never folded, which stands beside the others.
    """
    sizes = (20_000, 50_000) if quick else (10**5, 10**6)
    lengths, limit_seconds = ((0, 2), 10.0) if quick else ((0, 5, 10, 20, 40), 30.0)
    told = f"{conditions('pyarrow')}; {versions()}; in turns, not synced where it does not say so."
    small = in_turns(list(NAMES), sizes[0], (0, 2 if quick else 10), limit_seconds / 3)
    whole = in_turns(list(NAMES), sizes[1], lengths, limit_seconds)
    large = {} if quick else in_turns(LARGE, 10**7, (0, 5), 60.0)
    runs = dict(zip((*sizes, 10**7), (small, whole, large), strict=True))
    # A peer that failed half-way is reported as missing, and has no numbers.
    missing = [f"{NAMES[name]}: {whole[name].lost}" for name in NAMES if whole[name].lost]
    names = [name for name in NAMES if not whole[name].lost]

    def by_size(measure: str, unit: float) -> list[Curve]:
        return curves(
            {
                name: {
                    size: [each / unit for each in getattr(run[name], measure)]
                    for size, run in runs.items()
                    if name in run and not run[name].lost
                }
                for name in names
            }
        )

    title, across = "A checkpoint, or commit, of 10,000 changes", "rows of the state"
    rest = {"told": told, "missing": missing}
    yield Plot("results-state-seconds", title, across, "seconds", by_size("seconds", 1), **rest)
    yield Plot("results-state-bytes", title, across, "KiB written", by_size("bytes", 1024), **rest)
    reads = [*curves({name: whole[name].reads for name in names}), alone]
    yield Plot(
        "results-log",
        f"Reading {sizes[1]:,} rows",
        "upserts of 10,000 rows before",
        "seconds",
        reads,
        f"{told} Tables as Arrow; RocksDB and SlateDB as keys and values, as their clients have them.",
        missing,
    )
