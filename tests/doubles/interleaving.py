"""Several actors that take turns at their requests, in an order determined by a seed.

Owns the turns. Does not own what an actor does: it calls `turn()` before each step (a `FaultStore` does so
through `before_request`), and runs alone between two calls. So the seed replays a race.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

Actor = Callable[[Callable[[], None]], None]


class Interleaving:
    """One run of some actors. Use each object once.

    Args:
        seed: determines whose turn is next whenever all actors are waiting.
        deadline_seconds: after it, a stuck run fails.
    """

    def __init__(self, seed: int, *, deadline_seconds: float = 60.0) -> None:
        self._random = random.Random(seed)
        self._deadline_seconds = deadline_seconds
        self._changed = threading.Condition()
        self._running = 0
        self._waiting: set[int] = set()
        self._chosen: int | None = None

    def run(self, actors: Sequence[Actor]) -> list[BaseException | None]:
        """Run all actors to completion; returns what each raised, if anything. Raises: TimeoutError."""
        raised: list[BaseException | None] = [None] * len(actors)
        self._running = len(actors)

        def act(index: int, actor: Actor) -> None:
            try:
                actor(lambda: self._wait_for_turn(index))
            except BaseException as error:
                raised[index] = error
            finally:
                with self._changed:
                    self._running -= 1
                    self._choose()

        threads = [
            threading.Thread(target=act, args=(index, actor), daemon=True)
            for index, actor in enumerate(actors)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self._deadline_seconds)
            if thread.is_alive():
                raise TimeoutError("an actor of the interleaving is stuck")
        return raised

    def _wait_for_turn(self, index: int) -> None:
        with self._changed:
            self._waiting.add(index)
            self._choose()
            if not self._changed.wait_for(lambda: self._chosen == index, self._deadline_seconds):
                raise TimeoutError("the turn never came")
            self._chosen = None
            self._waiting.discard(index)

    def _choose(self) -> None:
        # Only once every running actor waits: what happens between two turns is then one step.
        if self._chosen is None and self._waiting and len(self._waiting) == self._running:
            self._chosen = self._random.choice(sorted(self._waiting))
            self._changed.notify_all()
