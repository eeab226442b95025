"""Several concurrent processes of one job, with interleaved requests that may each fail, all from a seed.

Owns the cast and what happens to it. Does not own what its members do (`actions`, `bystanders`), the turns
(`turns`), or what is right (`oracle`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import timedelta

from dstl_dagster.errors import DstlError
from dstl_dagster.testing.fault_schedules import Fault, SeededFaults, SimulatedCrash
from tests.simulated import actions, batches, bystanders
from tests.simulated.ending import end_and_judge
from tests.simulated.oracle import Watch
from tests.simulated.process import Action, Notes, Process, Setting, Trace
from tests.simulated.sweep import REFUSALS
from tests.simulated.turns import Turns
from tests.simulated.world import BrokenPromiseError, World

_FAULTS = (
    Fault.CRASH_BEFORE,
    Fault.CRASH_AFTER,
    Fault.CRASH_LATE,
    Fault.ERROR_BEFORE,
    Fault.LOST_ANSWER,
    Fault.LATE_EFFECT,
    Fault.REPEATED,
    Fault.DELAY,
)
_HALF_AN_HOUR = 1_800.0


class Rivals:
    """One run, determined by its seed.

    Args:
        trace: called for each request.
        tell: called with a line for everything else.
    """

    def __init__(
        self, seed: int, *, trace: Trace | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self._random = random.Random(f"rivals {seed}")
        self._seed = seed
        self._trace = trace
        self._tell = tell or (lambda _line: None)
        self._setting = Setting(
            num_retained=self._random.choice((1, 1, 2, 3)),
            reader_grace=self._random.choice((timedelta(0), timedelta(0), timedelta(hours=1))),
            temporary_bucket=self._random.choice((None, None, "temporary")),
        )
        self._world = World()
        self._watch = Watch(self._world, self._setting.num_retained, self._setting.reader_grace)
        self._watch.tell = self._tell
        self._last = self._random.randint(2, 4)
        self._rate = self._random.choice((0.0, 0.01, 0.03, 0.06))
        self._made = 0
        self._dead: list[Process] = []

    def run(self) -> list[str]:
        """Play the run; returns everything that is wrong."""
        try:
            for batch in range(1, self._random.randint(0, self._last - 1) + 1):
                actions.whole_batch(batch, clean=False)(self._calm(f"before/{batch}"), {"attempt": None})
            raised = Turns(self._random, self._between).run(self._cast())
            for error in raised:
                if error is not None:
                    raise error
            for process in self._dead:
                process.store.deliver_late_effects()
            wanted = [*range(1, self._last + 1), batches.LAST]
            self._watch.broken += end_and_judge(self._calm, wanted, wanted, audit=True)
        except BrokenPromiseError as error:
            return [*self._watch.broken, str(error)]
        except DstlError as error:
            return [*self._watch.broken, f"at the end: {type(error).__name__}: {error}"]
        return list(self._watch.broken)

    # -- who takes part

    def _cast(self) -> list[Callable[[Callable[[], None]], None]]:
        roles: list[Callable[[], Iterable[list[Action]]]] = [
            self._driver,
            self._driver,
            self._ops,
            self._cleaner,
            self._keeper,
            self._restorer,
            self._resolver,
            self._consumer,
            self._reader,
            self._committer,
        ]
        chosen = [self._driver, *self._random.sample(roles, self._random.randint(2, 4))]
        cast = [
            self._actor(f"{role.__name__.strip('_')} {number}", list(role()))
            for number, role in enumerate(chosen)
        ]
        return [*cast, self._stranger()] if self._resolver in chosen else cast

    def _owner(self) -> dict[str, object]:
        owner = self._random.choice(("run", "run", "other"))
        return {"owner": owner, "take_over": self._random.random() < 0.5}

    def _driver(self) -> Iterable[list[Action]]:
        owner = self._owner()
        for batch in self._batches():
            base = self._random.random() < 0.2
            yield [actions.whole_batch(batch, base=base, **owner)]  # type: ignore[arg-type] # two options

    def _ops(self) -> Iterable[list[Action]]:
        owner = self._owner()
        for batch in self._batches():
            begin = actions.append(batch, **owner)  # type: ignore[arg-type] # two options
            yield [begin, actions.record, actions.confirm, actions.compose_commit, actions.clean_up]

    def _batches(self) -> list[int]:
        """All batches in order, twice: the second time for those that were refused."""
        return [*range(1, self._last + 1)] * 2

    def _cleaner(self) -> Iterable[list[Action]]:
        return [[actions.clean_up]] * 3

    def _committer(self) -> Iterable[list[Action]]:
        return [[actions.compose_commit]] * 4

    def _reader(self) -> Iterable[list[Action]]:
        return [[bystanders.read]] * 3

    def _keeper(self) -> Iterable[list[Action]]:
        for batch in self._batches()[: self._last]:
            name = f"kept-{batch}"
            yield [actions.savepoint(batch, name)]
            if self._random.random() < 0.5:
                yield [actions.release(name)]

    def _restorer(self) -> Iterable[list[Action]]:
        batch = self._random.randint(1, self._last - 1)
        return [[actions.restore(batch, f"{self._seed}")]] * 2

    def _resolver(self) -> Iterable[list[Action]]:
        for batch in self._batches():
            for file in batches.FILES:
                yield [actions.resolve(batch, file, self._random.choice(("keep", "replace")))]

    def _consumer(self) -> Iterable[list[Action]]:
        return [[bystanders.take_files(batch)] for batch in self._batches()]

    def _stranger(self) -> Callable[[Callable[[], None]], None]:
        """The owner of foreign objects that block files, and are sometimes removed again."""

        def act(turn: Callable[[], None]) -> None:
            for _ in range(3):
                batch, file = self._random.randint(1, self._last), self._random.choice(sorted(batches.FILES))
                for _ in range(self._random.randrange(60)):
                    turn()
                process = self._calm("stranger")
                bystanders.put_foreign(batch, file)(process, {})
                for _ in range(self._random.randrange(60)):
                    turn()
                if self._random.random() < 0.5:
                    bystanders.remove_foreign(batch, file)(process, {})

        return act

    # -- what happens to them

    def _actor(self, name: str, works: list[list[Action]]) -> Callable[[Callable[[], None]], None]:
        """Does one work after another. A failed step is retried; if that fails, the work is dropped."""

        def act(turn: Callable[[], None]) -> None:
            for work in works:
                if not self._work(name, work, turn):
                    return

        return act

    def _work(self, name: str, work: list[Action], turn: Callable[[], None]) -> bool:
        """False: the actor died, and is not restarted."""
        notes: Notes = {"attempt": None}
        for action in work:
            for _ in range(2):
                process = self._failing(name, turn)
                try:
                    notes = action(process, notes)
                    self._dead.append(process)  # twins of its requests may still be in flight
                    break
                except SimulatedCrash:
                    self._tell(f"{name} is dead")
                    self._dead.append(process)
                    if self._random.random() < 0.3:
                        return False
                except REFUSALS as refused:
                    self._tell(f"{name} is refused: {refused}")
                    self._dead.append(process)
                except DstlError as error:
                    raise BrokenPromiseError(f"{name} met {type(error).__name__}: {error}") from error
            else:
                return True
        return True

    def _failing(self, name: str, turn: Callable[[], None]) -> Process:
        self._made += 1
        schedule = SeededFaults(self._random.randrange(1 << 30), self._rate, _FAULTS)
        name = f"{self._seed}/{name}/{self._made}"
        return Process(self._world, self._setting, name, schedule, before_request=turn, trace=self._trace)

    def _calm(self, name: str) -> Process:
        return Process(self._world, self._setting, f"{self._seed}/{name}", trace=self._trace)

    def _between(self) -> None:
        chance = self._random.random()
        if chance < 0.01:
            self._world.clock.advance(self._random.random() * 2 * _HALF_AN_HOUR)
        elif chance < 0.03 and self._dead:
            self._random.choice(self._dead).store.deliver_late_effects()
