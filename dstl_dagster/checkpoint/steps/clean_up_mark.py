"""How far the last clean-up saw, so that the next one judges what is new, and what may go since.

Owns the mark: an empty object named by a slot, with the rest in its metadata. Does not own what garbage is
(`garbage`), or what checkpoints need (`references`).

Why this is safe. A mark only ever spares an object the deletion, so a false one leaks, and deletes nothing. A
true one stays true: the clean-up that wrote it had classified every object stamped before `began`, by a view
of at least `slot`, and deleted all that was garbage. So of what is still there,

* the objects of a checkpoint committed by then are those that its own manifest names, which never changes:
  they are needed for as long as it is stored;
* the objects of one whose grace was over by then are needed by the `roots` (`references`),
  and stay needed while these are the same.

Later objects, of tasks that outlived their attempt, have later stamps, and the next clean-up finds them.
Clean-ups may run concurrently, be killed or be late: whichever mark is the newest is as true as the others.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from dstl_dagster.errors import DstlError
from dstl_dagster.format import JobNames
from dstl_dagster.storage import ANY, ObjectStat, ObjectStore

log = logging.getLogger(__name__)
_ONE_UPDATE = timedelta(seconds=2)
"""A bucket refuses a second change of one object within a second, so no mark is replaced that soon."""


def roots_digest(manifests: Iterable[str]) -> str:
    """The roots as a mark names them: a hash of their manifests' names, in any order."""
    return hashlib.sha256("\n".join(sorted(manifests)).encode()).hexdigest()


@dataclass(frozen=True)
class CleanUpMark:
    """One complete clean-up.

    Attributes:
        slot: the timeline's last slot when it began.
        began: the server's clock before anything was listed.
        over_slot: checkpoints subsumed up to this slot (inclusive) had no grace left.
        roots: by `roots_digest`; empty if they changed while it ran.
    """

    slot: int
    began: datetime
    over_slot: int
    roots: str

    def to_metadata(self) -> dict[str, str]:
        return {"began": self.began.isoformat(), "over": str(self.over_slot), "roots": self.roots}

    @classmethod
    def of(cls, slot: int, stat: ObjectStat) -> CleanUpMark | None:
        """`None` if it is not a mark: then everything is judged."""
        try:
            began = datetime.fromisoformat(stat.metadata["began"])
            mark = cls(slot, began, int(stat.metadata["over"]), stat.metadata["roots"])
        except (KeyError, TypeError, ValueError):
            return None
        return mark if began.tzinfo is not None else None


class Marks:
    """The marks of one job. There is one, or a few after a kill or a race; the newest counts."""

    def __init__(self, store: ObjectStore, names: JobNames) -> None:
        self._store = store
        self._names = names
        self._there: list[str] = []
        self._written: datetime | None = None
        self.found: CleanUpMark | None = None

    def find(self) -> None:
        """Sets `found` to the newest mark; to `None` in a folder: a mark would cost more there than it saves.
        One request.
        """
        if self._store.capabilities.is_local:
            return
        self._there, self._written, self.found = [], None, None
        for stat in self._store.list(self._names.clean_up_prefix):
            digits = stat.name.removeprefix(self._names.clean_up_prefix)
            if not (digits.isascii() and digits.isdigit()):
                continue
            self._there.append(stat.name)
            mark = CleanUpMark.of(int(digits), stat)
            if mark is not None:
                self.found, self._written = mark, stat.updated

    def write(self, mark: CleanUpMark, now: datetime) -> None:
        """Replace those that `find` found, unless it is too young: it is as true.

        Nothing depends on a mark, so a failure is only logged. `now`: by the server's clock, or a little ago.
        """
        name = self._names.clean_up(mark.slot)
        if self._written is not None and now - self._written <= _ONE_UPDATE:
            return
        try:
            self._store.put(name, b"", precondition=ANY, metadata=mark.to_metadata())
            for older in self._there:
                if older < name:
                    self._store.delete(older, precondition=ANY)
        except DstlError as error:
            log.warning("could not mark the clean-up of job %s: %s", self._names.job, error)
