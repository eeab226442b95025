"""A batch that Dagster opens and another process writes: the data handed to that process, and taken up there.

Owns the hand-over: the extras of Dagster Pipes, and any JSON that carries them. Does not own opening the
attempt (`orchestration`), writing (`spark`), or Pipes itself: needs no Dagster, and dagster-pipes only in the
type of an argument. What comes back goes through the store, as everything between steps does: a report there
is the batch, and no message of Pipes is needed or trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, Claim
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import ErrorKind, FormatError, InvalidInputError
from dstl_dagster.format import from_fields, to_fields, whole_number
from dstl_dagster.settings import JobOptions
from dstl_dagster.storage import Cost, open_store

if TYPE_CHECKING:
    from dagster_pipes import PipesContext

    from dstl_dagster.spark import ResumedBatch

__all__ = ["EXTRA", "HandedBatch", "open_batch"]

EXTRA: Final = "dstl"
"""The one key of the extras that is ours."""

_OPENED: Final[WeakSet[Any]] = WeakSet()
"""The contexts of Pipes by which this process has opened its batch."""
_VERSION: Final = 1
_SHOWN: Final = 80


@dataclass(frozen=True)
class HandedBatch:
    """The data that another process needs for steps 2 and 3 of an attempt. Holds no secret.

    Attributes:
        attempt: as opened by step 1.
        claim: what the program that opened it said of the batch.
        options: the job's, by which the process and its tasks write.
        trigger: the cost of step 1.
    """

    attempt: Attempt
    claim: Claim
    options: JobOptions = field(default_factory=JobOptions)
    trigger: Cost = field(default_factory=Cost)

    def to_extras(self) -> dict[str, Any]:
        """For `extras=` of a Pipes client, or as JSON for a program that is started otherwise."""
        return {EXTRA: {"version": _VERSION, **to_fields(self)}}

    @classmethod
    def from_extras(cls, extras: Mapping[str, Any]) -> HandedBatch:
        """The inverse of `to_extras`; other keys are the caller's.

        Raises: InvalidInputError for extras without a batch, or with one that is none; FormatError (kind
        `newer_version`) for one of a later release.
        """
        sent = extras.get(EXTRA)
        if sent is None:
            raise InvalidInputError(
                f"the extras hold no batch under {EXTRA!r}: launch this process with `extras=batch.extras`, "
                "of `with changelog.pipes_checkpoint(context, job=...) as batch:`"
            )
        try:
            fields = dict(sent)
            version = whole_number(fields.pop("version"))
            if not version:
                raise ValueError("version 0")
            handed = from_fields(cls, fields) if version <= _VERSION else None
        except (FormatError, LookupError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"what the extras hold under {EXTRA!r} is no batch: {repr(sent)[:_SHOWN]}. Hand on "
                "`batch.extras` as it is"
            ) from error
        if handed is None:
            raise FormatError(
                f"Dagster's side has a later release of dstl-dagster than this process: its batch has "
                f"version {version}, and the last known here is {_VERSION}. Install the same release here",
                kind=ErrorKind.NEWER_VERSION,
            )
        return handed


def open_batch(pipes: PipesContext | Mapping[str, Any], *, progress: Progress | None = None) -> ResumedBatch:
    """The batch that Dagster opened for this process, as a context manager: steps 2 and 3.

    It has the methods of `CheckpointBatch`. Leaving the block normally makes the batch durable and stores its
    report, with which Dagster goes on once this process ends; nothing is sent by `pipes`. Leaving it by an
    exception hands nothing over: Dagster aborts the attempt when the process ends. If `already_in` is set, an
    earlier start of this program has handed the batch over, and there is nothing to write.

    Args:
        pipes: what `open_dagster_pipes()` yields, or the extras themselves, as parsed JSON.
        progress: called with (finished tasks, known tasks) while a write runs.

    Raises: InvalidInputError for a process that was handed no batch; FormatError (kind `newer_version`) for
    a batch of a later release. Entering raises FencedError if the attempt has ended meanwhile,
    NotFoundError if this machine sees another store under the URI, and ConflictError (kind
    `already_applied`) if this program has handed the batch over in an earlier block.
    """
    from dstl_dagster.spark import ResumedBatch  # PySpark: not where Dagster makes the extras

    handed = HandedBatch.from_extras(_extras_of(pipes))
    is_again = not isinstance(pipes, Mapping) and pipes in _OPENED
    if not isinstance(pipes, Mapping):
        _OPENED.add(pipes)
    attempt, options = handed.attempt, handed.options
    coordinator = CheckpointCoordinator(
        attempt.job, open_store(attempt.store_uri, options.files), options, owner=f"pipes-{attempt.attempt}"
    )
    return ResumedBatch(
        coordinator,
        attempt,
        claim=handed.claim,
        trigger=handed.trigger,
        progress=progress,
        is_again=is_again,
    )


def _extras_of(pipes: PipesContext | Mapping[str, Any]) -> Mapping[str, Any]:
    extras = pipes if isinstance(pipes, Mapping) else getattr(pipes, "extras", None)
    if not isinstance(extras, Mapping):  # outside of a launch, dagster-pipes hands out a mock
        raise InvalidInputError(
            "no Pipes client has started this process, or its context did not get here "
            "(DAGSTER_PIPES_CONTEXT): run it by `pipes.run(context=context, extras=batch.extras, ...)`"
        )
    return extras
