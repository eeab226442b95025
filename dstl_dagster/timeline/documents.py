"""Documents that are written once and never change: manifests and reports.

Owns what a failed or lost write of one means. A document's bytes follow from what it says, so the same
bytes under its name are success, whoever wrote them; other bytes are a conflict.
"""

from __future__ import annotations

from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError, UnavailableError
from dstl_dagster.storage import ABSENT, ObjectStore

__all__ = ["write_once"]


def write_once(store: ObjectStore, name: str, payload: bytes, *, otherwise: ConflictError) -> None:
    """Create the object; the same bytes already there are as good.

    Raises: `otherwise` where other bytes are there; UnavailableError where the outcome cannot be learnt
    (call again).
    """
    try:
        store.put(name, payload, precondition=ABSENT)
    except (ConflictError, UnavailableError) as error:
        try:
            there = store.get(name)
        except NotFoundError:
            raise UnavailableError(
                f"could not learn whether {name} was written: {error}. Run the step again",
                kind=ErrorKind.OUTCOME_UNKNOWN,
            ) from error
        if there != payload:
            raise otherwise from error
