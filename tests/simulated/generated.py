"""Histories generated from a number, an endless supply.

Owns which step may follow which. Does not own the steps (`histories`). A script that cannot complete even
without faults (say, a restore to a subsumed checkpoint) is replaced by the next one of the same number.
"""

from __future__ import annotations

import itertools
import random
from datetime import timedelta

from tests.simulated import bystanders
from tests.simulated.actions import Base
from tests.simulated.batches import FILES, KEY_GROUPS
from tests.simulated.histories import History, Script
from tests.simulated.process import Setting
from tests.simulated.sweep import REFUSALS, Simulation

_NO_GRACE = timedelta(0)
_HOUR = timedelta(hours=1)


def generated(number: int, least_points: int) -> Simulation:
    """The history of this number, with at least `least_points` points."""
    for again in itertools.count():
        choose = random.Random(f"history {number}/{again}")
        try:
            simulation = Simulation(_History(choose).history(f"generated-{number}"))
        except REFUSALS:
            continue
        if len(simulation.all_points) >= least_points:
            return simulation
    raise AssertionError("the supply is endless")


def _base(chance: float, *, whole: float, slices: float) -> Base:
    """A whole base below the one chance, else a slice below the other, which the chance's digits choose."""
    if chance < whole:
        return True
    first, last = sorted((int(chance * 1e4) % KEY_GROUPS, int(chance * 1e6) % KEY_GROUPS))
    return (first, last) if chance < slices and (first, last) != (0, KEY_GROUPS - 1) else False


class _History:
    """One candidate script."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        self._script = Script()
        self._blocked: list[tuple[int, str]] = []
        self._savepoints: list[str] = []
        self._names = itertools.count(1)

    def history(self, name: str) -> History:
        choose = self._choose
        setting = Setting(
            num_retained=choose.choice((1, 2, 2, 3)),
            reader_grace=choose.choice((_NO_GRACE, _NO_GRACE, _NO_GRACE, _HOUR)),
            temporary_bucket=choose.choice((None, None, "temporary")),
        )
        self._batch()
        while self._script.last_batch < 5 and choose.random() < 0.95:
            choose.choice((self._batch, self._batch, self._something))()
        return self._script.history(name, setting)

    def _batch(self) -> None:
        choose, batch = self._choose, self._script.last_batch + 1
        kind = choose.random()
        if kind < 0.15:
            self._script.driver(batch, base=_base(choose.random(), whole=0.2, slices=0.6))
        elif kind < 0.35:
            file = choose.choice(sorted(FILES))
            self._blocked.append((batch, file))
            self._script.batch(batch, foreign=file)
        elif kind < 0.45:
            self._script.begin(batch, "other").batch(batch, take_over=True)
        elif kind < 0.5:
            self._script.abort(batch).batch(batch)
        else:
            base = _base(choose.random(), whole=0.1, slices=0.4)
            self._script.batch(batch, base=base, clean=choose.random() < 0.6)

    def _something(self) -> None:
        last = self._script.last_batch
        choice = self._choose.randrange(8)
        if choice == 0 and last > 1:
            self._go_back(self._choose.randrange(1, last))
        elif choice == 1:
            name = f"kept-{next(self._names)}"
            self._savepoints.append(name)
            self._script.savepoint(self._choose.randint(max(1, last - 1), last), name)
        elif choice == 2 and self._savepoints:
            self._script.release(self._savepoints.pop())
        elif choice in (3, 4) and self._blocked:
            batch, file = self._blocked.pop()
            self._script.resolve(batch, file, self._choose.choice(("keep", "replace")))
        elif choice == 5:
            self._script.consumer(self._choose.randint(1, last))
        elif choice == 6:
            self._script.wait()
        else:
            self._script.read().clean_up()

    def _go_back(self, batch: int) -> None:
        """A restore; the batches it abandons are applied again, without what blocked them."""
        self._script.restore(batch)
        for blocked, file in self._blocked:
            if blocked > batch:
                away = bystanders.remove_foreign(blocked, file)
                self._script.do(f"no foreign {blocked}", away)
        self._blocked = [each for each in self._blocked if each[0] <= batch]
        for again in range(batch + 1, self._script.last_batch + 1):
            self._script.batch(again)
