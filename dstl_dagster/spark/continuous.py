"""No continuous processing into `format("dstl")`: it calls no writer, so that rows would go nowhere.

Owns the refusal as such a query starts. Does not own micro-batches (`sink`).

Spark 4.3 plans the writer of a Python sink alike for every trigger, then calls `write` for no row of a
continuous query, commits each epoch without a message, and only logs what the commit raises. The trigger is
seen in one place: `DataStreamWriter`, on the driver. So `register` has it looked at there.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from pyspark.sql import SparkSession

from dstl_dagster.errors import InvalidInputError

__all__ = ["REFUSAL", "refuse_continuous"]

REFUSAL = (
    'format("dstl") writes micro-batches, and no row of a query with trigger(continuous=...): use '
    'trigger(processingTime="1 second"), or availableNow=True'
)
_FORMAT, _CONTINUOUS = "_dstl_format", "_dstl_continuous"


def refuse_continuous(spark: SparkSession) -> None:
    """From now on `start` raises InvalidInputError for such a query. Idempotent."""
    writer = _writer_class(spark)
    if hasattr(writer, _FORMAT):
        return
    plain_format, plain_trigger, plain_start = writer.format, writer.trigger, writer.start

    @wraps(plain_format)
    def format_(self: Any, source: str) -> Any:
        setattr(self, _FORMAT, source)
        return plain_format(self, source)

    @wraps(plain_trigger)
    def trigger(self: Any, **how: Any) -> Any:
        setattr(self, _CONTINUOUS, how.get("continuous") is not None)
        return plain_trigger(self, **how)

    @wraps(plain_start)
    def start(self: Any, *args: Any, **how: Any) -> Any:
        into = how.get("format") or (args[1] if len(args) > 1 else None) or getattr(self, _FORMAT) or ""
        if getattr(self, _CONTINUOUS) and into.lower() == "dstl":
            raise InvalidInputError(REFUSAL)
        return plain_start(self, *args, **how)

    setattr(writer, _CONTINUOUS, False)
    writer.format, writer.trigger, writer.start = format_, trigger, start
    setattr(writer, _FORMAT, None)


def _writer_class(spark: SparkSession) -> Any:
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as OfConnect

        return OfConnect
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    return DataStreamWriter
