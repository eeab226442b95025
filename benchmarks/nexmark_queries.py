"""NEXMark's stateful queries twice: in keyed state of this package, and with Spark's own stateful operators.

Owns the queries, and that both give the same rows. Does not own the events, nor what is measured.

    q3   who sells in category 10, in Oregon, Idaho or California: a join without end
    q5   bids of each auction in windows of 10 seconds, every 2
    q8   who opened an auction in the same 10 seconds in which they joined
    q11  bids of each bidder in sessions that end after 10 seconds without one

Ours hold their result in the state. Spark's joins and sessions hand theirs on as Parquet; its windows stay in
its state store. q11 of ours takes events in order, as the generator gives them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nexmark_events import AUCTION, BID, PERSON
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dstl_dagster.spark import CheckpointBatch

__all__ = ["QUERIES", "Query"]

OPERATOR = "q"


@dataclass(frozen=True)
class Query:
    """A query in both forms.

    Attributes:
        changes: a micro-batch's rows to one row for each key of the state.
        keys, schema, update: of `merge_state`.
        result: the state's rows to the result's.
        streaming: Spark's own: the stream of events to that of the result.
        found: the rows that Spark's own handed on, or that its state store holds, to the result's.
        mode: Spark's output mode. `update`: the result is read from its state store.
    """

    changes: Callable[[DataFrame], DataFrame]
    keys: tuple[str, ...]
    schema: str
    update: dict[str, str]
    result: Callable[[DataFrame], DataFrame]
    streaming: Callable[[DataFrame], DataFrame]
    found: Callable[[DataFrame], DataFrame]
    mode: str = "append"

    def apply(self, batch: CheckpointBatch, rows: DataFrame) -> None:
        """For `checkpointed_batches`."""
        batch.merge_state(
            self.changes(rows),
            operator=OPERATOR,
            keys=list(self.keys),
            schema=self.schema,
            update=self.update,
        )

    def require_same(self, spark: SparkSession, store: str, job: str, theirs: DataFrame) -> int:
        """The number of rows of the result. Raises AssertionError unless both have the same."""
        options = {"store": store, "job": job, "operator": OPERATOR}
        mine = self.result(spark.read.format("dstl").options(**options).load())
        other = self.found(theirs)
        if "ends" in mine.columns:
            # Spark hands on only sessions that its watermark has passed, and those whole.
            (last,) = other.agg(F.max("ends")).head() or (None,)
            mine = mine.where(F.col("ends") <= F.lit(last))
        other = other.select(*mine.columns).cache()
        missing, more = other.exceptAll(mine).count(), mine.exceptAll(other).count()
        assert missing == more == 0, f"{missing} rows are missing, {more} are too many"
        count = other.count()
        assert count, "no rows: the events end too early"
        return count


def _people(events: DataFrame) -> DataFrame:
    return events.where(F.col("kind") == PERSON)


def _auctions(events: DataFrame) -> DataFrame:
    return events.where(F.col("kind") == AUCTION)


def _bids(events: DataFrame) -> DataFrame:
    return events.where(F.col("kind") == BID)


# -- q3

_WANTED = "state IN ('OR', 'ID', 'CA')"


def _q3_changes(rows: DataFrame) -> DataFrame:
    people = _people(rows).where(_WANTED)
    sales = _auctions(rows).where("category = 10")
    both = people.selectExpr("id", "name", "city", "state", "CAST(NULL AS BIGINT) AS auction").unionAll(
        sales.selectExpr("seller", "NULL", "NULL", "NULL", "id")
    )
    kept = [F.max(name).alias(name) for name in ("name", "city", "state")]
    return both.groupBy("id").agg(*kept, F.collect_list("auction").alias("auctions"))


def _q3_streaming(events: DataFrame) -> DataFrame:
    people = _people(events).where(_WANTED).select("id", "name", "city", "state")
    sales = _auctions(events).where("category = 10").selectExpr("seller", "id AS auction")
    return sales.join(people, F.col("seller") == F.col("id"))


_Q3 = Query(
    changes=_q3_changes,
    keys=("id",),
    schema="id BIGINT, name STRING, city STRING, state STRING, auctions ARRAY<BIGINT>",
    update={
        **{name: f"coalesce(old.{name}, new.{name})" for name in ("name", "city", "state")},
        "auctions": "concat(coalesce(old.auctions, array()), new.auctions)",
    },
    result=lambda state: state.where("name IS NOT NULL").selectExpr(
        "name", "city", "state", "explode(auctions) AS auction"
    ),
    streaming=_q3_streaming,
    found=lambda rows: rows,
)

# -- q5


def _q5_windows(rows: DataFrame) -> DataFrame:
    starts = F.window("ts", "10 seconds", "2 seconds")
    return _bids(rows).groupBy(starts, "auction").agg(F.count("*").alias("bids"))


_Q5 = Query(
    changes=lambda rows: _q5_windows(rows).selectExpr("window.start AS starts", "auction", "bids"),
    keys=("starts", "auction"),
    schema="starts TIMESTAMP, auction BIGINT, bids BIGINT",
    update={"bids": "coalesce(old.bids, 0) + new.bids"},
    result=lambda state: state,
    streaming=_q5_windows,
    found=lambda store: store.selectExpr(
        "key.window.start AS starts", "key.auction AS auction", "value.count AS bids"
    ),
    mode="update",
)

# -- q8

_TEN_SECONDS = "window(ts, '10 seconds').start"


def _q8_changes(rows: DataFrame) -> DataFrame:
    people = _people(rows).selectExpr("id", f"{_TEN_SECONDS} AS starts", "name", "0L AS auctions")
    sales = _auctions(rows).selectExpr("seller", _TEN_SECONDS, "CAST(NULL AS STRING)", "1L")
    both = people.unionAll(sales)
    return both.groupBy("id", "starts").agg(F.max("name").alias("name"), F.sum("auctions").alias("auctions"))


def _q8_streaming(events: DataFrame) -> DataFrame:
    people = _people(events).selectExpr("id", f"{_TEN_SECONDS} AS starts", "name")
    sales = _auctions(events).selectExpr("seller", f"{_TEN_SECONDS} AS opened")
    return people.join(sales, (F.col("id") == F.col("seller")) & (F.col("starts") == F.col("opened")))


_Q8 = Query(
    changes=_q8_changes,
    keys=("id", "starts"),
    schema="id BIGINT, starts TIMESTAMP, name STRING, auctions BIGINT",
    update={
        "name": "coalesce(old.name, new.name)",
        "auctions": "coalesce(old.auctions, 0) + new.auctions",
    },
    result=lambda state: state.where("name IS NOT NULL AND auctions > 0"),
    streaming=_q8_streaming,
    found=lambda rows: rows.groupBy("id", "starts", "name").agg(F.count("*").alias("auctions")),
)

# -- q11

_GAP = "INTERVAL 10 SECONDS"


def _q11_changes(rows: DataFrame) -> DataFrame:
    """For each bidder the sessions of the micro-batch alone, in order."""
    in_order = Window.partitionBy("bidder").orderBy("ts")
    begins = F.coalesce(F.expr("ts > before + " + _GAP), F.lit(True)).cast("int")
    marked = _bids(rows).withColumn("before", F.lag("ts").over(in_order))
    numbered = marked.select("bidder", "ts", F.sum(begins).over(in_order).alias("session"))
    sessions = numbered.groupBy("bidder", "session").agg(
        F.expr(f"struct(min(ts) AS starts, max(ts) + {_GAP} AS ends, count(*) AS bids)").alias("one")
    )
    return sessions.groupBy("bidder").agg(F.sort_array(F.collect_list("one")).alias("sessions"))


_JOINED_SESSION = (
    "named_struct('starts', element_at(old.sessions, -1).starts, 'ends', new.sessions[0].ends, "
    "'bids', element_at(old.sessions, -1).bids + new.sessions[0].bids)"
)
_Q11 = Query(
    changes=_q11_changes,
    keys=("bidder",),
    schema="bidder BIGINT, sessions ARRAY<STRUCT<starts: TIMESTAMP, ends: TIMESTAMP, bids: BIGINT>>",
    update={
        "sessions": f"""CASE
            WHEN old.sessions IS NULL THEN new.sessions
            WHEN new.sessions[0].starts > element_at(old.sessions, -1).ends
                THEN concat(old.sessions, new.sessions)
            ELSE concat(
                slice(old.sessions, 1, size(old.sessions) - 1),
                array({_JOINED_SESSION}),
                slice(new.sessions, 2, size(new.sessions)))
            END"""
    },
    result=lambda state: state.selectExpr("bidder", "inline(sessions)"),
    streaming=lambda events: (
        _bids(events)
        .withWatermark("ts", "0 seconds")
        .groupBy(F.session_window("ts", "10 seconds"), "bidder")
        .agg(F.count("*").alias("bids"))
    ),
    found=lambda rows: rows.selectExpr(
        "bidder", "session_window.start AS starts", "session_window.end AS ends", "bids"
    ),
)

QUERIES = {"q3": _Q3, "q5": _Q5, "q8": _Q8, "q11": _Q11}
