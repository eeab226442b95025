"""The abilities that a store declares, for the layers above to choose by.

Owns the vocabulary. Does not own the choices: each caller makes its own, and none looks at a store's type,
its URI, or how long a request took.
"""

from __future__ import annotations

from dataclasses import dataclass

from dstl_dagster.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class StoreCapabilities:
    """Frozen, and the same for the life of a store, but for `batch_deletes`.

    The defaults hold for any bucket behind a network. A new field gets a default that is true of every store,
    so that older declarations stay true.

    Attributes:
        is_local: a request is a system call of this machine: make it where you are, cache nothing. Else there
            is a network in between: batch, cache, and keep several in flight.
        max_useful_threads: so many requests in flight at once, and no more, are faster than one after the
            other; `None`: as many as the caller can afford.
        open_ranges: it is an `OpeningStore`: an object is found once, and its ranges are read from then on
            without looking for it again.
        inspect_bucket: it is an `InspectableStore`: its bucket's settings, and what the credentials may do
            there, can be seen.
        nested_names: a name cannot be an object and a folder of others at once, as in a file system; `out`
            and `out/part-1` exclude each other.
        write_summed: the writers of `open_write` are `SummedWriter`s: the caller's checksum spares a pass.
        tells_time: it is a `TimedStore`: the clock that stamps its objects is known without a request.
        batch_deletes: it is a `BatchDeletingStore`: one request deletes many objects. False once the service
            has refused one.
        seconds_between_updates: a change or deletion of an object sooner than this after its last change may
            be refused for the moment (`UnavailableError`); 0: no such limit is known.
        counts_requests: it is a `CountingStore`: it counts its own requests, retries included.
        short_lists: it is a `ShortListingStore`: a listing of the first few names costs no whole page.
    """

    is_local: bool = False
    max_useful_threads: int | None = None
    open_ranges: bool = False
    inspect_bucket: bool = False
    nested_names: bool = False
    write_summed: bool = False
    tells_time: bool = False
    batch_deletes: bool = False
    seconds_between_updates: float = 0.0
    counts_requests: bool = False
    short_lists: bool = False

    def __post_init__(self) -> None:
        if self.max_useful_threads is not None and self.max_useful_threads < 1:
            raise InvalidInputError(f"max_useful_threads must be 1 or more, not {self.max_useful_threads}")
        if self.seconds_between_updates < 0:
            raise InvalidInputError(
                f"seconds_between_updates must be 0 or more, not {self.seconds_between_updates}"
            )

    def useful_threads(self, wanted: int) -> int:
        """How many of `wanted` threads are worth starting; at least one."""
        return max(1, wanted if self.max_useful_threads is None else min(wanted, self.max_useful_threads))

    def lookup_threads(self, wanted: int) -> int:
        """As `useful_threads`, of requests that move next to nothing: one where this machine answers.

        Such an answer is there before another thread has woken up, and the rest is the interpreter's work.
        """
        return 1 if self.is_local else self.useful_threads(wanted)
