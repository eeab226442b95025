"""The names of a job's objects in the store. The only module that spells an object name of ours.

    dstl/<job>/timeline/<slot, 20 digits>                         a decision
    dstl/<job>/manifests/<checkpoint, 10 digits>-<attempt>        what a checkpoint holds
    dstl/<job>/attempts/<attempt>/report                          what the tasks of an attempt wrote
    dstl/<job>/attempts/<attempt>/changelog/<job>/dstl/<uuid>     changelog files of an attempt
    dstl/<job>/archive/...                                        facts that snapshots leave out (`archive`)
    dstl/<job>/hint                                               slot of a recent snapshot; never trusted
    dstl/<job>/server-clock                                       empty; its time stamp is the server's clock
    dstl/<job>/clean-up/<slot>                                    how far the last clean-up saw
    .inprogress/<bucket>/<object>/<uuid>                          components of files, as upstream names them

Numbers are zero-padded, so names sort in numeric order. Every temporary name contains the attempt: as a
folder, or as the upper 64 bits of a component's UUID. So the garbage of a dead attempt is found by name
alone. Pure: reads and writes nothing.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from functools import lru_cache

from dstl_dagster.errors import ErrorKind, InvalidInputError

__all__ = [
    "COMPONENTS_PREFIX",
    "JOBS_PREFIX",
    "JobNames",
    "attempt_half",
    "attempt_of_component",
    "validated_job",
    "validated_savepoint",
]

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MANIFEST = re.compile(r"(\d{10})-([0-9a-f-]{36})")
_MAX_SLOT = 10**20 - 1


def validated_job(job: str) -> str:
    """The job's name, if it is valid: 1 to 100 of `A-Z a-z 0-9 . _ -`, the first a letter or digit.

    Raises: InvalidInputError (kind `bad_job_name`).
    """
    return _validated(job, "job", ErrorKind.BAD_JOB_NAME)


def validated_savepoint(name: str) -> str:
    """The savepoint's name, if it is valid, as a job's is. Raises: InvalidInputError."""
    return _validated(name, "savepoint", ErrorKind.INVALID_INPUT)


def _validated(name: str, what: str, kind: ErrorKind) -> str:
    if not isinstance(name, str) or not _JOB.fullmatch(name):
        raise InvalidInputError(
            f"{what} name {name!r} cannot be used: use 1 to 100 letters, digits, dots, underscores or "
            "dashes, beginning with a letter or digit",
            kind=kind,
        )
    return name


COMPONENTS_PREFIX = ".inprogress/"
"""The prefix of the names of all components, except those with entropy."""


JOBS_PREFIX = "dstl/"
"""What the names of everything that jobs keep for themselves begin with."""


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
    """The object names of one job."""

    job: str

    def __post_init__(self) -> None:
        validated_job(self.job)

    @property
    def root(self) -> str:
        return f"{JOBS_PREFIX}{self.job}/"

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
        if not 1 <= slot <= _MAX_SLOT:
            raise InvalidInputError(f"slot {slot} is outside 1..{_MAX_SLOT}")
        return f"{self.timeline_prefix}{slot:020d}"

    def slot_of(self, name: str) -> int | None:
        """The slot number in a name under `timeline_prefix`; `None` for a foreign name."""
        digits = name.removeprefix(self.timeline_prefix)
        return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else None

    def manifest(self, checkpoint_id: int, attempt: uuid.UUID) -> str:
        return f"{self.manifests_of(checkpoint_id)}{attempt}"

    def manifests_of(self, checkpoint_id: int) -> str:
        """The prefix of this checkpoint's manifests, those of dead attempts included."""
        return f"{self.manifests_prefix}{checkpoint_id:010d}-"

    def checkpoint_of_manifest(self, name: str) -> int | None:
        """The checkpoint id in a manifest's name; `None` for a foreign name."""
        match = _MANIFEST.fullmatch(name.removeprefix(self.manifests_prefix))
        return int(match[1]) if match else None

    def attempt_of_manifest(self, name: str) -> uuid.UUID | None:
        """The attempt in a manifest's name; `None` for a foreign name."""
        match = _MANIFEST.fullmatch(name.removeprefix(self.manifests_prefix))
        return _uuid_or_none(match[2]) if match else None

    def archived_attempt(self, half: int) -> str:
        """By the upper 64 bits of the attempt, because component names have no more."""
        return f"{self.archive_prefix}attempts/{half:016x}"

    def archived_key_prefix(self, idempotency_key: str) -> str:
        """By the key's hash, because a key may be any text of any length."""
        digest = hashlib.sha256(idempotency_key.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.archive_prefix}keys/{digest}/"

    def archived_key(self, idempotency_key: str, checkpoint_id: int) -> str:
        return f"{self.archived_key_prefix(idempotency_key)}{checkpoint_id:010d}"

    def archived_request(self, decision_id: uuid.UUID) -> str:
        return f"{self.archive_prefix}requests/{decision_id}"

    def attempt_folder(self, attempt: uuid.UUID) -> str:
        return f"{self.attempts_prefix}{attempt}/"

    def attempt_of_folder(self, name: str) -> uuid.UUID | None:
        """The attempt whose folder this name is in; `None` for a foreign name."""
        return _uuid_or_none(name.removeprefix(self.attempts_prefix).partition("/")[0])

    def report(self, attempt: uuid.UUID) -> str:
        return f"{self.attempt_folder(attempt)}report"

    def changelog_base_path(self, attempt: uuid.UUID) -> str:
        """The `base_path` under which the tasks of an attempt write changelog files."""
        return f"{self.attempt_folder(attempt)}changelog"


@lru_cache(maxsize=256)  # a listing names an attempt once for each of its objects
def _uuid_or_none(text: str) -> uuid.UUID | None:
    try:
        found = uuid.UUID(text)
    except ValueError:
        return None
    return found if str(found) == text else None
