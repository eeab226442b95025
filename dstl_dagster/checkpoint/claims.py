"""Whether a program fits the job that it works on: its source, its measure, and the operators that it writes.

Owns the rule, and what a batch's claim makes of its source. Does not own what a job is (`keyed.sources`), nor
how a program says what it is (`orchestration`, `spark`).

A state that its program no longer has a name for would be left beside an empty new one, under a green run.
Flink refuses a savepoint whose operators the program does not have, unless `allowNonRestoredState` is set
(org.apache.flink.runtime.checkpoint.Checkpoints); this is the same, for all that feeds a job.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.format import NOT_STORED, Stored
from dstl_dagster.keyed import Measure, Source
from dstl_dagster.timeline import BatchKey

_MEANT = (
    "option execution.state-recovery.ignore-unclaimed-state=true, in Dagster also the run's tag "
    "dstl/ignore_unclaimed_state: true"
)


def _nothing_else(_by: str) -> bool:
    return False


@dataclass(frozen=True)
class Claim(Stored):
    """A program's claim about its batch, before step 1.

    Attributes:
        source: what applies the batch.
        by: the asset, op, query or sink that this is, in the words of its page.
        measure: of the source's batches.
        operators: all that the source writes; `None`: it writes as it goes.
        position: of the source once the batch is complete; `None`: it stays.
        is_defined: whether the program has that asset, op, query or sink too, by `Source.by`. Stays here.
        ignore_unclaimed: state that nothing claims is left as it is.
        is_alone: no other source that the program has writes these operators.
    """

    source: str
    by: str
    measure: Measure = field(default_factory=Measure)
    operators: tuple[str, ...] | None = None
    position: Any = None
    is_defined: Callable[[str], bool] = field(
        default=_nothing_else, compare=False, repr=False, metadata=NOT_STORED
    )
    ignore_unclaimed: bool = field(default=False, metadata=NOT_STORED)
    is_alone: bool = field(default=False, metadata=NOT_STORED)

    def key(self, key: str, window: str = "") -> BatchKey:
        """The identity of one of the source's batches."""
        return BatchKey(key, self.source, window)

    def check(self, sources: Mapping[str, Source], operators: Collection[str], job: str) -> None:
        """Pass if a batch of this claim may be applied on a checkpoint with these sources and operators.

        Raises: ConflictError, kind `other_source` or `unclaimed`. Nothing was read or written.
        """
        if self.is_alone:
            self._check_alone(sources, job)
        known = sources.get(self.source)
        if known is None:
            self._check_new(sources, job)
            return
        if known.by not in ("", self.by):
            self._check_writer(known.by, job)
        self._check_measure(known, job)
        left = [] if self.operators is None else sorted({*known.operators}.difference(self.operators))
        if left and not self.ignore_unclaimed:
            new = next((each for each in self.operators or () if each not in operators), "NEW")
            raise ConflictError(
                f"operator {left[0]!r} of job {job!r} has state that source {self.source!r} ({self.by}) "
                f"wrote and no longer writes: nothing was read. {_ways_out('operator', left[0], new)}",
                kind=ErrorKind.UNCLAIMED,
            )

    def check_applied(self, source: Source, checkpoint_id: int, batch: str, job: str) -> None:
        """Pass if all that a batch wrote is there still, which this checkpoint holds. `source`: the claim's.

        Raises: ConflictError, kind `unclaimed`.
        """
        dropped = {} if self.ignore_unclaimed else source.dropped
        for operator, at in sorted(dropped.items()):
            if checkpoint_id < at and (self.operators is None or operator in self.operators):
                raise ConflictError(
                    f"batch {batch!r} of job {job!r} is in checkpoint {checkpoint_id}, and operator "
                    f"{operator!r}, which source {self.source!r} wrote too, was dropped in checkpoint {at}: "
                    "nothing was read. To have its rows again, restore to before that, or drop the source's "
                    f"other operators too and apply all its batches again; if they may be gone: {_MEANT}",
                    kind=ErrorKind.UNCLAIMED,
                )

    def _check_alone(self, sources: Mapping[str, Source], job: str) -> None:
        for name, source in sorted(sources.items()):
            shared = {*(self.operators or ())} & {*source.operators}
            if shared and source.by != self.by and self.is_defined(source.by):
                raise ConflictError(
                    f"operator {min(shared)!r} of job {job!r} has rows of source {name!r}, and {self.by} "
                    "would write its own among them, or in their place: nothing was read. Give one of them "
                    "another dstl/operator",
                    kind=ErrorKind.OTHER_SOURCE,
                )

    def _check_new(self, sources: Mapping[str, Source], job: str) -> None:
        if self.operators == () or self.ignore_unclaimed:
            return  # files alone begin at no state
        # What this program wrote under another name it writes no more.
        others = [
            (name, each)
            for name, each in sorted(sources.items())
            if each.by == self.by or not self.is_defined(each.by)
        ]
        if not others:
            return
        name, source = others[0]
        stands = f", which stands at {source.stands}," if source.stands else ""
        raise ConflictError(
            f"source {self.source!r} ({self.by}) is new to job {job!r}, and its source {name!r}{stands} is "
            f"defined nowhere here: nothing was read. {_ways_out('source', name, self.source)}",
            kind=ErrorKind.UNCLAIMED,
        )

    def _check_writer(self, before: str, job: str) -> None:
        if self.is_defined(before):
            raise ConflictError(
                f"source {self.source!r} of job {job!r} is {before}, which is defined beside {self.by}: "
                "one of them would take the other one's batches for its own. Give each a source of its own",
                kind=ErrorKind.OTHER_SOURCE,
            )
        if not self.ignore_unclaimed:
            raise ConflictError(
                f"source {self.source!r} of job {job!r} is {before}, which is defined nowhere here, and this "
                f"is {self.by}: nothing was read. If there are both, give each a source of its own; if it is "
                f"{before} under a new name, say so once: {_MEANT}",
                kind=ErrorKind.OTHER_SOURCE,
            )

    def _check_measure(self, known: Source, job: str) -> None:
        before, now = known.measure, self.measure
        if not before.kind or (before.kind == now.kind and before.fixed == now.fixed):
            return
        raise ConflictError(
            f"source {self.source!r} of job {job!r} is applied by {before}, and this batch is one of {now}: "
            "what is in the state already cannot be distinguished from what is not. Go on with the former, "
            "or give this one a source of its own",
            kind=ErrorKind.OTHER_SOURCE,
        )

    def moved(self) -> Source:
        """What a checkpoint of the batch says of its source."""
        return Source(self.position, self.measure, self.by, tuple(sorted(self.operators or ())))

    def at(self, position: Any) -> Claim:
        """The same, with that position once the batch is complete."""
        return replace(self, position=position)


def refuse_unmoved(before: Mapping[str, Source], moved: Mapping[str, Source], job: str) -> None:
    """Of a driver that says nothing but positions: refuse a position of a new name, while one that it has
    moved before stays where it is. The driver would have read its input from the beginning.

    Raises: ConflictError (kind `unclaimed`).
    """
    new = [name for name, each in moved.items() if name not in before and not each.by]
    left = [name for name, each in before.items() if name not in moved and not each.by and name]
    if new and left:
        raise ConflictError(
            f"this batch moves position {new[0]!r}, which is new to job {job!r}, and not {left[0]!r}, which "
            f"stands at {before[left[0]].stands}: the batch was not completed. "
            f"{_ways_out('source', left[0], new[0])}",
            kind=ErrorKind.UNCLAIMED,
        )


def _ways_out(what: str, old: str, new: str) -> str:
    command = f"dstl checkpoints {what}"
    return (
        f"If it has another name now: {command} --rename {shlex.quote(f'{old}={new}')}; if it goes: "
        f"{command} --drop {shlex.quote(old)}; if both are meant, say so once: {_MEANT}"
    )
