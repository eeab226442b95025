"""Calls of Spark's writers of which the sink hears nothing: a continuous query, a table of the catalog, and
`partitionBy`.

Owns refusing the first two before anything runs, and handing the columns of the third on as an option. Does
not own micro-batches and files (`sink`).

A table would get its rows, and stay in the catalog without the options that it is read with. As for a
continuous query, Spark 4.3 plans the writer of a Python sink alike for every trigger, then calls `write` for
no row, commits each epoch without a message, and only logs what the commit raises. With `partitionBy` a batch
looks for a catalog, and a stream says nothing to the sink. All are seen in the classes of the driver's
writers alone, so `register` changes these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import wraps
from inspect import signature
from typing import Any

from pyspark.sql import SparkSession

from dstl_dagster.errors import InvalidInputError

REFUSAL = (
    'format("dstl") writes micro-batches, and no row of a query with trigger(continuous=...): use '
    'trigger(processingTime="1 second"), or availableNow=True'
)
_NO_TABLE = (
    'format("dstl") cannot be a table of the catalog, which would be read without its options: write with '
    'save() or start(), and read with spark.read.format("dstl").load("<store>/<job>/<operator>")'
)
_FORMAT, _COLUMNS = "_dstl_format", "_dstl_partition_by"


def watch_writers(spark: SparkSession) -> None:
    """From now on such calls raise InvalidInputError on this driver, or reach the sink. Idempotent."""
    streams, writers, tables = _writer_classes(spark)
    if hasattr(streams, _FORMAT):
        return
    for writer, says in ((streams, "format"), (writers, "format"), (tables, "using")):
        _remember_format(writer, says)
    _refuse_continuous(streams)
    for writer, call in ((streams, "start"), (writers, "save")):
        _hand_on_columns(writer, call)
    for writer, call in ((streams, "toTable"), (writers, "saveAsTable")):
        _refuse(writer, call)
    for call in ("create", "replace", "createOrReplace"):
        _refuse(tables, call)


def _remember_format(writer: Any, says: str) -> None:
    plain = getattr(writer, says)

    @wraps(plain)
    def format_(self: Any, source: str) -> Any:
        setattr(self, _FORMAT, source)
        return plain(self, source)

    setattr(writer, says, format_)
    setattr(writer, _FORMAT, None)


def _is_ours(writer: Any, given: Mapping[str, Any]) -> bool:
    """`given`: the arguments of a call, by name."""
    return bool((given.get("format") or getattr(writer, _FORMAT) or "").lower() == "dstl")


def _refuse(writer: Any, call: str) -> None:
    plain = getattr(writer, call)

    @wraps(plain)
    def called(self: Any, *args: Any, **how: Any) -> Any:
        if _is_ours(self, signature(plain).bind(self, *args, **how).arguments):
            raise InvalidInputError(_NO_TABLE)
        return plain(self, *args, **how)

    setattr(writer, call, called)


def _refuse_continuous(streams: Any) -> None:
    plain_trigger, plain_start = streams.trigger, streams.start

    @wraps(plain_trigger)
    def trigger(self: Any, *args: Any, **how: Any) -> Any:
        self._dstl_continuous = how.get("continuous") is not None
        return plain_trigger(self, *args, **how)

    @wraps(plain_start)
    def start(self: Any, *args: Any, **how: Any) -> Any:
        given = signature(plain_start).bind(self, *args, **how).arguments
        if self._dstl_continuous and _is_ours(self, given):
            raise InvalidInputError(REFUSAL)
        return plain_start(self, *args, **how)

    streams._dstl_continuous = False
    streams.trigger, streams.start = trigger, start


def _hand_on_columns(writer: Any, call: str) -> None:
    plain_setter, plain_call = writer.partitionBy, getattr(writer, call)

    @wraps(plain_setter)
    def partition_by(self: Any, *columns: Any) -> Any:
        listed = len(columns) == 1 and isinstance(columns[0], list | tuple)
        setattr(self, _COLUMNS, columns[0] if listed else columns)
        return plain_setter(self, *columns)

    @wraps(plain_call)
    def called(self: Any, *args: Any, **how: Any) -> Any:
        given = signature(plain_call).bind(self, *args, **how)
        if _is_ours(self, given.arguments):
            columns = given.arguments.pop("partitionBy", None) or getattr(self, _COLUMNS)
            if columns:
                plain_setter(self)
                self.option("partition_by", json.dumps([columns] if isinstance(columns, str) else [*columns]))
        return plain_call(*given.args, **given.kwargs)

    setattr(writer, _COLUMNS, ())
    writer.partitionBy = partition_by
    setattr(writer, call, called)


def _writer_classes(spark: SparkSession) -> tuple[Any, Any, Any]:
    """Of streams, of `df.write`, and of `df.writeTo`."""
    from pyspark.sql import readwriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    if type(spark).__module__.startswith("pyspark.sql.connect."):
        from pyspark.sql.connect import readwriter as of_connect
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as OfConnect

        return OfConnect, of_connect.DataFrameWriter, of_connect.DataFrameWriterV2
    return DataStreamWriter, readwriter.DataFrameWriter, readwriter.DataFrameWriterV2
