"""One request of a scripted history comes to harm; then the job continues, and is judged.

Owns what a point's harm does, and how the job continues after it. Does not own the scripts (`histories`), the
names of points (`points`), or what is right (`oracle`).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass

from dstl_dagster.errors import ConflictError, DstlError, FencedError, NotFoundError, UnavailableError
from dstl_dagster.testing.fault_schedules import AtRequests, FaultSchedule, SimulatedCrash
from tests.simulated import batches
from tests.simulated.actions import SubsumedCheckpointError
from tests.simulated.ending import end_and_judge
from tests.simulated.histories import History
from tests.simulated.ledger import Ledger
from tests.simulated.oracle import Watch
from tests.simulated.paused import Paused
from tests.simulated.points import FAULTS, SOON, Duel, Harm, Point, harms_of
from tests.simulated.process import Action, Notes, Process, Trace
from tests.simulated.world import BrokenPromiseError, Saved, World, fingerprint

REFUSALS = (ConflictError, FencedError, NotFoundError, UnavailableError)
"""Errors that a process may get. Any other (a gap in the timeline, unreadable bytes) is a defect."""
_TRIES = 6
_STORMINESS = 0.4
_NOTHING: Notes = {"attempt": None}


@dataclass(frozen=True)
class _Moment:
    """The moment before a step: the whole world, and which of the step's requests change something."""

    saved: Saved
    ledger: Ledger
    notes: Notes
    changes: tuple[bool, ...]


@dataclass(frozen=True)
class _Known:
    """What followed from a moment."""

    saved: Saved
    ledger: Ledger
    notes: Notes
    next: int
    broken: tuple[str, ...]
    error: BrokenPromiseError | None


class Simulation:
    """One history, for any number of runs. One thread.

    Raises: BrokenPromiseError if even the undisturbed history does not end well.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.world = World()
        setting = history.setting
        self.watch = Watch(self.world, setting.num_retained, setting.reader_grace)
        self._notes: Notes = _NOTHING
        self._next = 0  # the step that comes next
        self._known: dict[tuple[str, int, int, str, int], _Known] = {}
        self.listen(None, None)
        self._moments = self._undisturbed()

    def listen(self, trace: Trace | None, tell: Callable[[str], None] | None) -> None:
        """Report each request to `trace` and everything else to `tell`; None stops it."""
        self._trace = trace
        self._tell = tell or (lambda _line: None)
        self.watch.tell = self._tell

    @functools.cached_property
    def all_points(self) -> tuple[Point, ...]:
        """Every point of this history with a distinct harm, in order."""
        waits = bool(self.history.setting.reader_grace)
        return tuple(
            Point(self.history.name, step, request, harm)
            for step, moment in enumerate(self._moments)
            for request, changes in enumerate(moment.changes)
            for harm in harms_of(changes=changes, waits=waits)
        )

    def requests_of(self, step: int) -> int:
        """How many requests the step sends without faults."""
        return len(self._moments[step].changes)

    def forget(self) -> None:
        """Drop the remembered outcomes of earlier runs, which take memory."""
        self._known.clear()

    def run(self, point: Point) -> list[str]:
        """Play one point; returns everything that is wrong: nothing, if the protocol keeps its promises.

        After the harm the step runs again, then the rest of its group, then the end.
        """
        self._go_to(point.step)
        steps = self.history.steps
        end = max(at for at, step in enumerate(steps) if step.group == steps[point.step].group) + 1
        try:
            self._continue(point, end, self._harmed(point.step, point.request, point.harm))
        except (BrokenPromiseError, DstlError) as error:
            return [*self.watch.broken, f"{type(error).__name__}: {error}"]
        return list(self.watch.broken)

    def duel(self, duel: Duel) -> list[str]:
        """Let two steps take turns as `Duel` describes, then end; returns everything that is wrong."""
        self._go_to(duel.step)
        steps = self.history.steps
        end = duel.step + 2
        try:
            one = self._paused(f"{duel.step}/one", steps[duel.step].act, duel.first)
            other = self._paused(f"{duel.step}/other", steps[duel.step + 1].act, duel.second)
            try:
                one(duel.further)
            finally:
                other(None)
            try:
                self._drive(end)
            finally:
                one(None)
            self._end(end)
        except (BrokenPromiseError, DstlError) as error:
            return [*self.watch.broken, f"{type(error).__name__}: {error}"]
        return list(self.watch.broken)

    def storm(self, seed: int) -> list[str]:
        """Play the whole history with many harms, some of which last for many steps. Then as `run`."""
        choose = random.Random(f"storm {seed}")
        self._go_to(0)
        left: list[tuple[int, Callable[[], None]]] = []
        end, tries = len(self.history.steps), 0
        try:
            try:
                while self._next < end:
                    step = self._next
                    if choose.random() < _STORMINESS and self.requests_of(step):
                        harm, request = choose.choice(list(Harm)), choose.randrange(self.requests_of(step))
                        self._tell(f"{harm} to {self.history.steps[step].name}, at request {request}")
                        rest = self._harmed(step, request, harm, f"{len(left)}/{choose.random()}")
                        if rest is not None:
                            left.append((step + choose.randrange(8), rest))
                    else:
                        tries += 1
                        self._driven(step + 1, f"calm {tries}/")
                    for due in [each for each in left if each[0] < self._next]:
                        left.remove(due)
                        due[1]()
            finally:
                while left:
                    left.pop()[1]()
            self._ended(end, audit=True)
        except (BrokenPromiseError, DstlError) as error:
            return [*self.watch.broken, f"{type(error).__name__}: {error}"]
        return list(self.watch.broken)

    def _go_to(self, step: int) -> None:
        moment = self._moments[step]
        self.world.load(moment.saved)
        self.watch.go_to(moment.ledger)
        self._notes, self._next = moment.notes, step

    def _undisturbed(self) -> list[_Moment]:
        """Play the history without faults; returns the moment before each step."""
        moments = []
        for at, step in enumerate(self.history.steps):
            saved, ledger, notes = self.world.save(), self.watch.ledger.copy(), self._notes
            process = self._process(f"{at}/first")
            self._notes = step.act(process, notes)
            changes = tuple(request.changes for request in process.store.requests)
            moments.append(_Moment(saved, ledger, notes, changes))
        self._end(len(moments))
        if self.watch.broken:
            raise BrokenPromiseError(f"{self.history.name}, undisturbed: {self.watch.broken}")
        return moments

    # -- the harm

    def _harmed(self, step: int, request: int, harm: Harm, name: str = "first") -> Callable[[], None] | None:
        """Run the step into its harm; returns what is still to happen later, if anything."""
        act = self.history.steps[step].act
        if harm in (Harm.PAUSE, Harm.LONG_PAUSE):
            return functools.partial(self._paused(f"{step}/{name}", act, request), None)
        process = self._process(f"{step}/{name}", AtRequests({request: FAULTS[harm]}))
        self._try(act, process)
        return process.store.deliver_late_effects if harm in (*SOON, Harm.CRASH_LAST) else None

    def _paused(self, name: str, act: Action, at: int) -> Callable[[int | None], None]:
        """Run it up to its request `at`; returns how to resume it, for some requests or to its end."""
        notes = self._notes
        zombie = Paused(lambda turn: act(self._process(name, turn=turn), notes), at)

        def resume(requests: int | None) -> None:
            self._tell(f"{name} resumes")
            try:
                zombie.resume(requests)
            except REFUSALS as refused:
                self._tell(f"{name} is refused: {refused}")
            except DstlError as error:
                raise BrokenPromiseError(f"a zombie met {type(error).__name__}: {error}") from error

        return resume

    def _process(
        self, name: str, faults: FaultSchedule | None = None, *, turn: Callable[[], None] | None = None
    ) -> Process:
        name = f"{self.history.name}/{name}"
        return Process(self.world, self.history.setting, name, faults, before_request=turn, trace=self._trace)

    def _try(self, act: Action, process: Process) -> str:
        """Run it. Returns an empty string if it is done, and why not otherwise."""
        try:
            self._notes = act(process, self._notes)
        except SimulatedCrash as crash:
            self._tell(f"dead: {crash}")
            return str(crash)
        except SubsumedCheckpointError as refused:
            # A clean-up that resumed late has subsumed by a newer timeline. The history continues without.
            self._tell(f"skipped: {refused}")
        except REFUSALS as refused:
            self._tell(f"refused: {refused}")
            return str(refused)
        except DstlError as error:
            raise BrokenPromiseError(f"{type(error).__name__}: {error}") from error
        self._next += 1
        return ""

    # -- afterwards

    def _continue(self, point: Point, end: int, rest: Callable[[], None] | None) -> None:
        """The job continues; the rest of the harm happens in between or at the end."""
        try:
            self._drive(point.step + 1)
            if rest is not None and point.harm in SOON:
                now, rest = rest, None
                now()
            self._drive(end)
        finally:
            if rest is not None:
                rest()
        self._end(end)

    def _drive(self, end: int) -> None:
        """Run the steps up to `end` (exclusive); if a zombie ended a group's attempt, the group again."""
        self._once("drive", end, self._driven)

    def _end(self, end: int) -> None:
        """Apply again what a restore abandoned, let time pass, clean up once; then the oracle judges."""
        self._once("end", end, self._ended)

    def _once(self, what: str, end: int, play: Callable[[int], None]) -> None:
        """Play once per distinct moment: equal moments have equal outcomes, which are remembered."""
        if self._trace is not None:
            return play(end)
        key = (what, self._next, end, str(self._notes["attempt"]), fingerprint(self.world.save()))
        known = self._known.get(key)
        if known is None:
            found = len(self.watch.broken)
            error: BrokenPromiseError | None = None
            try:
                play(end)
            except BrokenPromiseError as raised:
                error = raised
            known = _Known(
                self.world.save(),
                self.watch.ledger.copy(),
                self._notes,
                self._next,
                tuple(self.watch.broken[found:]),
                error,
            )
            self._known[key] = known
        else:
            self.world.load(known.saved)
            broken = [*self.watch.broken, *known.broken]
            self.watch.go_to(known.ledger)
            self.watch.broken += broken
            self._notes, self._next = known.notes, known.next
        if known.error is not None:
            raise known.error
        return None

    def _driven(self, end: int, name: str = "") -> None:
        refused = tries = 0
        steps = self.history.steps
        while self._next < end:
            at = self._next
            why = self._try(steps[at].act, self._process(f"{name}{at}/{tries}"))
            tries += 1
            if why:
                refused += 1
                if refused == _TRIES:
                    raise BrokenPromiseError(f"{steps[at].name} cannot be done: {why}")
                self._next = min(each for each, step in enumerate(steps) if step.group == steps[at].group)

    def _ended(self, end: int, *, audit: bool = False) -> None:
        done = self.history.steps[:end]
        wanted = list(range(1, max(step.batch for step in done) + 1))
        ledger = self.watch.ledger
        if end == len(self.history.steps) or ledger.open is not None or ledger.pending:
            wanted.append(batches.LAST)  # the next batch finishes what was left unfinished
        taken = [step.takes for step in done if step.takes is not None]
        self.watch.broken += end_and_judge(self._process, wanted, taken, audit=audit)
