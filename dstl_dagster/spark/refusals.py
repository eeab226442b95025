"""What Spark would begin with `format("dstl")`, and cannot do: a continuous query, a table of the catalog, a
write that is partitioned.

Owns the refusals, before anything runs. Does not own micro-batches (`sink`).

A table would get its rows, and stay in the catalog without the options that it is read with. As for a
continuous query, Spark 4.3 plans the writer of a Python sink alike for every trigger, then calls `write` for
no row, commits each epoch without a message, and only logs what the commit raises. Of `partitionBy` a stream
says nothing to the sink. All are seen in the classes of the driver's writers alone, so `register` has them
look.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
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
_UNPARTITIONED = (
    'format("dstl") takes no partitionBy: a state is read by its keys (option where), and files of each part '
    "are written to a folder of their own"
)
_FORMAT = "_dstl_format"


def refuse_what_cannot_be(spark: SparkSession) -> None:
    """From now on such calls raise InvalidInputError on this driver. Idempotent."""
    streams, writers, tables = _writer_classes(spark)
    if hasattr(streams, _FORMAT):
        return
    for writer, says in ((streams, "format"), (writers, "format"), (tables, "using")):
        _remember_format(writer, says)
    _refuse_after("trigger", lambda *_, **how: how.get("continuous") is not None, streams, "start", REFUSAL)
    for writer, call in ((streams, "start"), (writers, "save")):
        _refuse_after("partitionBy", lambda *columns, **_: bool(columns), writer, call, _UNPARTITIONED)
    for writer, call in ((streams, "toTable"), (writers, "saveAsTable")):
        _refuse(writer, call, takes_format=True)
    for call in ("create", "replace", "createOrReplace"):
        _refuse(tables, call, takes_format=False)


def _remember_format(writer: Any, says: str) -> None:
    plain = getattr(writer, says)

    @wraps(plain)
    def format_(self: Any, source: str) -> Any:
        setattr(self, _FORMAT, source)
        return plain(self, source)

    setattr(writer, says, format_)
    setattr(writer, _FORMAT, None)


def _is_ours(writer: Any, args: tuple[Any, ...], how: dict[str, Any]) -> bool:
    """`args`, `how`: of a call that takes a format second."""
    into = how.get("format") or (args[1] if len(args) > 1 else None) or getattr(writer, _FORMAT) or ""
    return bool(into.lower() == "dstl")


def _refuse(writer: Any, call: str, *, takes_format: bool) -> None:
    plain = getattr(writer, call)

    @wraps(plain)
    def called(self: Any, *args: Any, **how: Any) -> Any:
        if _is_ours(self, *((args, how) if takes_format else ((), {}))):
            raise InvalidInputError(_NO_TABLE)
        return plain(self, *args, **how)

    setattr(writer, call, called)


def _refuse_after(setter: str, refused: Callable[..., bool], writer: Any, call: str, message: str) -> None:
    """`call` raises after `setter` with arguments that are `refused`."""
    plain_setter, plain_call = getattr(writer, setter), getattr(writer, call)
    mark = f"_dstl_{setter}"

    @wraps(plain_setter)
    def set_(self: Any, *args: Any, **how: Any) -> Any:
        setattr(self, mark, refused(*args, **how))
        return plain_setter(self, *args, **how)

    @wraps(plain_call)
    def called(self: Any, *args: Any, **how: Any) -> Any:
        if getattr(self, mark) and _is_ours(self, args, how):
            raise InvalidInputError(message)
        return plain_call(self, *args, **how)

    setattr(writer, mark, False)
    setattr(writer, setter, set_)
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
