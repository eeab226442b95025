"""The names of objects in a store. The only module that spells those of a job.

    dstl/<job>/timeline/<slot, 20 digits>[-<timeline>]            a decision; slot 1 has no suffix
    dstl/<job>/manifests/<checkpoint, 10 digits>-<attempt>        what a checkpoint holds
    dstl/<job>/attempts/<attempt>/report                          what the tasks of an attempt wrote
    dstl/<job>/attempts/<attempt>/changelog/<job>/dstl/<uuid>     changelog files of an attempt
    dstl/<job>/attempts/<attempt>/changelog/<hash>/<last name>    a copy of another job's, by its folder
    dstl/<job>/archive/...                                        facts that snapshots leave out (`archive`)
    dstl/<job>/hint                                               slot of a recent snapshot; never trusted
    dstl/<job>/server-clock                                       empty; its time stamp is the server's clock
    dstl/<job>/clean-up/<slot>                                    how far the last clean-up saw
    .inprogress/<bucket>/<object>/<uuid>                          components (`recoverable.recoverables`)

A timeline's id comes from the decision id of its first record. Later records carry it in their names: a
process that outlived its job writes into no other one's timeline.

Numbers are zero-padded, so names sort in numeric order. Every temporary name contains the attempt: as a
folder, or as the upper 64 bits of a component's UUID. So the garbage of a dead attempt is found by name
alone. Pure: reads and writes nothing.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from dstl_dagster.errors import FormatError, InternalError, InvalidInputError

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SLOT = re.compile(r"(\d{20})(?:-([0-9a-f]{16}))?")
_MANIFEST = re.compile(r"(\d{10})-([0-9a-f-]{36})")
_ARCHIVED_KEY = re.compile(r"(\d{10})-([0-9a-f]{32})")
_IDENTITY_DIGITS = 32
_MAX_SLOT = 10**20 - 1


def validated_job(job: str) -> str:
    """The job's name, if it is valid: 1 to 100 of `A-Z a-z 0-9 . _ -`, the first a letter or digit.

    Raises: InvalidInputError.
    """
    return _validated(job, "job")


def validated_savepoint(name: str) -> str:
    """The savepoint's name, if it is valid: as a job's is, and nothing else that a checkpoint is named by.

    Raises: InvalidInputError.
    """
    other = next(
        (what for what, reads in _OTHER_NAMES.items() if isinstance(name, str) and reads(name)), None
    )
    if other is not None:
        raise InvalidInputError(
            f"savepoint name {name!r} cannot be used: it reads as {other}, and could mean another "
            "checkpoint: begin it with a word, such as 'release-2'"
        )
    return _validated(name, "savepoint")


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return _DATE.fullmatch(text) is not None
    return True


_DATE = re.compile(r"\d{4}-\d\d(-\d\d)?([T ].*)?")  # of no calendar, too
_OTHER_NAMES: dict[str, Callable[[str], object]] = {
    "a number": re.compile(r"\d+").fullmatch,
    "a time": _is_time,
    "the last checkpoint": re.compile(r"latest").fullmatch,
    "a name with its kind": re.compile(r"(checkpoint|partition|savepoint|time):.*", re.DOTALL).fullmatch,
    "a checkpoint as Dagster shows it": re.compile(r"chk-\d+").fullmatch,
}
"""The forms that name a checkpoint in `timeline.as_of`, and are no name for a savepoint."""


def _validated(name: str, what: str) -> str:
    if not isinstance(name, str) or not _JOB.fullmatch(name):
        raise InvalidInputError(
            f"{what} name {name!r} cannot be used: use 1 to 100 letters, digits, dots, underscores or "
            "dashes, beginning with a letter or digit"
        )
    return name


COMPONENTS_PREFIX = ".inprogress/"
"""The prefix of the names of all components, except those with entropy."""


JOBS_PREFIX = "dstl/"
"""The prefix of the names of all objects that jobs store for themselves."""


def attempt_half(attempt: uuid.UUID) -> int:
    """The upper 64 bits of an attempt's UUID, which every component of the attempt shares."""
    return attempt.int >> 64


def attempt_of_component(object_name: str) -> int | None:
    """The upper 64 bits of the UUID at the end of a component's name; `None` if there is none."""
    try:
        return attempt_half(uuid.UUID(object_name.rpartition("/")[2]))
    except ValueError:
        return None


@dataclass(frozen=True)
class JobNames:
    """The object names of one job.

    Attributes:
        timeline: the id of its timeline, which the names of slots need, but for the first; empty: not known.
    """

    job: str
    timeline: str = ""

    def __post_init__(self) -> None:
        validated_job(self.job)

    @property
    def root(self) -> str:
        return f"{JOBS_PREFIX}{self.job}/"

    def has(self, name: str) -> bool:
        """Whether the object is the job's. Another may lie below its root: a store whose prefix begins so."""
        folders = (self.timeline_prefix, self.manifests_prefix, self.attempts_prefix, self.archive_prefix)
        return name in (self.hint, self.server_clock) or name.startswith((*folders, self.clean_up_prefix))

    @property
    def timeline_prefix(self) -> str:
        return f"{self.root}timeline/"

    @property
    def manifests_prefix(self) -> str:
        return f"{self.root}manifests/"

    @property
    def attempts_prefix(self) -> str:
        return f"{self.root}attempts/"

    @property
    def hint(self) -> str:
        return f"{self.root}hint"

    @property
    def archive_prefix(self) -> str:
        return f"{self.root}archive/"

    @property
    def server_clock(self) -> str:
        return f"{self.root}server-clock"

    @property
    def clean_up_prefix(self) -> str:
        return f"{self.root}clean-up/"

    def clean_up(self, slot: int) -> str:
        """The mark of a clean-up that began when this slot was the timeline's last."""
        return f"{self.clean_up_prefix}{slot:020d}"

    def slot(self, slot: int) -> str:
        """The record in this slot (1 or more)."""
        if slot == 1:
            return self.root_slot
        if not self.timeline:
            raise InternalError(f"the name of slot {slot} of job {self.job!r} needs its timeline's id")
        return f"{self.slots_from(slot)}-{self.timeline}"

    @property
    def root_slot(self) -> str:
        """The first record, which says which timeline the job has."""
        return self.slots_from(1)

    def slots_from(self, slot: int) -> str:
        """A text that precedes the names of this slot (1 or more) and of all later ones, of any timeline."""
        if not 1 <= slot <= _MAX_SLOT:
            raise InvalidInputError(f"slot {slot} is outside 1..{_MAX_SLOT}")
        return f"{self.timeline_prefix}{slot:020d}"

    def slot_of(self, name: str) -> tuple[int, str] | None:
        """The slot number in a name under `timeline_prefix`, and the id of its timeline, empty for the first
        slot; `None` for a foreign name.
        """
        match = _SLOT.fullmatch(name.removeprefix(self.timeline_prefix))
        if match is None or (int(match[1]) == 1) != (match[2] is None) or not int(match[1]):
            return None
        return int(match[1]), match[2] or ""

    def manifest(self, checkpoint_id: int, attempt: uuid.UUID) -> str:
        return f"{self.manifests_of(checkpoint_id)}{attempt}"

    def manifests_of(self, checkpoint_id: int) -> str:
        """The prefix of this checkpoint's manifests, those of dead attempts included."""
        return f"{self.manifests_prefix}{checkpoint_id:010d}-"

    def attempt_of(self, name: str) -> uuid.UUID | None:
        """The attempt that wrote this manifest, or this object of its folder; `None` for any other name."""
        if name.startswith(self.attempts_prefix):
            return _uuid_or_none(name.removeprefix(self.attempts_prefix).partition("/")[0])
        if not name.startswith(self.manifests_prefix):
            return None
        match = _MANIFEST.fullmatch(name.removeprefix(self.manifests_prefix))
        return _uuid_or_none(match[2]) if match else None

    def archived_attempt(self, half: int) -> str:
        """By the upper 64 bits of the attempt, because component names have no more."""
        return f"{self.archive_prefix}attempts/{half:016x}"

    def archived_key_prefix(self, idempotency_key: str) -> str:
        """By the key's hash, because a key may be any text of any length."""
        return f"{self.archive_prefix}keys/{_digest(idempotency_key)}/"

    def archived_key(self, idempotency_key: str, checkpoint_id: int, identity: str) -> str:
        """`identity`: all that distinguishes batches of this key, as any text."""
        prefix = self.archived_key_prefix(idempotency_key)
        return f"{prefix}{checkpoint_id:010d}-{_digest(identity)[:_IDENTITY_DIGITS]}"

    def archived_key_of(self, name: str, idempotency_key: str, identity: str | None) -> int | None:
        """The checkpoint in the name of an archived key; `None` if it is of another `identity`.

        Raises: FormatError for a foreign name.
        """
        match = _ARCHIVED_KEY.fullmatch(name.removeprefix(self.archived_key_prefix(idempotency_key)))
        if match is None:
            raise FormatError(f"foreign object {name} in the archive of {self.job!r}: move it away")
        wanted = None if identity is None else _digest(identity)[:_IDENTITY_DIGITS]
        return int(match[1]) if wanted in (None, match[2]) else None

    def archived_request(self, decision_id: uuid.UUID) -> str:
        return f"{self.archive_prefix}requests/{decision_id}"

    def attempt_folder(self, attempt: uuid.UUID) -> str:
        return f"{self.attempts_prefix}{attempt}/"

    def report(self, attempt: uuid.UUID) -> str:
        return f"{self.attempt_folder(attempt)}report"

    def run_list(self, attempt: uuid.UUID) -> str:
        """The object that names runs of state for this checkpoint and later ones."""
        return f"{self.attempt_folder(attempt)}runs"

    def changelog_base_path(self, attempt: uuid.UUID) -> str:
        """The `base_path` under which the tasks of an attempt write changelog files."""
        return f"{self.attempt_folder(attempt)}changelog"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=256)  # a listing names an attempt once for each of its objects
def _uuid_or_none(text: str) -> uuid.UUID | None:
    try:
        found = uuid.UUID(text)
    except ValueError:
        return None
    return found if str(found) == text else None
