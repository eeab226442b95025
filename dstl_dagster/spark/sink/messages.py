"""How an outcome travels from its task to the commit: in Spark's message, or in an object that it names.

Owns that choice. Spark collects the messages of all tasks in the driver's memory, so a large outcome becomes
an object of the attempt, and the message names it. Clean-up finds the object by the attempt in its name.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import WriterCommitMessage

from dstl_dagster.errors import InternalError
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark.stores import COST, cost_of
from dstl_dagster.storage import ABSENT, OWN_WRITE, ObjectStore, open_store
from dstl_dagster.timeline import Attempt

LARGEST_MESSAGE_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """An outcome as JSON, or the name of the object that holds it; exactly one of the two is set."""

    text: str | None = None
    object_name: str | None = None


def message_of(outcome: dict[str, Any], options: JobOptions) -> TaskMessage:
    """The message to return to Spark; writes an object if the outcome is large. `options`: the job's.

    Raises: UnavailableError.
    """
    text = json.dumps(outcome)
    if len(text) <= LARGEST_MESSAGE_BYTES or "attempt" not in outcome:
        return TaskMessage(text=text)
    # The count that it carries includes this write.
    cost = cost_of([outcome]) + OWN_WRITE
    text = json.dumps({**outcome, COST: cost.to_json()})
    attempt = Attempt.from_json(outcome["attempt"])
    name = f"{attempt.names.attempt_folder(attempt.attempt)}outcomes/{uuid.uuid4()}"
    with closing(open_store(attempt.store_uri, options.files)) as store:
        store.put(name, text.encode(), precondition=ABSENT)
    return TaskMessage(object_name=name)


def outcomes_of(store: ObjectStore, messages: Iterable[object]) -> list[dict[str, Any]]:
    """The outcomes, in the order of the messages. `None` (a task that failed) is skipped.

    Raises: NotFoundError if the attempt was cleaned up meanwhile, UnavailableError.
    """
    return [_outcome(store, message) for message in messages if message is not None]


def _outcome(store: ObjectStore, message: object) -> dict[str, Any]:
    if not isinstance(message, TaskMessage):
        raise InternalError(f"a task returned {type(message).__name__}, not its outcome")
    stored = message.text if message.object_name is None else store.get(message.object_name)
    outcome: dict[str, Any] = json.loads(stored or "")
    return outcome
