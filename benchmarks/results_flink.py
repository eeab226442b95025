"""A log by this package and by Flink's own jar, in turns.

Owns the sizes. Does not own the workload (`changelog`), the JVM (`flink_side`) or the jars (`flink/jars.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from changelog import Workload, read_back, write_columns
from conditions import conditions
from flink.jars import jar_folder
from flink_side import FlinkSide
from folders import fresh_folder
from machine import timed
from results_page import Curve, Plot, Point

from dstl_dagster.storage import LocalObjectStore

__all__ = ["log", "missing_for"]

VALUE_BYTES = 100
WARM_UPS = 4


def missing_for() -> str | None:
    """Why Flink cannot be measured here, if it cannot. Nothing is fetched."""
    if shutil.which("javac") is None:
        return "Flink: there is no javac"
    if not jar_folder(fetch=False).exists():
        return "Flink: its jars are not in the cache (`python benchmarks/flink/jars.py` fetches them)"
    return None


def log(change_counts: tuple[int, ...], rounds: int) -> Iterator[Plot]:
    """Changes appended in batches of 10,000 and persisted each 50,000; then all read back."""
    taken: dict[str, list[Point]] = {}
    with FlinkSide(jar_folder()) as flink:
        for count in change_counts:
            workload = Workload.of(VALUE_BYTES, count)
            found: dict[str, list[float]] = {}
            for number in range(WARM_UPS + rounds):
                runs = [partial(_ours, workload), partial(_flinks, flink, count)]
                for run in reversed(runs) if number % 2 else runs:
                    with fresh_folder() as folder:
                        for name, seconds in run(folder).items():
                            found.setdefault(name, []).append(seconds)
            for name in sorted(found):
                taken.setdefault(name, []).append(Point(count, found[name][WARM_UPS:]))
        told = f"{conditions('pyarrow')}; Flink {flink.version} with its defaults; in turns, not synced."
    curves = [Curve(*each) for each in taken.items()]
    title = f"A log of changes of {VALUE_BYTES} bytes"
    yield Plot("results-changelog", title, "changes", "seconds", curves, told)


def _ours(workload: Workload, folder: Path) -> dict[str, float]:
    store, handles = LocalObjectStore(folder, durable=False), []
    wrote = timed(lambda: handles.extend(write_columns(store, workload, 0)))
    return {
        "append and persist: dstl-dagster": wrote,
        "read back: dstl-dagster": timed(lambda: read_back(store, handles, views=True)),
    }


def _flinks(flink: FlinkSide, count: int, folder: Path) -> dict[str, float]:
    return {
        "append and persist: Flink": flink.write_seconds(folder, VALUE_BYTES, 0, count),
        "read back: Flink": flink.restore_seconds(folder),
    }
