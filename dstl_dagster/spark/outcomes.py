"""How a task returns its outcome to the driver: one row with one column of JSON.

Owns the form of the row, and how a refusal travels. Does not own an outcome's fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from dstl_dagster.errors import ErrorKind, InvalidInputError

__all__ = ["OUTCOME_SCHEMA", "outcome_row", "outcomes", "refusal_row"]

OUTCOME_SCHEMA = "outcome string"
"""The schema of the rows, for `mapInArrow`."""

_REFUSED = "refused"


def outcome_row(outcome: dict[str, Any]) -> pa.RecordBatch:
    """A record batch of one row, which holds a plain JSON object."""
    return pa.record_batch([pa.array([json.dumps(outcome)])], ["outcome"])


def refusal_row(error: InvalidInputError) -> pa.RecordBatch:
    """A record batch of one row, which holds why the task refused its input."""
    return outcome_row({_REFUSED: {"message": error.message, "kind": error.kind}})


def outcomes(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """The outcomes in the collected rows, in the order of the tasks.

    Raises: InvalidInputError, as the first task that refused its input raised it.
    """
    found = [json.loads(row[0]) for row in rows]
    for outcome in found:
        if _REFUSED in outcome:
            raise InvalidInputError(outcome[_REFUSED]["message"], kind=ErrorKind(outcome[_REFUSED]["kind"]))
    return found
