"""The rule for retries: the retry policy of steps, and the errors that end a step at once.

Owns the translation of an error into a Dagster failure. A retry can help after a transient error, and after
anything that killed or broke the process. It cannot help against bad input, damaged bytes or a conflicting
decision of another process: such an error fails the step, with its message as the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import dagster as dg
from dagster._core.errors import DagsterInvalidPropertyError  # no public name; since Dagster 0.9

from dstl_dagster.errors import DstlError, ErrorKind, UnavailableError

DEFAULT_RETRY_POLICY = dg.RetryPolicy(
    max_retries=3, delay=1.0, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""For idempotent steps: retries after about 1, 2 and 4 seconds."""


@contextmanager
def without_useless_retries(where: str = "", facts: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turns an error that a retry cannot fix into `dagster.Failure(allow_retries=False)`.

    An UnavailableError stays one, with `where` put before its message, unless permission is missing. On the
    last try it is a failure as well: Dagster would name the number of tries, and hide the reason below.
    `facts`: metadata of the failure.
    """
    try:
        yield
    except DstlError as error:
        if not error.is_transient or _is_last_try():
            raise dg.Failure(
                description=f"{where}: {error.message}" if where else error.message,
                metadata={"kind": error.kind, **(facts or {})},
                allow_retries=False,
            ) from error
        if not where:
            raise
        raise UnavailableError(f"{where}: {error.message}", kind=ErrorKind(error.kind)) from error


def _is_last_try() -> bool:
    """Whether the op's retry policy allows no further one; False outside of a run's op."""
    with suppress(dg.DagsterInvariantViolationError, DagsterInvalidPropertyError, AttributeError):
        step = dg.OpExecutionContext.get().get_step_execution_context()
        policy = step.op_retry_policy
        return policy is not None and step.previous_attempt_count >= policy.max_retries
    return False
