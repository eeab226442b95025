"""Whether the bytes of one object are what they should be, and the findings collected so far.

Owns reading an object and comparing it with what is known about it. Does not own which objects a checkpoint
needs (`verify`).
"""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dstl_dagster.errors import DstlError, ErrorKind, UnavailableError
from dstl_dagster.format import StreamStateHandle
from dstl_dagster.format.crc32c import EMPTY_CRC32C, crc32c, extend
from dstl_dagster.storage import ObjectStore, read_parts

if TYPE_CHECKING:
    from dstl_dagster.changelog import ReadCache

_SMALL_BYTES = 8 << 20
"""Up to this size an object is read whole, by one request."""


@dataclass(frozen=True, order=True)
class Problem:
    """One problem with one object.

    Attributes:
        object_name: within its bucket.
        what: what is wrong with it, for people.
    """

    object_name: str
    what: str

    def __str__(self) -> str:
        return f"{self.object_name} {self.what}"


@dataclass(frozen=True)
class Expected:
    """What is known about an object; `None` where unknown."""

    generation: int | None = None
    size: int | None = None
    crc32c: int | None = None


class Findings:
    """Collects findings. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problems: set[Problem] = set()
        self._notes: set[Problem] = set()
        self._bytes: dict[str, int] = {}

    def problem(self, object_name: str, what: str) -> None:
        """Record damage, or a missing object."""
        with self._lock:
            self._problems.add(Problem(object_name, what))

    def note(self, object_name: str, what: str) -> None:
        """Record something worth knowing that is not damage."""
        with self._lock:
            self._notes.add(Problem(object_name, what))

    def checked(self, object_name: str, read_bytes: int = 0) -> None:
        """Record that an object was checked; its bytes count once, however often they are read."""
        with self._lock:
            self._bytes[object_name] = max(read_bytes, self._bytes.get(object_name, 0))

    @property
    def problems(self) -> tuple[Problem, ...]:
        with self._lock:
            return tuple(sorted(self._problems))

    @property
    def notes(self) -> tuple[Problem, ...]:
        with self._lock:
            return tuple(sorted(self._notes))

    @property
    def objects(self) -> int:
        with self._lock:
            return len(self._bytes)

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(self._bytes.values())


def check_object(store: ObjectStore, name: str, expected: Expected, found: Findings) -> bool:
    """Read all of an object, and compare it with what is expected and with the store's own metadata.

    If it is exactly as expected, only its bytes are asked for. False if not, which is one problem.

    Raises: UnavailableError: the store did not answer, so nothing is known about the object.
    """
    found.checked(name)
    if is_as_expected(store, name, expected, found):
        return True
    try:
        stat = store.stat(name)
        if stat is None:
            found.problem(name, "is missing")
            return False
        size, crc = _read(store, name, stat.size, stat.generation)
    except DstlError as error:
        raise_unless_damage(error)
        found.problem(name, f"cannot be read: {error.message}")
        return False
    found.checked(name, size)
    wrong = []
    # In a copied store the generation is another one, and the object what its length and checksum say.
    if expected.generation not in (None, stat.generation) and (size, crc) != (expected.size, expected.crc32c):
        wrong.append(f"was overwritten: it has generation {stat.generation}, not {expected.generation}")
    wanted_size = stat.size if expected.size is None else expected.size
    wanted_crc = stat.crc32c if expected.crc32c is None else expected.crc32c
    if size != wanted_size:
        wrong.append(f"has {size} bytes, not {wanted_size}")
    elif crc != wanted_crc:
        wrong.append(f"is damaged: its bytes have CRC-32C {crc:08x}, not {wanted_crc:08x}")
    if wrong:
        found.problem(name, ", and ".join(wrong))
    return not wrong


def is_as_expected(store: ObjectStore, name: str, expected: Expected, found: Findings) -> bool:
    """Whether the object has the expected generation, size and CRC-32C; nothing is read but its bytes.

    False also if one of them is unknown; `check_object` finds out what is wrong.

    Raises: UnavailableError.
    """
    if expected.generation is None or expected.size is None or expected.crc32c is None:
        return False
    try:
        size, crc = _read(store, name, expected.size, expected.generation)
    except DstlError as error:
        raise_unless_damage(error)
        return False
    if (size, crc) != (expected.size, expected.crc32c):
        return False
    found.checked(name, size)
    return True


def _read(store: ObjectStore, name: str, size_bytes: int, generation: int) -> tuple[int, int]:
    """The size and the CRC-32C of all bytes."""
    if size_bytes <= _SMALL_BYTES:
        payload = store.get(name, generation=generation)
        return len(payload), crc32c(payload)
    size, crc = 0, EMPTY_CRC32C
    with closing(read_parts(store, name, size_bytes, generation)) as parts:
        for part in parts:
            size, crc = size + len(part), extend(crc, part)
    return size, crc


def raise_unless_damage(error: DstlError) -> None:
    """Raise what says nothing about the bytes: the store is down, or a later release wrote them."""
    if isinstance(error, UnavailableError) or error.kind == ErrorKind.NEWER_VERSION:
        raise error


class FileChecks:
    """Checks each changelog file once, for its first caller. Thread-safe: the others wait for the first.

    Args:
        cache: takes what was read and is right, for readers of the files row by row; `None`: there
            are none.
    """

    def __init__(self, store: ObjectStore, found: Findings, cache: ReadCache | None = None) -> None:
        self._store = store
        self._found = found
        self._cache = cache
        self._lock = threading.Lock()
        self._files: dict[str, threading.Lock] = {}
        self._undamaged: dict[str, bool] = {}

    def is_undamaged(self, stream: StreamStateHandle) -> bool:
        """Check the file. False if it is missing, or not as its handle says. Raises: UnavailableError."""
        with self._lock:
            file = self._files.setdefault(stream.name, threading.Lock())
        with file:
            if stream.name not in self._undamaged:
                expected = Expected(stream.generation, stream.stored_bytes, stream.crc32c)
                self._undamaged[stream.name] = self._is_kept(stream) or check_object(
                    self._store, stream.name, expected, self._found
                )
            return self._undamaged[stream.name]

    def _is_kept(self, stream: StreamStateHandle) -> bool:
        """Whether the cache has the file, which it then has compared with the handle."""
        if self._cache is None or stream.crc32c is None or stream.stored_bytes is None:
            return False
        try:
            source = self._cache.open(self._store, stream)
        except DstlError as error:
            raise_unless_damage(error)
            return False
        if source is None:
            return False
        source.close()
        self._found.checked(stream.name, stream.stored_bytes)
        return True
