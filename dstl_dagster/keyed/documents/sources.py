"""A job, as its checkpoints describe it: its sources, how far each is, by what measure, what it writes.

Owns these values, their JSON form, and what a rename or a drop makes of them. Does not own whether a program
fits them (`checkpoint.claims`). Pure.

A source is what applies: an asset, an op's source, a query, a sink's operator. It is known by its name; which
asset or query that is may change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import Stored


@dataclass(frozen=True)
class Measure(Stored):
    """By what a source counts how far it is.

    Attributes:
        kind: what its batches are, such as `time windows`, `static partitions`, `query`; empty: not said.
        fixed: what must stay as it is, for a batch of a name to be the same batch.
        free: what may change, and is here to be shown.
    """

    kind: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        said = ", ".join(f"{name} {value}" for name, value in {**self.fixed, **self.free}.items() if value)
        return f"{self.kind} ({said})" if said else self.kind


@dataclass(frozen=True)
class Source(Stored):
    """One source at one checkpoint.

    Attributes:
        position: how far it has been read, any plain JSON value. Of time windows the instant at which the
            next one begins, as ISO 8601 in UTC.
        measure: by what that is counted.
        by: the asset, op, query or sink that wrote last; empty for a driver that does not say. Its batches
            that name no source either are those of the source whose name is empty.
        operators: those whose state it writes, ascending.
        id: by which the timeline knows its batches, see `source_id`; a rename leaves it. Empty for one that
            is in no checkpoint yet.
        dropped: operators that it wrote until they were dropped, each with the checkpoint of the drop.
    """

    position: Any = None
    measure: Measure = field(default_factory=Measure)
    by: str = ""
    operators: tuple[str, ...] = ()
    id: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def stands(self) -> str:
        """The position in a sentence; empty without one."""
        if self.position is None:
            return ""
        return self.position if isinstance(self.position, str) else json.dumps(self.position)


def source_id(sources: Mapping[str, Source], name: str, parent: int | None) -> str:
    """The id of source `name`, or the one that it will have as it begins on checkpoint `parent`.

    Another one may have had its name before: renamed or dropped since, with batches that are not this one's.
    So an id ends in the checkpoint, 0 for none, always: `feed@1` may be a name.
    """
    known = sources.get(name)
    return f"{name}@{parent or 0}" if known is None else known.id


def name_in_id(source_id: str) -> str:
    """The name that the source had as it began."""
    return source_id.rpartition("@")[0]


def merged_sources(
    before: Mapping[str, Source],
    moved: Mapping[str, Source],
    *,
    batch_of: str | None,
    written: Iterable[str],
    parent: int | None,
) -> dict[str, Source]:
    """The sources of a checkpoint: those of its parent, and on top what its batch moved.

    Args:
        moved: as its program says them. What that leaves out is as before; without operators the source has
            written those of the batch, too.
        batch_of: the id of the source whose batch it is, which is one of the job's from now on; `None`: the
            batch has no key.
        written: the operators of the batch.
    """
    merged, moved, written = dict(before), dict(moved), {*written}
    if batch_of is not None:
        named = next((name for name, each in before.items() if each.id == batch_of), None)
        moved.setdefault(name_in_id(batch_of) if named is None else named, Source())
    for name, source in moved.items():
        known = before.get(name, Source())
        merged[name] = replace(
            known,
            position=known.position if source.position is None else source.position,
            measure=source.measure if source.measure.kind else known.measure,
            by=source.by or known.by,
            operators=source.operators or tuple(sorted(written.union(known.operators))),
            id=source_id(before, name, parent),
        )
    return merged


@dataclass(frozen=True)
class NameChange(Stored):
    """New names of operators and sources, and those that go; of a checkpoint of its own.

    Attributes:
        operators, sources: the new name by the old one; `None`: it goes.
    """

    operators: Mapping[str, str | None] = field(default_factory=dict)
    sources: Mapping[str, str | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.operators or self.sources)

    def require_known(self, operators: Iterable[str], sources: Iterable[str], job: str) -> None:
        """Raises: NotFoundError (kind `no_state`) for a name that the job does not have; InvalidInputError
        for a new name that it has already.
        """
        for what, known, changes in (
            ("operator", [*operators], self.operators),
            ("source", [*sources], self.sources),
        ):
            there = ", ".join(map(repr, sorted(known))) or "none"
            for old, new in changes.items():
                if old not in known:
                    raise NotFoundError(
                        f"job {job!r} has no {what} {old!r}; it has {there}", kind=ErrorKind.NO_STATE
                    )
                if new is not None and (new in known or [*changes.values()].count(new) > 1):
                    raise InvalidInputError(
                        f"job {job!r} already has {what} {new!r}: drop that first, or use another name"
                    )
                if new == "":
                    raise InvalidInputError(f"the new name of {what} {old!r} is empty")

    def renamed_sources(self, before: Mapping[str, Source], checkpoint_id: int) -> dict[str, Source]:
        """The sources in this checkpoint: by their new names, with the new names of the operators that they
        write; without those of `gone_sources`.
        """
        renamed, gone = {}, self.gone_sources(before)
        for old, source in before.items():
            new = self.sources.get(old, old)
            if new is not None and old not in gone:  # an asset that named no source is its own
                by = new if source.by == old else source.by
                dropped = {**source.dropped, **dict.fromkeys(self.dropped_of(source), checkpoint_id)}
                renamed[new] = replace(
                    source, by=by, operators=self._renamed(source.operators), dropped=dropped
                )
        return renamed

    def dropped_of(self, source: Source) -> list[str]:
        """The operators that go of those that it writes, ascending."""
        return [each for each in source.operators if self.operators.get(each, each) is None]

    def gone_sources(self, before: Mapping[str, Source]) -> list[str]:
        """The sources that go with the last operator that they wrote, ascending.

        A position says how much of a source is in the state. Of these nothing is left there, and a batch that
        was taken for an applied one would be lost under a green run.
        """
        return sorted(
            name
            for name, source in before.items()
            if source.operators and not self._renamed(source.operators)
        )

    def _renamed(self, operators: Iterable[str]) -> tuple[str, ...]:
        names = (self.operators.get(name, name) for name in operators)
        return tuple(sorted(name for name in names if name is not None))
