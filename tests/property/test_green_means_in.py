"""What a green run was given is in the state, once; or the run is red, with a sentence that says what to do.

Two programs over one store, whose names may coincide, one after the other or at once: they run, run again,
are executed again, edited, renamed, forgotten, restored, dropped, followed, and die at any storage request.
The oracle is the rows alone (`programs.World.look`).
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import dagster as dg
import pytest

from dstl_dagster.checkpoint import Batch, Claim, OperatorReport, coordinator
from dstl_dagster.checkpoint.steps import trigger
from dstl_dagster.errors import DstlError
from dstl_dagster.format import ColumnIds
from dstl_dagster.jobs import correction
from dstl_dagster.orchestration import partition_order
from dstl_dagster.orchestration.inject import resources
from dstl_dagster.orchestration.partitions import window_of
from dstl_dagster.orchestration.report import findings, reconcile
from dstl_dagster.orchestration.watch import downstream
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.testing.fault_schedules import Fault
from dstl_dagster.timeline import AsOf, BatchKey, Timeline, TimelineView
from tests.property.program_runs import START_OVER, instance_of_runs
from tests.property.programs import (
    COLUMNS,
    DECLARED,
    Followed,
    Follower,
    Program,
    World,
    changed,
    drawn,
    drawn_quiet,
    drawn_together,
    keys_of,
    twin,
    world_of,
)

FIRST = int(os.environ.get("DSTL_GREEN_FIRST", "0"))
CASES = int(os.environ.get("DSTL_GREEN_CASES", "10"))
STEPS = 6
REQUESTS = 60
"""A run that dies, or is overtaken, does so within as many; most runs have fewer."""

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")

NAMES = ["operator", "name", "source", "column"]
"""What of a program commands can change in the job, too."""
THEMES = (
    ("partitions",),
    ("operator",),
    ("column", "number"),
    ("other",),
    ("partitions",),
    ("name", "source"),
    ("way",),
    (),
    ("page",),
    ("page",),
)
"""What a case is about, in turn by its seed, so that each comes once in ten: what of a program differs once
it has state; that the other program comes for the same days; nothing; what Dagster shows of a job's assets.
"""
WEIGHTS = {
    "next": 9,
    "any": 2,
    "again": 2,
    "execute again": 2,
    "edit": 3,
    "rename": 2,
    "rename column": 2,
    "restore": 1,
    "drop": 2,
    "forget": 1,
    "die": 3,
    "at once": 4,
    "follow": 3,
    "savepoint": 1,
}

SHOWN_WEIGHTS = {
    "next": 12,
    "any": 1,
    "again": 3,
    "execute again": 1,
    "restore": 3,
    "drop": 1,
    "die": 2,
    "at once": 1,
    "correct": 4,
    "look": 4,
    "look at once": 2,
    "wipe": 2,
    "clear": 2,
}
"""Where Dagster's page is looked at, whose programs stay as they are."""
SHOWN_STEPS = 12


class Case:
    """One case: a world, and how far each of its programs is."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self._rng = world, rng
        self._at = [0] * len(world.programs)
        self._sinks = {(each.job, each.operator): each.mark for each in world.programs if each.way == "sink"}

    def open(self, theme: tuple[str, ...]) -> None:
        """Some days of a program. Then it differs in that respect and goes on from its last day, or the other
        program comes for the same days.
        """
        which, rng = self._rng.randrange(2), self._rng
        if "operator" in theme:
            self.world.programs[which] = replace(self.world.programs[which], way=rng.choice(DECLARED))
        for _ in range(rng.randint(1, 3)):
            self._next(which)
        if "column" in theme or rng.random() < 0.5:
            self.world.follow(self.world.programs[which].job)
        if "other" in theme:
            which = self._other(which)
        else:
            now, last = self.world.programs[which], max(0, self._at[which] - 1)
            stood = window_of(now.definition, keys_of(now)[last % len(keys_of(now))])
            self._edit(which, [*theme])
            self._at[which] = self._index_at(which, stood)
        for _ in range(3):
            self.world.run(self.world.programs[which], self._key(which))
            self._at[which] += 1
        if "column" in theme:
            self.world.follow(self.world.programs[which].job)

    def _index_at(self, which: int, stood: dg.TimeWindow | None) -> int:
        """Of the partition that the program, as it is now, had last; of time the one that ends as this does,
        or later.
        """
        now = self.world.programs[which]
        windows = [window_of(now.definition, key) for key in keys_of(now)]
        for index, window in enumerate(windows):
            if stood is not None and window is not None and window.end >= stood.end:
                return index
        return max(0, self._at[which] - 1)

    def next(self) -> None:
        """The next partition of one of the programs."""
        self._next(self._rng.randrange(len(self._at)))

    def step(self) -> None:
        """Something happens to one of the programs, or to the page of its job."""
        which, weights = self._rng.randrange(len(self._at)), SHOWN_WEIGHTS if self.world.shown else WEIGHTS
        does = self._rng.choices([*weights], [*weights.values()])[0]
        if does in ("correct", "look", "look at once", "wipe", "clear"):
            self._operate(does, which)
        else:
            self._do(does, which)

    def _do(self, does: str, which: int) -> None:
        rng, world = self._rng, self.world
        now = world.programs[which]
        keys = keys_of(now)
        match does:
            case "next":
                self._next(which)
            case "any" | "again":
                before = keys[max(0, self._at[which] - 1) % len(keys)]
                world.run(now, rng.choice(keys) if does == "any" else before)
            case "execute again":
                self._execute_again(now)
            case "restore":
                world.restore(now.job, rng.randrange(3), rng)
            case "drop":
                world.drop(now.job, rng)
            case "forget":
                world.forget(now, rng)
                self._at[which] = 0
            case "die":
                fault = rng.choice([Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
                world.run(now, self._key(which), dies_at=(rng.randrange(REQUESTS), fault))
            case "at once":
                self._at_once(which)
            case "follow":
                world.follow(now.job)
            case "savepoint":
                world.savepoint(now.job, rng)
            case "rename column":
                other = next(each for each in COLUMNS if each != now.column)
                self._becomes(which, replace(now, column=other), by_command=True)
            case _:
                what = NAMES if does == "rename" else ["partitions", "way", "partitions", "number", *NAMES]
                self._edit(which, what, by_command=does == "rename")

    def _operate(self, does: str, which: int) -> None:
        """What somebody does on Dagster's page."""
        world, now = self.world, self.world.programs[which]
        match does:
            case "correct":
                world.correct(now, self._rng.choice(keys_of(now)[: self._at[which] + 1]))
            case "look":
                world.look_at_page(now.job)
            case "look at once":
                world.look_at_page(now.job, lambda: self._next(self._other(which)))
            case "wipe":
                world.page_of(now.job).wipe()
            case _:
                world.page_of(now.job).forget()

    def _key(self, which: int) -> str | None:
        keys = keys_of(self.world.programs[which])
        return keys[self._at[which] % len(keys)]

    def _other(self, which: int) -> int:
        return (which + 1) % len(self._at)

    def _next(self, which: int, **more: object) -> None:
        now, key = self.world.programs[which], self._key(which)
        ran = self.world.run(now, key, **more)  # type: ignore[arg-type]
        new = not self.world.has_rows_of(now)
        if START_OVER in ran.sentence and f"drop {now.job}" in self.world.history:
            ran = self.world.run(now, key, anew=True)  # it was dropped on purpose
        if not ran.green and new and "is new to job" in ran.sentence and now.way != "driver":
            ran = self.world.run(now, key, meant=True)  # a second one of the job
        self._at[which] += ran.green

    def _execute_again(self, now: Program) -> None:
        """From where it failed, or as a whole; of the program as it is."""
        last = self.world.last.get(now.mark)
        if last is not None and last.program == now:
            whole = last.ran.green or self._rng.random() < 0.3
            self.world.run(now, last.key, again=last, whole=whole)

    def _at_once(self, which: int) -> None:
        """The other program runs, or somebody restores or drops the job, in the middle of a run."""
        rng, world = self._rng, self.world
        job = world.programs[which].job
        does = rng.choice(["run", "run", "drop", "drop", "restore"])

        def meanwhile() -> None:
            match does:
                case "run":
                    self._next(self._other(which))
                case "drop":
                    world.drop(job, rng)
                case _:
                    world.restore(job, rng.randrange(3), rng)

        self._next(which, meanwhile=(rng.randrange(REQUESTS), meanwhile))

    def _edit(self, which: int, what: list[str], *, by_command: bool = False) -> None:
        """Change one of these things of a program; `by_command` the job's as well."""
        rng = self._rng
        now = self.world.programs[which]
        edited = changed(rng, now, rng.choice(what))
        goes_on = by_command and self.world.has_rows_of(now)  # else its job has nothing to rename
        if edited.name != now.name and not goes_on and now.way != "sink":  # which has no name
            edited = replace(edited, mark=edited.name)
        self._becomes(which, edited, by_command=by_command)

    def _becomes(self, which: int, edited: Program, *, by_command: bool) -> None:
        world = self.world
        if not _fits(edited, world.programs[1 - which]):
            return
        if edited.way == "sink":  # whoever writes there next is that one
            place = edited.job, edited.operator
            if self._sinks.setdefault(place, edited.mark) != edited.mark:
                return
        if by_command and not world.rename(world.programs[which], edited, self._rng):
            return
        world.programs[which] = edited


def _fits(one: Program, other: Program) -> bool:
    """Dagster takes no two assets, and no two ops, of one name."""
    return one.writer != other.writer and one.name != other.name and one.mark != other.mark


def play(
    seed: int,
    instance: dg.DagsterInstance,
    follower: Callable[[World, str, str], Followed] = Follower,
) -> World:
    """One case. Its world has in `wrong` what was lost, doubled or passed over."""
    rng, theme = random.Random(seed), THEMES[seed % len(THEMES)]
    if "page" in theme:
        return _play_shown(rng, instance)
    one = drawn(rng)
    other = twin(rng, one) if rng.random() < 0.4 else drawn(rng)
    while not _fits(one, other):
        other = drawn(rng)
    programs = [one, other]
    apart, quiet = rng.random() < 0.3, drawn_quiet(rng)
    with (
        pytest.MonkeyPatch.context() as patched,
        world_of(programs, instance, patched, apart=apart, quiet=quiet) as world,
    ):
        world.follower, case = follower, Case(world, rng)
        if theme:
            case.open(theme)
        for _ in range(STEPS):
            case.step()
        for each in {each.job for each in programs}:
            world.follow(each)
        return world


def _play_shown(rng: random.Random, instance: dg.DagsterInstance) -> World:
    """A case whose programs are assets of one job, and whose page is looked at."""
    programs = drawn_together(rng)
    with (
        pytest.MonkeyPatch.context() as patched,
        world_of(programs, instance, patched, apart=False, quiet=drawn_quiet(rng)) as world,
    ):
        case, world.shown = Case(world, rng), True
        for _ in range(rng.randint(0, 2)):
            case.next()
        world.page_of("orders")
        for _ in range(SHOWN_STEPS):
            case.step()
        world.page_of("orders").last()
        return world


def _batched(seeds: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(seeds)
    while some := list(islice(rest, 50)):
        yield some


def played(seeds: Iterable[int]) -> Iterator[tuple[int, World]]:
    """Cases, each as it ended."""
    for some in _batched(seeds):  # what an instance has seen makes it slow
        with instance_of_runs() as instance:
            for seed in some:
                yield seed, play(seed, instance)


@pytest.mark.parametrize("part", range(4))
def test_green_means_in(part: int) -> None:
    """By the rows; `DSTL_GREEN_CASES` says how many cases, `DSTL_GREEN_FIRST` from which seed on."""
    for seed, world in played(range(FIRST + part, FIRST + CASES, 4)):
        assert not world.wrong, "\n".join([f"seed {seed}", *world.wrong, "after:", *world.history])


Variant = Callable[[pytest.MonkeyPatch], None]


def a_name_alone_is_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "key", lambda _self, key, window="": BatchKey(key))


def the_key_of_a_partition_says_which_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        partition_order,
        "_next_window",
        lambda definition, at: (
            definition.get_next_partition_window(at)
            if at is not None
            else definition.get_first_partition_window()
        ),
    )


def any_name_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "check", lambda *_arguments: None)


def anybody_is_a_source_that_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "_check_writer", lambda *_arguments: None)


def a_source_of_any_name_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "_check_new", lambda *_arguments: None)


def an_operator_may_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Claim.check
    monkeypatch.setattr(
        Claim, "check", lambda claim, *arguments: plain(replace(claim, operators=None), *arguments)
    )


def a_key_of_a_sink_is_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SinkOptions, "key", property(lambda sink: BatchKey(sink.idempotency_key)))


def nothing_completes_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_is_completed_later", lambda _context: True)


def a_source_is_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigger, "identified", lambda batch, *_: batch)


def a_drop_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeline, "while_it_is_there", lambda _self, request, written="": request())


def batches_of_another_kind_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "_check_measure", lambda *_arguments: None)


def a_column_is_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = StateSchema.from_parts.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        StateSchema,
        "from_parts",
        classmethod(lambda cls, message, keys, most, _ids: plain(cls, message, keys, most, ColumnIds())),
    )


def digits_are_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = AsOf.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        AsOf,
        "of",
        classmethod(lambda cls, at: plain(cls, int(at) if isinstance(at, str) and at.isdigit() else at)),
    )


def any_name_is_a_savepoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "validated_savepoint", lambda name: name)


def a_batch_without_rows_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Batch.add

    def add(batch: Batch, report: Any) -> None:
        if not isinstance(report, OperatorReport) or report.upserts or batch.schema(report.operator):
            plain(batch, report)

    monkeypatch.setattr(Batch, "add", add)


def the_only_asset_made_each_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = reconcile.state_of
    monkeypatch.setattr(
        reconcile,
        "state_of",
        lambda assets, *made: assets if len(assets.state_keys) == 1 else plain(assets, *made),
    )


def a_batch_is_corrected_from_its_last_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correction, "_held_since", lambda view, batch: view.applied_in(batch))


def what_completes_in_a_tick_was_cleaned_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def view(asking: Any) -> TimelineView:
        found = vars(asking).setdefault("_tail", asking.coordinator.timeline.tail())
        return replace(found, slot=sys.maxsize)

    monkeypatch.setattr(downstream._Asking, "_view", property(view))


def a_name_is_each_assets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "_is_lost", lambda *seen: not seen[-1])


@pytest.mark.parametrize(
    "variant",
    [
        a_name_alone_is_a_batch,
        the_key_of_a_partition_says_which_is_next,
        any_name_fits,
        batches_of_another_kind_fit,
        anybody_is_a_source_that_has_a_name,
        a_source_of_any_name_begins,
        an_operator_may_be_left,
        a_key_of_a_sink_is_a_batch,
        nothing_completes_the_block,
        a_source_is_its_name,
        a_drop_is_not_noticed,
        a_column_is_its_name,
        digits_are_an_id,
        any_name_is_a_savepoints,
        a_batch_without_rows_says_nothing,
        the_only_asset_made_each_checkpoint,
        a_batch_is_corrected_from_its_last_checkpoint,
        what_completes_in_a_tick_was_cleaned_up,
        a_name_is_each_assets,
    ],
)
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_variant_is_found(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of what was once wrong, put back; some break the job for all, which is an error here."""
    variant(monkeypatch)
    try:
        found = any(world.wrong for _, world in played(range(200)))
    except DstlError:
        return
    assert found, "no case of 200 found it"
