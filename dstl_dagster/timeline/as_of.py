"""Which checkpoint is meant: what people say, and the checkpoint of a timeline that it names.

Owns the forms of `at`, the same for the command, Spark, Dagster and Python. Does not own loading the
checkpoint (`checkpoint`). Pure, but for archive look-ups.

    12, "checkpoint:12"                         the checkpoint of this id
    "2001-01-05", "partition:KEY"               the checkpoint that holds this batch: a partition, or any key
    "before-migration", "savepoint:NAME"        the checkpoint that a savepoint keeps
    "2026-11-22T18:00", "time:2026-11-22"       where the job stood at that time, in UTC unless it says else
    None, "latest"                              the last checkpoint

In Python the type says what digits are: 12 is an id and "12" a name, since a partition may be called so.
Where all is text, as in the command and in Spark's options, digits are the one of both that exists; if both
do, only a prefix says which.

A day alone is never taken for a time: of a partition that has not run, it would name another state silently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum, auto

from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import readable_time
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline.missing import missing_job
from dstl_dagster.timeline.view import TimelineView

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_SHOWN = re.compile(r"chk-(\d{8,})")  # as the partitions of Dagster's asset are named
_DATE_AND_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")
_FORMS = 'an id such as 12, a partition, a savepoint, "latest", or a time such as "2026-11-22T18:00Z"'


_LATEST = "latest"
"""A batch or savepoint of this name needs a prefix."""


class _Kind(Enum):
    LATEST = auto()
    CHECKPOINT = auto()
    SAVEPOINT = auto()
    PARTITION = auto()
    TIME = auto()
    NAME = auto()  # a savepoint's or a batch's; else a time, if it reads as one


_PREFIXES = {
    each.name.lower(): each for each in (_Kind.CHECKPOINT, _Kind.SAVEPOINT, _Kind.PARTITION, _Kind.TIME)
}


@dataclass(frozen=True)
class AsOf:
    """A checkpoint as a caller named it. Made by `of`, `of_text` and `time`."""

    _kind: _Kind
    _name: str = ""
    _id: int = 0  # of a name: the checkpoint that it may mean too
    _time: datetime | None = None

    @classmethod
    def of(cls, at: AtLike) -> AsOf:
        """By the value's type: an int is an id, text is none. Raises: InvalidInputError for no such form."""
        if isinstance(at, AsOf):
            return at
        if at is None:
            return cls(_Kind.LATEST)
        if isinstance(at, int) and not isinstance(at, bool):
            return cls._of_id(at, at)
        if isinstance(at, datetime):
            return cls.time(at)
        if isinstance(at, date):
            return cls(_Kind.NAME, at.isoformat())
        if not isinstance(at, str) or not at.strip():
            raise InvalidInputError(f"a checkpoint is named by {_FORMS}, not by {at!r}")
        return cls._of_text(at.strip())

    @classmethod
    def of_text(cls, text: str) -> AsOf:
        """Of an argument or an option, which has no type: digits may be an id, too.

        Raises: InvalidInputError for what has none of the forms.
        """
        name = text.strip()
        if not _is_number(name):
            return cls.of(text)
        number = int(name)
        return cls(_Kind.NAME, name, number) if number else cls._of_id(number, text)

    @classmethod
    def _of_text(cls, text: str) -> AsOf:
        if text == _LATEST:
            return cls(_Kind.LATEST)
        prefix, colon, rest = text.partition(":")
        kind = _PREFIXES.get(prefix) if colon else None
        if kind is _Kind.TIME:
            return cls.time(rest)
        if kind is _Kind.CHECKPOINT:
            return cls._of_id(int(rest) if _is_number(rest) else 0, text)
        if kind is not None:
            if not rest:
                raise InvalidInputError(f"{text!r} names no {prefix}: add it behind the colon")
            return cls(kind, rest)
        return cls(_Kind.NAME, text, _time=_instant(text) if _DATE_AND_TIME.fullmatch(text) else None)

    @classmethod
    def _of_id(cls, checkpoint_id: int, wanted: object) -> AsOf:
        if checkpoint_id < 1:
            raise InvalidInputError(f"checkpoint ids are numbers from 1 on, not {wanted!r}")
        return cls(_Kind.CHECKPOINT, str(checkpoint_id), checkpoint_id)

    @classmethod
    def time(cls, at: datetime | str) -> AsOf:
        """Where the job stood at a time. Text without a zone, also a day alone, is UTC.

        Raises: InvalidInputError for what is no time, or a datetime without a zone.
        """
        if isinstance(at, str):
            return cls(_Kind.TIME, at, _time=_instant(at))
        if at.tzinfo is None:
            raise InvalidInputError(
                f"{at!r} has no time zone: say which, as in {at.isoformat()}Z or datetime(..., tzinfo=UTC)"
            )
        return cls(_Kind.TIME, at.isoformat(), _time=at)

    def __str__(self) -> str:
        return "the last checkpoint" if self._kind is _Kind.LATEST else self._name

    @property
    def is_time(self) -> bool:
        return self._time is not None

    def resolved(self, view: TimelineView, job: str, store: ObjectStore, now: datetime) -> int:
        """The id of the checkpoint, which may have been cleaned up.

        `job`, `store`: of the timeline, for errors.

        Raises: NotFoundError (kind `no_checkpoint`; `checkpoint_gone` if that is no longer known);
        InvalidInputError if the name is that of several things, which are different checkpoints, or for a
        time after `now`.
        """
        if not view.slot:
            raise missing_job(store, job)
        if self._kind is _Kind.CHECKPOINT:
            return self._id
        if view.shown_id is None:
            raise NotFoundError(f"job {job!r} has no checkpoint yet", kind=ErrorKind.NO_CHECKPOINT)
        if self._kind is _Kind.LATEST:
            return view.shown_id
        return self._at_time(view, job, now) if self._kind is _Kind.TIME else self._named(view, job, now)

    def _named(self, view: TimelineView, job: str, now: datetime) -> int:
        meant = self._meant(view)
        if len(set(meant.values())) > 1:
            prefixes = [each.name.lower() for each in meant]
            several = " and ".join(
                f"a {prefix} ({'that is its id' if each is _Kind.CHECKPOINT else f'checkpoint {found}'})"
                for prefix, (each, found) in zip(prefixes, meant.items(), strict=True)
            )
            said = " or ".join(f"{prefix}:{self._name}" for prefix in prefixes)
            raise InvalidInputError(f"{self._name!r} of job {job!r} is both {several}: say {said}")
        if meant:
            return next(iter(meant.values()))
        if self._time is not None:
            return self._at_time(view, job, now)
        raise NotFoundError(
            f"job {job!r} has no checkpoint {self._name!r}: {self._what_is_there(view)}",
            kind=ErrorKind.NO_CHECKPOINT,
        )

    def _meant(self, view: TimelineView) -> dict[_Kind, int]:
        """The checkpoint of each thing that has this name; an id also of one that was cleaned up."""
        found: dict[_Kind, int | None] = {}
        if self._kind is _Kind.NAME:
            found[_Kind.CHECKPOINT] = self._id if 1 <= self._id <= view.highest_id else None
        if self._kind is not _Kind.PARTITION:
            found[_Kind.SAVEPOINT] = view.savepoints.get(self._name)
        if self._kind is not _Kind.SAVEPOINT:
            found[_Kind.PARTITION] = view.applied_in(self._name)
        return {kind: checkpoint_id for kind, checkpoint_id in found.items() if checkpoint_id is not None}

    def _what_is_there(self, view: TimelineView) -> str:
        known = ", ".join(sorted(view.savepoints)) or "none"
        if self._kind is _Kind.SAVEPOINT:
            return f"it has no such savepoint, only {known}"
        if view.checkpoints_since_snapshot(self._name) or view.archive.checkpoints_of_key(self._name):
            return "a restore abandoned the one that held this batch; run the batch again"
        if self._kind is _Kind.PARTITION:
            return "no completed checkpoint holds this partition; `list` shows those that exist"
        # Of a name that may be meant as a time.
        hint = ""
        shown = _SHOWN.fullmatch(self._name)
        if shown:
            hint = f"; Dagster shows checkpoint {int(shown[1])} so: say checkpoint:{int(shown[1])}"
        elif self._id:
            return (
                f"neither an id, of which it has those up to {view.highest_id}, nor a partition or savepoint"
            )
        elif _is_number(self._name) and int(self._name):
            hint = (
                f"; for the checkpoint of this id say {int(self._name)}, a number, or checkpoint:{self._name}"
            )
        elif _DATE.fullmatch(self._name):
            hint = f"; for its midnight say time:{self._name}" if _is_day(self._name) else "; it is no date"
        return f"no completed checkpoint holds such a partition, and no savepoint has it ({known}){hint}"

    def _at_time(self, view: TimelineView, job: str, now: datetime) -> int:
        """On the present chain: what a restore abandoned is not where the job stood."""
        assert self._time is not None
        if self._time > now:
            raise InvalidInputError(
                f'{self._name} is in the future, where job {job!r} may stand elsewhere: say "latest" for the '
                "last checkpoint"
            )
        chain = [each for each in view.checkpoints.values() if not view.is_abandoned(each.checkpoint_id)]
        if not chain:
            raise NotFoundError(
                f"job {job!r} begins anew: it stood nowhere at {self._name}", kind=ErrorKind.NO_CHECKPOINT
            )
        # The last one, not how many: the clocks of their writers may differ.
        by_then = [place for place, each in enumerate(chain, 1) if each.completed.recorded_at <= self._time]
        place = max(by_then, default=0)
        first = chain[0]
        if place == 0 and first.completed.parent is None:
            raise NotFoundError(
                f"job {job!r} had no checkpoint yet at {self._name}: its first is of "
                f"{readable_time(first.completed.recorded_at)}",
                kind=ErrorKind.NO_CHECKPOINT,
            )
        found = chain[place - 1] if place else None
        following = chain[place] if place < len(chain) else None
        known = None if found is None else found.checkpoint_id
        # Others, which are gone, may have completed between the two, before or after the time.
        if following is not None and following.completed.parent != known:
            raise NotFoundError(
                f"where job {job!r} stood at {self._name} was cleaned up: the next checkpoint left is "
                f"{following.checkpoint_id}, of {readable_time(following.completed.recorded_at)}",
                kind=ErrorKind.CHECKPOINT_GONE,
            )
        assert known is not None
        return known


AtLike = AsOf | int | str | date | None
"""A checkpoint's name as callers may pass it; a `datetime` is a `date`."""


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


_MOST_DIGITS = 18
"""Of an id: Python makes no number of thousands of digits."""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidInputError(
            f"{text!r} is not a time: write it as 2026-11-22T18:00Z (without a zone it is UTC)"
        ) from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
