"""Spark's source `dstl` without one of its guards each. Spark makes it in processes of its own, by its name.

A stream's process ends with the stream. That of a batch is used again, so there the guard comes back.
"""

from __future__ import annotations

from unittest.mock import patch

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from dstl_dagster.keyed import StateAt
from dstl_dagster.spark import data_source
from dstl_dagster.spark.data_source import DstlDataSource
from dstl_dagster.spark.source.columns import FollowedColumns
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.spark.source.source import states_between
from dstl_dagster.spark.streaming import following


class AnyOffsetFits(DstlDataSource):
    """A checkpointLocation of another operator or timeline is taken for its own."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        following.require_followed = lambda *_, **__: None  # type: ignore[assignment]
        return super().streamReader(schema)


class AnyColumnsFit(DstlDataSource):
    """A stream goes on where a column was renamed."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        FollowedColumns.changes_in = lambda *_: []  # type: ignore[method-assign, assignment]
        return super().streamReader(schema)


class WithoutTheFirst(DstlDataSource):
    """Changes from the beginning on lack those of the oldest checkpoint that is retained."""

    def schema(self) -> StructType:
        def without(options: SourceOptions) -> list[StateAt]:
            found = states_between(options)
            return found if options.from_checkpoint else found[1:]

        with patch.object(data_source, "states_between", without):
            return super().schema()


class NotPinned(DstlDataSource):
    """A frame reads what is there when it is used, and not when it was made."""

    def schema(self) -> StructType:
        found = super().schema()
        self._states = []
        return found
