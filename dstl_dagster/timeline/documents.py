"""Documents that are written once and never change: manifests, reports and archived facts.

Owns what a failed or unacknowledged write of one means. Does not own what a document says. Its bytes are a
function of its content, so finding the same bytes under its name is success, no matter who wrote them;
different bytes are a conflict, unless the caller knows that they say the same.
"""

from __future__ import annotations

from collections.abc import Callable

from dstl_dagster.errors import ConflictError, DstlError, ErrorKind, NotFoundError, UnavailableError
from dstl_dagster.storage import ABSENT, ObjectStore


def in_doubt(what: str, error: DstlError) -> UnavailableError:
    """The error for a write that failed and is not there: it may still arrive, unless writes are denied."""
    if error.kind == ErrorKind.NO_PERMISSION:
        return UnavailableError(f"{what} cannot be written: {error}", kind=ErrorKind.NO_PERMISSION)
    return UnavailableError(f"{error}. Whether {what} was written is unknown: run the step again")


def write_once(
    store: ObjectStore,
    name: str,
    payload: bytes,
    *,
    otherwise: ConflictError,
    is_same: Callable[[bytes], bool] = lambda _: False,
) -> tuple[bytes, int | None]:
    """Create the object. Succeeds if the same bytes are already there, or others for which `is_same` is true.

    Returns: the bytes that are there, and their generation if this call created them.
    Raises: `otherwise` if different bytes are there; UnavailableError if the outcome cannot be determined
    (call again).
    """
    try:
        made = store.put(name, payload, precondition=ABSENT)
    except (ConflictError, UnavailableError) as error:
        try:
            there = store.get(name)
        except NotFoundError:
            raise in_doubt(name, error) from error
        if there != payload and not is_same(there):
            raise otherwise from error
        return there, None
    return payload, made.generation
