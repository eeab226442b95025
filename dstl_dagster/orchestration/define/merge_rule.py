"""The rule for the rows of an asset: they replace those of their keys, or are merged by key.

Owns the choice between the two, and what of a rule is refused as definitions load. Does not own either
(`spark`), or where a rule is written down (`checkpointed_asset`, `io_manager`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.define.asset_arguments import argument
from dstl_dagster.state import (
    StateSchema,
    declared_columns,
    refuse_unfinished,
    spelled,
    ttl_to_write,
    update_by_name,
)

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from dstl_dagster.settings import StateTtlConfig

_Written = TypeVar("_Written")


@dataclass(frozen=True)
class MergeRule:
    """How rows change the state of an operator: arguments as of `batch.merge_state`.

    Without `update` the rows replace those of their keys, and `delete` names a boolean column.
    """

    operator: str
    keys: tuple[str, ...]
    update: Mapping[str, str | Column] | None = None
    schema: StructType | str | None = None
    delete: str | Column | None = None
    max_parallelism: int | None = None
    ttl: StateTtlConfig | None = None

    def write(
        self, rows: Any, write_state: Callable[..., _Written], merge_state: Callable[..., _Written]
    ) -> _Written:
        """Steps 2 and 3 of Spark's rows, by one of these functions."""
        common = {
            "operator": self.operator,
            "keys": self.keys,
            "max_parallelism": self.max_parallelism,
            "ttl": self.ttl,
        }
        if self.update is None:
            return write_state(rows, deleted=self.delete, **common)
        return merge_state(rows, update=self.update, schema=self.schema, delete=self.delete, **common)

    def require_fitting(self, what: str) -> None:
        """`update` comes with `schema`, which has the keys, the TTL's column and what the rules name; SQL is
        whole.

        Raises: InvalidInputError, as the run would for most, naming the column or the rule.
        """
        keys, schema, update, ttl = self.keys, self.schema, self.update, self.ttl
        with argument("schema"):
            if (update is None) != (schema is None):
                raise InvalidInputError(
                    f"{what}: `update` and `schema`, the state's columns, belong together"
                )
        with argument("delete"):
            if update is None and not isinstance(self.delete, str | None):
                raise InvalidInputError(f"{what}: without `update`, `delete` names a boolean column")
        if schema is None or update is None:  # the columns come with the first rows
            columns = pa.schema([(name, pa.string()) for name in keys])
        else:
            with argument("schema"):
                columns = declared_columns(schema, what)
        with argument("keys"):
            state = StateSchema.of(columns, spelled(keys, columns.names, case_sensitive=False))
        if self.max_parallelism is not None:
            with argument("max_parallelism"):
                StateSchema.of(columns, state.key_columns, self.max_parallelism)
        if schema is None or update is None:
            return
        with argument("ttl"):
            ttl_to_write(ttl, None, state, 0)
        with argument("update"):
            filled = ttl.column if ttl is not None and ttl.is_processing_time else None
            update_by_name(update, state, filled, what)
            for name, text in update.items():
                if isinstance(text, str):
                    refuse_unfinished(text, columns.names, f"{what}: {name}")
        with argument("delete"):
            if isinstance(self.delete, str):
                refuse_unfinished(self.delete, columns.names, what)
