"""Whatever goes wrong at any storage request of a scripted history, the job ends as if nothing had."""

from __future__ import annotations

import pytest

from tests.simulated.campaign import (
    play_duels,
    play_point,
    play_seed,
    play_seeds,
    sweep,
)
from tests.simulated.histories import HISTORIES
from tests.simulated.points import Harm, Point
from tests.simulated.sweep import Simulation

SWEPT = ("abort", "blocked-keep", "blocked-replace", "bucket", "ops", "restore", "slices", "take-over")
"""The histories whose points are played here, every sixth: each harm at a sixth of the requests. `--sweep`
plays all points of all histories."""
DUELLED = ("compose-commit and consumer", "restore and append", "savepoint and clean up")


def test_every_request_of_several_histories_may_come_to_harm():
    """At least 2,000 distinct fault points, each played to its end and judged by the oracle."""
    tally = sweep(SWEPT, jobs=2, every=6)
    assert tally.failures == []
    assert len(tally.distinct) == tally.runs, "no point is counted twice"
    assert tally.runs >= 2_000


def test_generated_histories_storms_and_rivals():
    """Two hundred seeds: points of a generated history, storms over it, and rivals with faults."""
    tally = play_seeds(range(200), jobs=1)
    assert tally.failures == []
    assert len(tally.distinct) == tally.runs == 200


def test_two_steps_may_meet_at_any_request():
    """Every twelfth pair of requests, one of each step; the first step ends as a zombie."""
    tally = play_duels(DUELLED, jobs=2, every=12)
    assert tally.failures == []
    assert tally.runs >= 75


@pytest.mark.parametrize("name", sorted(HISTORIES))
def test_every_history_ends_well_undisturbed(name):
    """Every history ends well without faults, and has points of every kind of harm."""
    simulation = Simulation(HISTORIES[name])
    waits = bool(HISTORIES[name].setting.reader_grace)
    assert {point.harm for point in simulation.all_points} == set(Harm) - (set() if waits else {Harm.DELAY})


@pytest.mark.parametrize("seed", [3, 8, 515], ids=["rivals", "storm", "point"])
def test_a_seed_is_replayed_request_by_request(seed):
    """The same seed sends the same requests, with the same harm, in the same order."""
    traces = []
    for _ in range(2):
        lines: list[str] = []
        play_seed(
            seed, trace=lambda name, request, fault, lines=lines: lines.append(f"{name}{request}{fault}")
        )
        traces.append(lines)
    assert len(traces[0]) > 50
    assert traces[0] == traces[1]


@pytest.mark.parametrize("seed", [124_013, 174_005], ids=["late clean-up", "late twin of an upload"])
def test_false_alarms_of_a_soak_stay_fixed(seed):
    """A clean-up that resumes late subsumes by a newer timeline; a repeated upload creates no source."""
    _, wrong = play_seed(seed)
    assert wrong == []


def test_a_point_is_known_by_its_name():
    """A point's name parses back to the point, and replays it."""
    point = Point("ops", 3, 5, Harm.LOST_ANSWER)
    assert str(point) == "ops:3:5:lost_answer"
    assert Point.parse(str(point)) == point
    assert play_point(point) == []
