"""What grows with what, beside what one would do instead, as a page with a plot each, in one command.

    pip install matplotlib
    python benchmarks/peers.py --install     once: Delta, Iceberg, Lance, RocksDB and SlateDB, on their own
    python benchmarks/flink/jars.py          once: Flink's jars; a JDK compiles against them
    python benchmarks/results.py [--quick] [--only PART ...]

peers     10,000 upserts against the size of the state, and reading all rows against the upserts before: this
          package, the table as Parquet written anew, and each peer that is installed, in turns
levels    bytes and CPU of a checkpoint against the size of the state, of keys that repeat and of spread ones;
          one partition of a table beside a Parquet file of its own
large     the first of these up to 10^8 rows: ten minutes more and 8 GiB, so only if it is named
commit    a commit against the number of components, each answer 50 ms late; beside it, Flink's algorithm
history   requests of a new process, and names that it lists, against the number of checkpoints before it
spark     a micro-batch against the number of keys, beside Spark's state store; files, beside its file sink
pace      NEXMark beside Spark's stateful operators; a small merge, the sink, a session's first runs and a
          day's job beside Parquet
flink     a log appended, persisted and read back, beside Flink's jar

Writes `benchmarks/RESULTS.md`, its plots in `docs/images/`, and the numbers that `docs/comparison.md` quotes.
A peer that is not installed, fails or takes too long stands on the page with the reason. What a run does
not measure, by `--only` or because it cannot, stays as it was; each section says where it was measured. Local
folders, not synced where it does not say so; at most twenty minutes on two quiet cores. `--quick` takes small
sizes, writes nothing, and ends within five minutes, also beside other work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint import CHANGES, OPERATOR, begin, checkpoint, coordinator_on, measure_history, rows
from conditions import conditions
from folders import fresh_folder
from levels import measure
from recoverable import ANSWER_SECONDS, measure_commits
from results_page import Curve, Plot, Point, draw, page_of, with_quotes
from table_partition import measure_partition

from dstl_dagster.checkpoint import materialize
from dstl_dagster.keyed import KeyedState
from dstl_dagster.storage import LocalObjectStore

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "RESULTS.md"
COMPARISON = ROOT / "docs" / "comparison.md"
IMAGES = ROOT / "docs" / "images"


class NotHereError(Exception):
    """A part cannot be measured on this machine; the text says who and why."""


def seconds_of(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def unfolded_log(row_count: int, lengths: Sequence[int], rounds: int) -> Curve:
    """All rows read from a base and a log that nothing folds."""
    points = []
    with fresh_folder() as root:
        store = LocalObjectStore(root / "store", durable=False)
        coordinator = coordinator_on(store, materialize=False)
        begin(coordinator, row_count)
        materialize(coordinator, force=True)

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
                keys = np.random.default_rng(100 + written).choice(row_count, CHANGES, replace=False)
                checkpoint(coordinator, rows(keys.astype(np.int64), written))
            points.append(Point(length, [seconds_of(read_all) for _ in range(rounds)]))
    return Curve("dstl-dagster, nothing folded", points)


def peers(quick: bool) -> Iterator[Plot]:
    from results_peers import upserts

    row_count, lengths = (50_000, (0, 2)) if quick else (10**6, (0, 5, 10, 20, 40))
    yield from upserts(quick, unfolded_log(row_count, lengths, 5))


def levels(quick: bool) -> Iterator[Plot]:
    sizes, checkpoints = ([10**5], 10) if quick else ([10**5, 10**6, 10**7], 200)
    yield from plots_of_levels(sizes, checkpoints)
    yield partitions((20,) if quick else (100, 1_000), 1_000 if quick else 10_000, 1 if quick else 9)


def large(quick: bool) -> Iterator[Plot]:
    if quick:
        raise NotHereError("10^8 rows take ten minutes and 8 GiB")
    yield from plots_of_levels([10**5, 10**6, 10**7, 10**8], 200)


def partitions(counts: Sequence[int], row_count: int, rounds: int) -> Plot:
    """One of so many, each of so many rows."""
    found = {each: measure_partition(each, row_count, rounds) for each in counts}
    names = {"ours": "dstl-dagster", "Parquet": "a Parquet file for each partition"}
    curves = [
        Curve(
            f"{act}: {name}",
            [Point(each, [run.seconds for run in runs[f"{act}, {who}"]]) for each, runs in found.items()],
        )
        for act in ("load", "replace")
        for who, name in names.items()
    ]
    told = (
        f"{conditions('pyarrow')}; in turns, not synced, runs merged. Of a load of ours most is planning "
        "and opening; a replacement of ours is a whole checkpoint."
    )
    title = f"One partition of {row_count:,} rows in a table"
    return Plot("results-partition", title, "partitions of the table", "seconds", curves, told)


def plots_of_levels(sizes: Sequence[int], checkpoints: int) -> Iterator[Plot]:
    """What `measure` says of each size."""
    found = {kind: [measure(kind, size, checkpoints) for size in sizes] for kind in ("same", "spread")}
    said = {"same": "of the same 100,000 keys", "spread": "of keys spread over the state"}
    title = "Changing 10,000 rows in levels"
    told = f"{conditions('numpy')}; {checkpoints} checkpoints, not synced."

    def curve(kind: str, value: Callable[[Mapping[str, Any]], float]) -> Curve:
        return Curve(said[kind], [Point(each["rows"], [value(each)]) for each in found[kind]])

    kib = [curve(kind, lambda each: each["written_kb"] / 1.024) for kind in found]
    seconds = [curve(kind, lambda each: each["total_seconds"] / each["checkpoints"]) for kind in found]
    across = "rows of the state"
    yield Plot("results-levels-bytes", title, across, "KiB written, mean", kib, told)
    yield Plot("results-levels-seconds", title, across, "seconds of CPU, mean", seconds, told)


def commit(quick: bool) -> Iterator[Plot]:
    counts = [4, 40] if quick else [8, 32, 128, 512]
    # Flink's algorithm takes half a minute for 512, nearly all of it answers that are 50 ms late.
    found = [measure_commits(counts[:-1] if number else counts) for number in range(1 if quick else 3)]
    curves = [
        Curve(
            name,
            [
                Point(count, [run[at][key]["seconds"] for run in found if at < len(run)])
                for at, count in enumerate(counts)
            ],
        )
        for name, key in (("dstl-dagster", "ours"), ("Flink's algorithm", "upstream"))
    ]
    late = f"seconds, each answer {ANSWER_SECONDS * 1000:.0f} ms late"
    told = f"{conditions('google-cloud-storage')}; the strict server."
    yield Plot("results-commit", "Composing one file", "components", late, curves, told)


def history(quick: bool) -> Iterator[Plot]:
    """Counts are exact: one round."""
    found = measure_history([10, 100] if quick else [10, 100, 1_000, 10_000])
    requests = [Point(row["checkpoints"], [sum(row["first look"]["requests"].values())]) for row in found]
    names = [Point(row["checkpoints"], [row["names_listed"]]) for row in found]
    curves = [Curve("requests until the tail is known", requests), Curve("names listed", names)]
    told = "Counts, the same everywhere."
    yield Plot("results-history", "A new process looks at a job", "checkpoints before", "count", curves, told)


def spark(quick: bool) -> Iterator[Plot]:
    from results_spark import in_spark

    yield from in_spark(quick)


def pace(quick: bool) -> Iterator[Plot]:
    from results_pace import pace as in_spark

    yield from in_spark(quick)


def flink(quick: bool) -> Iterator[Plot]:
    from results_flink import log, missing_for

    reason = missing_for()
    if reason is not None:
        raise NotHereError(reason)
    yield from log((50_000,) if quick else (100_000, 300_000, 1_000_000), 1 if quick else 5)


PARTS: dict[str, Callable[[bool], Iterator[Plot]]] = {
    "peers": peers,
    "levels": levels,
    "large": large,
    "commit": commit,
    "history": history,
    "spark": spark,
    "pace": pace,
    "flink": flink,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes; writes nothing")
    parser.add_argument("--only", action="append", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    arguments = parser.parse_args()
    missing: list[str] = []
    for part in arguments.only or [each for each in PARTS if each != "large"]:
        began = time.monotonic()
        print(f"== {part}", flush=True)
        plots: list[Plot] = []
        try:
            for plot in PARTS[part](arguments.quick):
                print(plot.section(), flush=True)
                plots.append(plot)
        except NotHereError as reason:
            missing.append(str(reason))
            print(f"not measured: {reason}", flush=True)
        if not arguments.quick:
            write(plots, missing)
        print(f"== {part}: {time.monotonic() - began:.0f} s", flush=True)


def write(plots: Sequence[Plot], missing: Sequence[str]) -> None:
    """Put these plots into the pages. After each part: what a later one meets takes nothing away."""
    page = page_of(plots, PAGE.read_text(encoding="utf-8"), missing)
    for plot in plots:
        draw(plot, IMAGES)
    PAGE.write_text(page, encoding="utf-8")
    COMPARISON.write_text(with_quotes(COMPARISON.read_text(encoding="utf-8"), page), encoding="utf-8")


if __name__ == "__main__":
    main()
