"""Pairs of concurrent steps, interleaved at every request of each.

Owns the choice of pairs. Does not own how they take turns (`sweep`).
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

from dstl_dagster.errors import FencedError
from dstl_dagster.testing.fault_schedules import Fault, NoFaults, Request, SimulatedCrash
from tests.simulated import actions, bystanders
from tests.simulated.histories import History, Script
from tests.simulated.points import Duel
from tests.simulated.process import OWNER, Action, Notes, Process, Setting
from tests.simulated.sweep import Simulation

_ONE = Setting(num_retained=1)
_BUCKET = Setting(num_retained=1, temporary_bucket="temporary")
_GRACE = Setting(num_retained=1, reader_grace=timedelta(hours=1))


def _restore_cut_off(batch: int, request: str) -> Action:
    """A restore whose process dies right after the decision, and is not restarted."""

    def act(process: Process, notes: Notes) -> Notes:
        dying = Process(
            process.world,
            process.setting,
            f"{process.name}/cut off",
            _CrashAfterRecord(),
            before_request=process.before_request,
            trace=process.trace,
        )
        with contextlib.suppress(SimulatedCrash):
            actions.restore(batch, request)(dying, notes)
        return {**notes, "attempt": None}

    return act


class _CrashAfterRecord(NoFaults):
    """The process dies once its first record is on the timeline."""

    def decide(self, request: Request) -> Fault | None:
        writes = request.method == "put" and "/timeline/" in request.name
        return Fault.CRASH_AFTER if writes else None


def _duels() -> list[History]:
    """The last two steps of each are the duel."""
    back_and_on = actions.one_after_another(_restore_cut_off(1, "cut off"), actions.append(2))
    twice = actions.one_after_another(
        actions.compose_commit, bystanders.twins_of_components(2), bystanders.take_files(2)
    )
    return [
        Script().batch(1, clean=False).batch(2, commit=False).compose_commit().restore(1)
        .history("compose-commit and restore", _BUCKET),
        Script().batch(1, clean=False).batch(2, commit=False).compose_commit().consumer(2)
        .history("compose-commit and consumer", _BUCKET),
        Script().batch(1, clean=False).batch(2, commit=False).compose_commit()
        .do("restore cut off, then append", back_and_on)
        .history("compose-commit and append after a restore", _BUCKET),
        Script().batch(1, clean=False).batch(2, commit=False).compose_commit()
        .do("another, late twins, and a consumer", twice, takes=2)
        .history("compose-commit and late twins", _ONE),
        Script().batch(1, commit=False).compose_commit().compose_commit()
        .history("compose-commit and compose-commit", _BUCKET),
        Script().batch(1).batch(2, clean=False).savepoint(1, "kept").clean_up()
        .history("savepoint and clean up", _ONE),
        Script().batch(1).begin(2, "run").clean_up().history("append and clean up", _ONE),
        Script().batch(1, clean=False).batch(2, clean=False).batch(3, clean=False).restore(2).clean_up()
        .history("restore and clean up"),
        Script().driver(1).driver(2).driver(3).restore(2).restore(1)
        .history("restore and restore", Setting(num_retained=3)),
        Script().batch(1).batch(2, commit=False).restore(1).begin(2, "run")
        .history("restore and append", _ONE),
        Script().batch(1, foreign="b", clean=False).batch(2, clean=False)
        .resolve(1, "b", "replace").restore(1).history("resolve and restore", Setting(num_retained=3)),
        Script().batch(1).batch(2, clean=False).clean_up().read().history("clean up and read", _GRACE),
        Script().batch(1).batch(2, clean=False).clean_up().clean_up().history("clean up and clean up", _ONE),
    ]  # fmt: skip


def _more_duels() -> list[History]:
    uncommitted = Script().batch(1, clean=False).batch(2, commit=False)
    taken_over = actions.append(2, owner="other", take_over=True)
    return [
        uncommitted.restore(1).compose_commit().history("restore and compose-commit", _BUCKET),
        Script().batch(1).batch(2, clean=False).consumer(2).restore(1).history("consumer and restore", _ONE),
        Script().batch(1, clean=False).batch(2, clean=False).batch(3, clean=False).clean_up().restore(2)
        .history("clean up and restore"),
        Script().batch(1).batch(2, clean=False).clean_up().savepoint(1, "kept")
        .history("clean up and savepoint", _ONE),
        Script().batch(1).batch(2).batch(3, clean=False).clean_up().driver(4, base=True)
        .history("clean up and base", _ONE),
        Script().driver(1).begin(2, OWNER).do("record", actions.record)
        .do("confirm", _unless_fenced(actions.confirm)).do("take over", taken_over)
        .history("confirm and take over", _ONE),
        Script().driver(1).begin(2, OWNER).do("record", actions.record)
        .do("confirm", _unless_fenced(actions.confirm)).do("abort", actions.abort())
        .history("confirm and abort", _ONE),
    ]  # fmt: skip


def _unless_fenced(act: Action) -> Action:
    """A process that has been taken over stops."""

    def stop(process: Process, notes: Notes) -> Notes:
        try:
            return act(process, notes)
        except FencedError:
            return notes

    return stop


DUELS = {history.name: history for history in [*_duels(), *_more_duels()]}


def duels_of(simulation: Simulation, every: int = 1, further: int = 1) -> list[Duel]:
    """The duels of this history's last two steps; every `every`-th of them.

    The first step runs `further` requests in the middle of the second.
    """
    step = len(simulation.history.steps) - 2
    duels = [
        Duel(simulation.history.name, step, first, second, further)
        for first in range(simulation.requests_of(step))
        for second in range(simulation.requests_of(step + 1) + 1)
    ]
    return duels[::every]
