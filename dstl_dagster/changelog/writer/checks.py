"""A writer's argument checks, and the error of a failed upload. Pure.

Owns the messages; does not own any state (`writer`).
"""

from __future__ import annotations

import operator
from typing import Final

from dstl_dagster.errors import DstlError, ErrorKind, InternalError, InvalidInputError, UnavailableError
from dstl_dagster.format.changes import MAX_CHANGE_BYTES, checked_change
from dstl_dagster.format.sequence import SequenceNumber


def check_checkpoint_id(checkpoint_id: object) -> None:
    """InvalidInputError unless it is a checkpoint id."""
    if isinstance(checkpoint_id, bool) or not isinstance(checkpoint_id, int) or checkpoint_id < 0:
        raise InvalidInputError(f"a checkpoint id is a whole number of 0 or more, not {checkpoint_id!r}")


def checked_key_group(key_group: object) -> int:
    """A key group of any integer type, as an int. InvalidInputError for what has no integer value."""
    try:
        return operator.index(key_group)  # type: ignore[arg-type]  # what has no index raises TypeError
    except TypeError:
        raise InvalidInputError(f"a key group is an int, not {type(key_group).__name__}") from None


def checked_value(value: object) -> bytes:
    """A change as immutable bytes. InvalidInputError for another type or too large a size."""
    change = checked_change(value)
    if len(change) > MAX_CHANGE_BYTES:
        raise InvalidInputError(
            f"a change of {len(change)} bytes is larger than {MAX_CHANGE_BYTES}: split it"
        )
    return change


def check_position(what: str, sqn: object) -> None:
    """InvalidInputError unless it is a SequenceNumber."""
    if not isinstance(sqn, SequenceNumber):
        raise InvalidInputError(
            f"{what} is a {type(sqn).__name__}, not a SequenceNumber: SequenceNumber.of(n)"
        )


_BUGS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
)
"""A wrong call or a library of another version: the same call fails the same way."""


def as_dstl_error(error: BaseException) -> DstlError:
    """An upload's error as a DstlError, with the original as its cause."""
    if isinstance(error, DstlError):
        return error
    text = f"{type(error).__name__}: {error}"
    failure: DstlError = UnavailableError(f"the upload failed: {text}", ErrorKind.UPLOAD_FAILED)
    if isinstance(error, _BUGS):
        failure = InternalError(f"the upload failed, and not for the storage's sake: {text}")
    failure.__cause__ = error
    return failure


def check_persisted_from(
    from_: SequenceNumber,
    lowest: SequenceNumber,
    active: SequenceNumber,
    highest_failed: tuple[SequenceNumber, BaseException] | None,
) -> None:
    """Check that everything from `from_` on can be made durable.

    Args:
        lowest: where the log begins, after truncations.
        active: the position of the next change.
        highest_failed: the highest position whose upload failed for good, and why.

    Raises: UnavailableError (kind `upload_failed`), InvalidInputError.
    """
    check_position("from_", from_)
    if highest_failed is not None and highest_failed[0] >= from_:
        raise UnavailableError(
            f"the upload for {highest_failed[0]} has already failed previously: persist from above "
            "it, after writing the state anew, or begin a new log",
            kind=ErrorKind.UPLOAD_FAILED,
        ) from highest_failed[1]
    if lowest > from_:
        raise InvalidInputError(f"requested changes were truncated (requested: {from_}, truncated: {lowest})")
    if active < from_:
        raise InvalidInputError(
            f"requested changes were not yet appended (requested: {from_}, appended: {active})"
        )
