"""How a task tells the driver what it made: one row with one column of JSON.

Owns the row's form and the way a refusal travels. Does not own what an outcome says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from dstl_dagster.errors import ErrorKind, InvalidInputError

__all__ = ["OUTCOME_SCHEMA", "outcome_batch", "outcomes", "refusal_batch"]

OUTCOME_SCHEMA = "outcome string"
"""The schema of the rows, for `mapInArrow`."""

_REFUSED = "refused"


def outcome_batch(outcome: dict[str, Any]) -> pa.RecordBatch:
    """One row that carries a plain JSON object."""
    return pa.record_batch([pa.array([json.dumps(outcome)])], ["outcome"])


def refusal_batch(error: InvalidInputError) -> pa.RecordBatch:
    """One row that says why the task's input was refused."""
    return outcome_batch({_REFUSED: {"message": error.message, "kind": error.kind}})


def outcomes(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """The objects that the collected rows carry, in the order of the tasks.

    Raises: InvalidInputError with the words of the first task that refused its input.
    """
    found = [json.loads(row[0]) for row in rows]
    for outcome in found:
        if _REFUSED in outcome:
            raise InvalidInputError(outcome[_REFUSED]["message"], kind=ErrorKind(outcome[_REFUSED]["kind"]))
    return found
