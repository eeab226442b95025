"""Many runs of the simulation: enumerated, spread over processes, and tallied.

Owns the numbering of runs and their tally. Does not own a run (`sweep`, `rivals`).
"""

from __future__ import annotations

import functools
import gc
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TypeVar

from dstl_dagster.errors import DstlError
from dstl_dagster.format.envelope import decode_document
from dstl_dagster.keyed.documents import entries, manifest
from tests.simulated.duels import DUELS, duels_of
from tests.simulated.generated import generated
from tests.simulated.histories import HISTORIES
from tests.simulated.points import Duel, Point
from tests.simulated.process import Trace
from tests.simulated.rivals import Rivals
from tests.simulated.sweep import Simulation
from tests.simulated.world import BrokenPromiseError

_BLOCK = 1_000
_RIVALS = 5
_STORMS = 10
_DECODED = 4_096
"""Manifests that a process of `_played` keeps decoded."""
Tell = Callable[[str], None]
W = TypeVar("W")


@dataclass(frozen=True)
class Failure:
    """A run that ended wrong, and the arguments of the command that replay it."""

    replay: str
    wrong: tuple[str, ...]


@dataclass
class Tally:
    """The totals of some runs. `distinct` names each run, so that a repeated one counts once."""

    runs: int = 0
    distinct: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the totals of other runs."""
        self.runs += other.runs
        self.distinct |= other.distinct
        self.failures += other.failures

    def note(self, what: str, replay: str, wrong: Sequence[str]) -> None:
        """Count one run."""
        self.runs += 1
        self.distinct.add(what)
        if wrong:
            self.failures.append(Failure(replay, tuple(wrong)))


def replayed(what: str) -> list[str]:
    """What is wrong at the end of a history, of one of its points or duels, or of `rivals <seed>`."""
    name, number = what.partition(":")[0], what.rpartition(":")[2]
    try:
        if name.startswith("rivals "):
            return Rivals(int(name.removeprefix("rivals "))).run()
        simulation = Simulation((HISTORIES | DUELS)[name])
    except (BrokenPromiseError, DstlError) as error:
        return [f"{type(error).__name__}: {error}"]
    if name == what:
        return []
    return simulation.duel(Duel.parse(what)) if number.isdigit() else simulation.run(Point.parse(what))


def play_point(point: Point, *, trace: Trace | None = None, tell: Tell | None = None) -> list[str]:
    """Play one point; returns what is wrong at the end."""
    name, generated_from, number = point.history.partition("generated-")
    simulation = generated(int(number), _BLOCK) if generated_from else Simulation(HISTORIES[name])
    simulation.listen(trace, tell)
    return simulation.run(point)


def play_duel(duel: Duel, *, trace: Trace | None = None, tell: Tell | None = None) -> list[str]:
    """Play one duel; returns what is wrong at the end."""
    simulation = Simulation(DUELS[duel.history])
    simulation.listen(trace, tell)
    return simulation.duel(duel)


def play_seed(seed: int, *, trace: Trace | None = None, tell: Tell | None = None) -> tuple[str, list[str]]:
    """Play one seed; returns the name of its run, and what is wrong at the end.

    Each thousand seeds share a generated history. Five of them are rivals, ten are storms over that history,
    and each of the others is one of its points.
    """
    number, place = divmod(seed, _BLOCK)
    if place < _RIVALS:
        return f"rivals {seed}", Rivals(seed, trace=trace, tell=tell).run()
    simulation = _generated(number)
    simulation.listen(trace, tell)
    try:
        if place < _RIVALS + _STORMS:
            return f"storm {seed}", simulation.storm(seed)
        points = simulation.all_points
        first = random.Random(f"first {number}").randrange(len(points))
        point = points[(first + place) % len(points)]
        if tell is not None:
            tell(f"seed {seed}: {point}")
        return str(point), simulation.run(point)
    finally:
        simulation.listen(None, None)


def sweep(
    histories: Iterable[str],
    jobs: int,
    progress: Callable[[Tally], None] = lambda _tally: None,
    *,
    every: int = 1,
) -> Tally:
    """Every `every`-th point of these histories."""
    steps = [(name, step, every) for name in histories for step in range(len(HISTORIES[name].steps))]
    return _spread(_sweep_step, steps, jobs, progress)


def play_duels(
    names: Iterable[str],
    jobs: int,
    progress: Callable[[Tally], None] = lambda _tally: None,
    *,
    every: int = 1,
) -> Tally:
    """Every `every`-th duel of these."""
    return _spread(_play_duels_of, [(name, every) for name in names], jobs, progress)


def play_seeds(seeds: range, jobs: int, progress: Callable[[Tally], None] = lambda _tally: None) -> Tally:
    """Every seed."""
    chunks = [seeds[at : at + _BLOCK] for at in range(0, len(seeds), _BLOCK)]
    return _spread(_play_chunk, chunks, jobs, progress)


def _spread(
    play: Callable[[W], Tally], works: Sequence[W], jobs: int, progress: Callable[[Tally], None]
) -> Tally:
    total = Tally()
    for tally in _played(play, works, jobs):
        total.add(tally)
        progress(total)
    return total


def _played(play: Callable[[W], Tally], works: Sequence[W], jobs: int) -> Iterator[Tally]:
    if jobs == 1:
        yield from map(play, works)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_get_ready) as pool:
        yield from pool.map(play, works)


def _get_ready() -> None:
    logging.disable(logging.ERROR)  # the job would only warn of the faults injected here
    gc.set_threshold(50_000)  # many short-lived objects, hardly any cycles
    # Runs share most of their manifests: a third of the time went into decoding equal bytes to equal values.
    for module in (manifest, entries):
        vars(module)["decode_document"] = functools.lru_cache(_DECODED)(decode_document)


@functools.lru_cache(maxsize=len(HISTORIES))
def _scripted(name: str) -> Simulation:
    """The history, prepared once per process."""
    return Simulation(HISTORIES[name])


@functools.lru_cache(maxsize=1)
def _generated(number: int) -> Simulation:
    return generated(number, _BLOCK)


def _sweep_step(work: tuple[str, int, int]) -> Tally:
    name, step, every = work
    simulation = _scripted(name)
    tally = Tally()
    for point in simulation.all_points[::every]:
        if point.step == step:
            tally.note(str(point), f"--point {point}", simulation.run(point))
    simulation.forget()
    return tally


def _play_duels_of(work: tuple[str, int]) -> Tally:
    name, every = work
    tally = Tally()
    simulation = Simulation(DUELS[name])
    for duel in duels_of(simulation, every):
        tally.note(str(duel), f"--duel '{duel}'", simulation.duel(duel))
    return tally


def _play_chunk(seeds: range) -> Tally:
    tally = Tally()
    for seed in seeds:
        what, wrong = play_seed(seed)
        tally.note(what, f"--seed {seed}", wrong)
    return tally
