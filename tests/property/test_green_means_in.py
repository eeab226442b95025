"""What a green run was given is in the state, once; or the run is red, with a sentence that says what to do.

Two programs over one store, whose names may coincide: they run, run again, are edited, renamed, restored,
dropped, and die. The oracle is the rows alone (`programs.World.look`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from dstl_dagster.checkpoint import Claim
from dstl_dagster.orchestration import opening, partitions, resources
from dstl_dagster.timeline import BatchKey, Timeline
from tests.property.programs import Program, World, changed, drawn, keys_of, world_of

CASES = int(os.environ.get("DSTL_GREEN_CASES", "24"))
STEPS = 9

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")


def play(seed: int, monkeypatch: pytest.MonkeyPatch) -> World:
    """One case. Its world has in `wrong` what was lost, doubled or passed over."""
    rng = random.Random(seed)
    with monkeypatch.context() as patched, world_of([drawn(rng), drawn(rng)], patched) as world:
        world.programs[1] = _apart(rng, world.programs)
        at = [0, 0]
        for _ in range(STEPS):
            which = rng.randrange(2)
            at[which] += _step(world, rng, which, at[which])
        return world


def _step(world: World, rng: random.Random, which: int, at: int) -> bool:
    """One step of one program, `at` so many of its partitions; whether it has one more."""
    program = world.programs[which]
    keys = keys_of(program)
    does = rng.choices(
        ["next", "any", "again", "edit", "rename", "restore", "drop", "die"], [8, 2, 2, 3, 1, 1, 2, 1]
    )[0]
    match does:
        case "next":
            return world.run(program, keys[at % len(keys)]).green
        case "any":
            world.run(program, rng.choice(keys))
        case "again":
            world.run(program, keys[max(0, at - 1) % len(keys)])
        case "restore":
            world.restore(program.job, rng.randrange(3))
        case "drop":
            world.drop(program.job)
        case "die":
            world.run(program, keys[at % len(keys)], dies=True)
        case _:
            _edit(world, rng, which, renamed=does == "rename")
    return False


def _edit(world: World, rng: random.Random, which: int, *, renamed: bool) -> None:
    """Change one thing of a program; with `renamed` its operator, and the job's as well."""
    program = world.programs[which]
    edited = changed(rng, program)
    if renamed:
        edited = replace(program, operator=rng.choice(["totals", "counts"]))
    if not _fits(edited, world.programs[1 - which]):
        return
    if renamed:
        world.rename(program, edited)
    world.programs[which] = edited
    _forget(world, program, edited)


def _apart(rng: random.Random, programs: list[Program]) -> Program:
    """A second one that can be loaded beside the first."""
    while not _fits(programs[1], programs[0]):
        programs[1] = drawn(rng)
    return programs[1]


def _fits(one: Program, other: Program) -> bool:
    """Dagster takes no two assets, and no two ops, of one name."""
    return one.writer != other.writer and one.name != other.name


def _forget(world: World, before: Program, after: Program) -> None:
    """An edit that makes another asset of it: what the former one was given is not the new one's to have."""
    if (before.job, before.writer) != (after.job, after.writer):
        world.given.setdefault((after.job, after.writer), set())


@pytest.mark.parametrize("part", range(4))
def test_green_means_in(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(part, CASES, 4):
        world = play(seed, monkeypatch)
        assert not world.wrong, "\n".join([f"seed {seed}", *world.wrong, "after:", *world.history])


Variant = Callable[[pytest.MonkeyPatch], None]


def a_name_alone_is_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "key", lambda _self, key, window="": BatchKey(key))


def the_key_of_a_partition_says_which_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        partitions,
        "_next_window",
        lambda definition, at: (
            definition.get_next_partition_window(at)
            if at is not None
            else definition.get_first_partition_window()
        ),
    )


def any_name_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "check", lambda *_arguments: None)


def nothing_completes_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "complete_unless_later", lambda *_arguments: None)


def a_window_is_no_part_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "interval", lambda _window: "")


def a_drop_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeline, "_while_it_is_there", lambda _self, request, undo=None: request())


@pytest.mark.parametrize(
    "variant",
    [
        a_name_alone_is_a_batch,
        the_key_of_a_partition_says_which_is_next,
        any_name_fits,
        nothing_completes_the_block,
        a_drop_is_not_noticed,
    ],
)
@pytest.mark.soak
def test_a_variant_is_found(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    variant(monkeypatch)
    for seed in range(200):
        if play(seed, monkeypatch).wrong:
            return
    pytest.fail("no case of 200 found it")
