"""Which errors a step may be retried after. The one place where an error becomes a Dagster failure.

A retry helps after an UnavailableError, and after whatever killed or broke the process. It cannot help
where the input, the stored bytes or a decision of somebody else stands in the way: then Dagster is told
not to retry, and shows our message as the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import dagster as dg

from dstl_dagster.errors import (
    ClosedError,
    ConflictError,
    FormatError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)

__all__ = ["without_useless_retries"]

_FINAL = (InvalidInputError, NotFoundError, ConflictError, ClosedError, FormatError, InternalError)


@contextmanager
def without_useless_retries(where: str = "", facts: Mapping[str, str] | None = None) -> Iterator[None]:
    """Inside, an error that a retry cannot mend becomes `dagster.Failure(allow_retries=False)`.

    A store that is away stays an UnavailableError, which says at what it was away.

    Args:
        where: the step and the checkpoint, for the beginning of the message.
        facts: shown beside the message.
    """
    try:
        yield
    except UnavailableError as error:
        if not where:
            raise
        raise UnavailableError(f"{where}: {error.message}", kind=error.kind) from error
    except _FINAL as error:
        raise dg.Failure(
            description=f"{where}: {error.message}" if where else error.message,
            metadata={"kind": error.kind, **(facts or {})},
            allow_retries=False,
        ) from error
