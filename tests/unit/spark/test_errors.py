"""How an error of this package is told from what else a traceback of another process says."""

from __future__ import annotations

import traceback

import pytest

from dstl_dagster import errors
from dstl_dagster.errors import DstlError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.spark.errors import error_in, raise_refusal, refusal

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, DstlError)]
ODD = 'what happened: "ä\\n", kind: odd\n  File "x", line 1\nkind: none of ours, and what to do\n'


def traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("each", CLASSES)
def test_a_traceback_holds_class_kind_and_message(each: type[DstlError]) -> None:
    """Whatever stands around the traceback, and in the message."""
    for message in ("what happened", ODD, ""):
        found = error_in(f"Job aborted: {traceback_of(each(message, 'own_kind'))}\n\n\tat org.Spark.run")  # type: ignore[arg-type]
        assert (type(found), found.message, found.kind) == (each, message, "own_kind")


def test_the_error_that_left_the_process_counts() -> None:
    """Not the one that it was raised from; and a library's own error is none of ours."""
    try:
        try:
            raise NotFoundError("the cause")
        except NotFoundError as cause:
            raise InvalidInputError("the error") from cause
    except InvalidInputError as error:
        found = error_in(traceback_of(error))
    assert (type(found), str(found)) == (InvalidInputError, "the error")
    assert error_in(traceback_of(ValueError("dstl_dagster.errors.DstlError: kind: error"))) is None


@pytest.mark.parametrize("each", [each for each in CLASSES if not each("x").is_transient])
def test_an_error_that_stays_is_an_outcome(each: type[DstlError]) -> None:
    """The driver raises what the task met."""
    raise_refusal([{"partition": 0}])
    with pytest.raises(each, match="what happened") as caught:
        raise_refusal([{"partition": 0}, refusal(each("what happened", "own_kind"))])  # type: ignore[arg-type]
    assert (type(caught.value), caught.value.kind) == (each, "own_kind")


def test_an_error_that_may_pass_fails_the_task() -> None:
    """So Spark tries it again; but for a permission, which no retry grants."""
    with pytest.raises(UnavailableError, match="away"):
        refusal(UnavailableError("away"))
    assert refusal(UnavailableError("refused", errors.ErrorKind.NO_PERMISSION))
