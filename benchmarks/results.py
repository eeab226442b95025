"""Four curves, each beside what one would do instead, as a page with a plot each.

    pip install matplotlib && python benchmarks/results.py [--quick] [--rounds N]

state     a checkpoint of 10,000 changes against the size of the state; beside it, the table as Parquet, anew
commit    a commit against the number of components, each answer 50 ms late; beside it, upstream's chain
log       reading all rows against the length of the log on a base; beside it, Parquet with the same rows
history   requests of a new process, and names that it lists, against the number of checkpoints before it

Writes `benchmarks/RESULTS.md` and its plots in `docs/images/`. On a local folder without fsync; median of the
rounds, and their range. `--quick` takes small sizes and writes nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
from checkpoint import (
    OPERATOR,
    begin,
    changed_keys,
    checkpoint,
    coordinator_on,
    measure_history,
    rows,
    whole_state,
)
from conditions import conditions
from folders import fresh_folder
from recoverable import ANSWER_SECONDS, measure_commits

from dstl_dagster.checkpoint import materialize
from dstl_dagster.keyed import KeyedState
from dstl_dagster.storage import LocalObjectStore

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "RESULTS.md"
IMAGES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Point:
    """One size: the values of each round."""

    size: int
    values: Sequence[float]

    def told(self) -> str:
        """Median, and range if there is one."""
        least, most = min(self.values), max(self.values)
        middle = f"{median(self.values):.4g}"
        return middle if least == most else f"{middle} ({least:.3g} to {most:.3g})"


@dataclass(frozen=True)
class Curve:
    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Plot:
    """Curves over the same sizes."""

    file: str
    title: str
    across: str
    up: str
    curves: Sequence[Curve]


def seconds_of(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def state_size(row_counts: Sequence[int], rounds: int) -> Iterator[Plot]:
    """Folds included: each checkpoint may fold a slice."""
    seconds: dict[str, list[Point]] = {"checkpoint": [], "Parquet, written anew": []}
    sizes: dict[str, list[Point]] = {"checkpoint": [], "Parquet, written anew": []}
    for row_count in row_counts:
        with fresh_folder() as root:
            coordinator = coordinator_on(LocalObjectStore(root / "store", durable=False))
            begin(coordinator, row_count)
            table, path = whole_state(row_count), root / "rows.parquet"
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in seconds}
            for number in range(1, rounds + 1):
                before, changed = folder_bytes(root / "store"), rows(changed_keys(number), number)
                mine = seconds_of(partial(checkpoint, coordinator, changed))
                taken["checkpoint"].append((mine, folder_bytes(root / "store") - before))
                anew = seconds_of(partial(pq.write_table, table, path, compression="zstd"))
                taken["Parquet, written anew"].append((anew, path.stat().st_size))
            for name, each in taken.items():
                seconds[name].append(Point(row_count, [one for one, _ in each]))
                sizes[name].append(Point(row_count, [one / 1024 for _, one in each]))
    across = "rows of the state"
    title = "A checkpoint of 10,000 changes"
    yield Plot("results-state-seconds", title, across, "seconds", [Curve(*each) for each in seconds.items()])
    yield Plot("results-state-bytes", title, across, "KiB written", [Curve(*each) for each in sizes.items()])


def commit(counts: Sequence[int], rounds: int) -> Iterator[Plot]:
    found = [measure_commits(list(counts)) for _ in range(rounds)]
    curves = [
        Curve(
            name,
            [Point(count, [run[at][key]["seconds"] for run in found]) for at, count in enumerate(counts)],
        )
        for name, key in (("commit", "ours"), ("upstream's algorithm", "upstream"))
    ]
    late = f"seconds, each answer {ANSWER_SECONDS * 1000:.0f} ms late"
    yield Plot("results-commit", "Composing one file", "components", late, curves)


def log_length(row_count: int, lengths: Sequence[int], rounds: int) -> Iterator[Plot]:
    """A base, then checkpoints of 10,000 changes that nothing folds."""
    mine, parquet = [], []
    with fresh_folder() as root:
        store = LocalObjectStore(root / "store", durable=False)
        coordinator = coordinator_on(store, materialize=False)
        begin(coordinator, row_count)
        materialize(coordinator, force=True)
        pq.write_table(whole_state(row_count), root / "rows.parquet", compression="zstd")

        def read_all() -> None:
            latest = coordinator.latest()
            assert latest is not None
            state = KeyedState.of(store, latest.manifest, OPERATOR)
            assert state is not None
            assert sum(table.num_rows for table in state.tables()) == row_count

        written = 0
        for length in lengths:
            while written < length:
                written += 1
                checkpoint(coordinator, rows(changed_keys(written), written))
            mine.append(Point(length, [seconds_of(read_all) for _ in range(rounds)]))
            read = [
                seconds_of(lambda: pq.read_table(root / "rows.parquet", use_threads=False))
                for _ in range(rounds)
            ]
            parquet.append(Point(length, read))
    curves = [Curve("base and log", mine), Curve("Parquet, one thread", parquet)]
    yield Plot(
        "results-log",
        f"Reading {row_count:,} rows",
        "checkpoints of 10,000 changes in the log",
        "seconds",
        curves,
    )


def history(counts: Sequence[int]) -> Iterator[Plot]:
    """Counts are exact: one round."""
    found = measure_history(list(counts))
    requests = [Point(row["checkpoints"], [sum(row["first look"]["requests"].values())]) for row in found]
    names = [Point(row["checkpoints"], [row["names_listed"]]) for row in found]
    curves = [Curve("requests until the tail is known", requests), Curve("names listed", names)]
    yield Plot("results-history", "A new process looks at a job", "checkpoints before", "count", curves)


def draw(plot: Plot) -> None:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = plot.file  # the same numbers give the same file
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for curve in plot.curves:
        sizes = [point.size for point in curve.points]
        middle = [median(point.values) for point in curve.points]
        axes.plot(sizes, middle, marker="o", label=curve.name)
        axes.fill_between(
            sizes, [min(p.values) for p in curve.points], [max(p.values) for p in curve.points], alpha=0.2
        )
    axes.set(title=plot.title, xlabel=plot.across, ylabel=plot.up)
    if min(point.size for point in plot.curves[0].points) > 0:
        axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend()
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(IMAGES / f"{plot.file}.svg", metadata={"Date": None})


def section(plot: Plot) -> str:
    heading = f"## {plot.title}: {plot.up}\n\n![{plot.title}](../docs/images/{plot.file}.svg)\n\n"
    names = " | ".join(curve.name for curve in plot.curves)
    lines = [f"| {plot.across} | {names} |", "|" + "---|" * (len(plot.curves) + 1)]
    for at, point in enumerate(plot.curves[0].points):
        values = " | ".join(curve.points[at].told() for curve in plot.curves)
        lines.append(f"| {point.size:,} | {values} |")
    return heading + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes; writes nothing")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    quick, rounds = arguments.quick, 2 if arguments.quick else arguments.rounds
    # What it ran on is read first: the benchmark itself is most of the load afterwards.
    told = conditions("pyarrow", "numpy")
    plots = [
        *state_size([100_000, 200_000] if quick else [10**5, 10**6, 10**7], rounds),
        *commit([4, 40] if quick else [8, 32, 128, 512], 1 if quick else 3),
        *log_length(100_000 if quick else 10**6, [0, 2] if quick else [0, 5, 10, 20, 40], rounds),
        *history([10, 100] if quick else [10, 100, 1_000, 10_000]),
    ]
    page = "\n".join(
        [
            "# Results",
            "",
            "Written by `python benchmarks/results.py`; its head says what is measured. Medians; in brackets",
            f"the range of the rounds ({rounds}; commits 3; history 1).",
            "",
            told,
            "",
            *map(section, plots),
        ]
    )
    print(page)
    if not quick:
        for plot in plots:
            draw(plot)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
