"""Which column of keyed state a name denotes, after columns were dropped or renamed.

Owns the ids: a column keeps its id for life, under any name, so rows written under an older name are
found, and a name that comes back is another column. Does not own columns or types (`state.schema`). Pure.

A column's id is the name that it was first written under. Only if an older column of the state has that id,
it is made unique: `name#2`. So a state whose columns were never dropped or renamed has nothing to record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.stored import Stored


@dataclass(frozen=True)
class ColumnIds(Stored):
    """The ids of a state's columns. False if no column was ever dropped or renamed.

    Attributes:
        ids: by present name, of the columns that were renamed, or whose id is not their name.
        dropped: the last name of each dropped column, by id. Never forgotten.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({*self.ids.values(), *self.dropped}) < len(self.ids) + len(self.dropped):
            raise InvalidInputError(f"two columns have one id: {self.ids}, and dropped {self.dropped}")

    def __bool__(self) -> bool:
        return bool(self.ids or self.dropped)

    def of(self, name: str) -> str:
        """The id of a present column."""
        return self.ids.get(name, name)

    def with_new(self, names: Iterable[str], present: Iterable[str]) -> ColumnIds:
        """With new columns of these names; `present`: the names of those that there are."""
        taken = {self.of(name) for name in present} | set(self.dropped)
        ids = dict(self.ids)
        for name in names:
            new = name
            if new in taken:
                new = next(each for number in count(2) if (each := f"{name}#{number}") not in taken)
                ids[name] = new
            taken.add(new)
        return ColumnIds(ids, self.dropped)

    def with_dropped(self, name: str) -> ColumnIds:
        ids = {each: known for each, known in self.ids.items() if each != name}
        return ColumnIds(ids, {**self.dropped, self.of(name): name})

    def with_renamed(self, old: str, new: str) -> ColumnIds:
        ids = {each: known for each, known in self.ids.items() if each != old}
        return ColumnIds({**ids, new: self.of(old)}, self.dropped)
