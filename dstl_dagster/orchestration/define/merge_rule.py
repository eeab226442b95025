"""What the rows of an asset become: rows that replace those of their keys, or a merge by key.

Owns the choice between the two. Does not own either (`spark`), or where a rule is written down
(`checkpointed_asset`, `io_manager`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from dstl_dagster.settings import StateTtlConfig

_Written = TypeVar("_Written")


def is_spark_rows(rows: Any) -> bool:
    """Whether this is a DataFrame of Spark, classic or Connect. Imports neither."""
    return hasattr(rows, "sparkSession")


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
