"""`partition_expr`, Dagster's own metadata for tables: which column says of which partition a row is.

Owns its form, and which rows are those of some partitions. Does not own whether a value lies in one
(`state.PartitionRows`), or when these rows are written or loaded (`io_manager`). A time partition has the
rows from its start to before its end; any other the rows that have its key as their value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import counted

if TYPE_CHECKING:
    from dstl_dagster.state import Axis, PartitionRows

_ONLY: Final = ""
"""The name of the dimension of a definition that has one."""


@dataclass(frozen=True)
class PartitionColumns:
    """The column of each dimension of a partitions definition.

    Attributes:
        columns: by dimension.
    """

    definition: dg.PartitionsDefinition[Any]
    columns: Mapping[str, str]

    @classmethod
    def of(
        cls,
        expression: object,
        definition: dg.PartitionsDefinition[Any] | None,
        keys: Sequence[str] | None,
        where: str,
    ) -> PartitionColumns:
        """From the metadata. `keys`: of the state; `None`: not said here. `where`: the asset, for errors.

        Raises: InvalidInputError for what does not fit the definition or the keys.
        """
        if definition is None:
            raise InvalidInputError(
                f"{where}: partition_expr says how it is partitioned, and it has no partitions_def"
            )
        dimensions = [*_dimensions(definition)]
        if dimensions == [_ONLY]:
            columns = {_ONLY: expression}
            example = '"partition_expr": "day"'
        else:
            columns = dict(expression) if isinstance(expression, Mapping) else {}
            example = '"partition_expr": {' + ", ".join(f'"{name}": "{name}"' for name in dimensions) + "}"
        if set(columns) != set(dimensions) or not all(isinstance(name, str) for name in columns.values()):
            raise InvalidInputError(
                f"{where}: partition_expr {expression!r} does not name a column for each "
                f"dimension of its partitions: write {example}, with your columns"
            )
        found = {dimension: str(columns[dimension]) for dimension in dimensions}
        for column in found.values():
            if keys is not None and column not in keys:
                raise InvalidInputError(
                    f"{where}: partition_expr names column {column!r}, which is not among its dstl/keys "
                    f"({', '.join(keys)}): a partition has its rows by their keys, so add it to these"
                )
        if len(set(found.values())) < len(found):
            raise InvalidInputError(
                f"{where}: partition_expr {expression!r} names a column twice: each dimension has its own"
            )
        return cls(definition, found)

    def rows_of(self, partitions: Sequence[str]) -> PartitionRows:
        """The rows of these partitions, keys of the definition."""
        from dstl_dagster.state import PartitionRows  # Arrow: not while definitions load

        dimensions = _dimensions(self.definition)
        wanted = [self._by_dimension(key) for key in partitions]
        axes: dict[str, Axis] = {}
        places: dict[str, dict[str, int]] = {}
        for name, column in self.columns.items():
            axes[column], places[name] = _axis(dimensions[name], {each[name] for each in wanted})
        boxes = frozenset(tuple(places[name][each[name]] for name in self.columns) for each in wanted)
        return PartitionRows(axes, boxes, in_words(partitions))

    def _by_dimension(self, key: str) -> Mapping[str, str]:
        if isinstance(self.definition, dg.MultiPartitionsDefinition):
            return self.definition.get_partition_key_from_str(str(key)).keys_by_dimension
        return {_ONLY: str(key)}


def in_words(partitions: Sequence[str]) -> str:
    """These partitions, as a batch is named after them."""
    if len(partitions) == 1:
        return f"partition {partitions[0]}"
    if not partitions:
        return "no partition"
    return f"{counted(len(partitions), 'partition')} from {partitions[0]} to {partitions[-1]}"


def _dimensions(definition: dg.PartitionsDefinition[Any]) -> Mapping[str, dg.PartitionsDefinition[Any]]:
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return {each.name: each.partitions_def for each in definition.partitions_defs}
    return {_ONLY: definition}


def _axis(definition: dg.PartitionsDefinition[Any], keys: set[str]) -> tuple[Axis, dict[str, int]]:
    """What these keys are of a column, and the index of each."""
    from dstl_dagster.state import ExactValues, TimeSpans  # Arrow: not while definitions load

    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        values = sorted(keys)
        return ExactValues(tuple(values)), {key: place for place, key in enumerate(values)}
    windows = {key: definition.time_window_for_partition_key(key) for key in keys}
    spans = sorted({(_microseconds(each.start), _microseconds(each.end)) for each in windows.values()})
    indices = {span: place for place, span in enumerate(spans)}
    starts, ends = tuple(start for start, _ in spans), tuple(end for _, end in spans)
    return TimeSpans(starts, ends, definition.timezone, definition.fmt), {
        key: indices[_microseconds(each.start), _microseconds(each.end)] for key, each in windows.items()
    }


def _microseconds(at: Any) -> int:
    """Of an instant that is at a whole second, as those of cron schedules are."""
    return int(at.timestamp()) * 1_000_000
