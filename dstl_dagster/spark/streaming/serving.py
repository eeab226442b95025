"""Which streaming query a function in `foreachBatch` serves.

Owns that question, in a driver's own session and in Spark Connect. Does not own what is done with a
micro-batch (`foreach_batch`), nor which one may come next (`micro_batches`).

Spark itself says so, as a property of the thread that runs the function. A server of Spark Connect runs it in
a process of its own, beside the query, and hands it the rows and the number of the micro-batch alone. There
the query is found by its name among those that are active in the session that started it: Spark lets two of
these have one name at no time. What is found is the query's own id, which lives in its checkpoint folder, so
a folder that is deleted makes another query, under any name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from dstl_dagster.errors import InternalError, InvalidInputError

ServedQuery = Callable[[DataFrame], str]
"""The id of the query that a function serves, asked for with the rows of a micro-batch."""


def own_query(rows: DataFrame) -> str:
    """The query in whose thread the function is called.

    Raises: InternalError for rows of no query; InvalidInputError for rows of Spark Connect.
    """
    context = getattr(rows.sparkSession, "sparkContext", None)
    if context is None:
        raise InvalidInputError(_UNNAMED)
    query_id: str | None = context.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise InternalError("these rows are not of a streaming query: use the function in foreachBatch")
    return query_id


class NamedQuery:
    """The active query of this name. It is sent to the server with the function that it is for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._session: SparkSession | None = None
        self._id: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._name, self._id = state["_name"], None
        # Here the server has the session that started the query. That of the rows may be a clone of it, which
        # lists no query.
        self._session = SparkSession.getActiveSession()

    def __call__(self, rows: DataFrame) -> str:
        """Asks once: a process of the server's serves one start of one query.

        Raises: InvalidInputError if no query of this name is active.
        """
        if self._id is None:
            active = (self._session or rows.sparkSession).streams.active
            self._id = next((str(each.id) for each in active if each.name == self._name), None)
        if self._id is None:
            raise InvalidInputError(
                f"no query named {self._name!r} is active: start the one that this function is for with "
                f"queryName({self._name!r})"
            )
        return self._id


def served_query(name: str | None) -> ServedQuery:
    """How a function that is made here finds its query. Raises: InvalidInputError if it needs a name."""
    if not is_remote():
        return own_query
    if not name:
        raise InvalidInputError(_UNNAMED)
    return NamedQuery(name)


_UNNAMED = (
    "Spark Connect runs foreachBatch on its server, where a function finds its query by the query's name: "
    'call checkpointed_batches(..., query_name="a name"), and start the query with queryName("a name")'
)
