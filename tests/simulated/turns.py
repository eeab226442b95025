"""Actors that take turns at their requests: one runs, the others wait, and a seed determines the next.

Owns the turns. Does not own what an actor does. An actor often keeps its turn, and some sleep for a long
time, which produces both tight races and old zombies. Starts one thread per actor; only one runs at a time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

_KEEPS = 0.6
_FALLS_ASLEEP = 0.02
_LONGEST_SLEEP = 250


class Turns:
    """One run of some actors. Use each object once.

    Args:
        choose: determines whose turn is next.
        between: called before each turn, while no actor runs.
    """

    def __init__(self, choose: random.Random, between: Callable[[], None] = lambda: None) -> None:
        self._choose = choose
        self._between = between
        self._gates: list[threading.Semaphore] = []
        self._awake_at: list[int] = []
        self._living: list[int] = []
        self._turn = 0
        self._over = threading.Semaphore(0)

    def run(self, actors: Sequence[Callable[[Callable[[], None]], None]]) -> list[BaseException | None]:
        """Run all actors to completion; returns what each raised, if anything."""
        raised: list[BaseException | None] = [None] * len(actors)
        self._gates = [threading.Semaphore(0) for _ in actors]
        self._awake_at = [0 for _ in actors]
        self._living = list(range(len(actors)))

        def act(index: int) -> None:
            self._gates[index].acquire()
            try:
                actors[index](lambda: self._pass_on(index))
            except BaseException as error:
                raised[index] = error
            finally:
                self._living.remove(index)
                if self._living:
                    self._gates[self._next(None)].release()
                else:
                    self._over.release()

        threads = [
            threading.Thread(target=act, args=(index,), daemon=True, name=f"dstl-actor-{index}")
            for index in self._living
        ]
        for thread in threads:
            thread.start()
        self._gates[self._next(None)].release()
        self._over.acquire()
        for thread in threads:
            thread.join()
        return raised

    def _pass_on(self, index: int) -> None:
        self._between()
        following = self._next(index)
        if following != index:
            self._gates[following].release()
            self._gates[index].acquire()

    def _next(self, last: int | None) -> int:
        self._turn += 1
        if last is not None:
            if self._choose.random() < _FALLS_ASLEEP:
                self._awake_at[last] = self._turn + self._choose.randrange(_LONGEST_SLEEP)
            elif self._choose.random() < _KEEPS:
                return last
        awake = [index for index in self._living if self._awake_at[index] <= self._turn]
        return self._choose.choice(awake or self._living)
