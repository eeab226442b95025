"""Whether the bytes of one object are what they should be, and the findings collected so far.

Owns reading an object and comparing it with what is known about it. Does not own which objects a checkpoint
needs (`verify`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

from dstl_dagster.errors import DstlError, UnavailableError
from dstl_dagster.format import StreamStateHandle
from dstl_dagster.format.crc32c import EMPTY_CRC32C, crc32c, extend
from dstl_dagster.storage import BlockReads, ObjectStore, read_parts

__all__ = ["Expected", "FileChecks", "Findings", "Problem", "check_object", "is_as_expected"]

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


def check_object(store: ObjectStore, name: str, expected: Expected, found: Findings) -> None:
    """Read all of an object, and compare it with what is expected and with the store's own metadata.

    If it is exactly as expected, only its bytes are asked for.

    Raises: UnavailableError: the store did not answer, so nothing is known about the object.
    """
    found.checked(name)
    if is_as_expected(store, name, expected, found):
        return
    try:
        stat = store.stat(name)
        if stat is None:
            found.problem(name, "is missing")
            return
        size, crc = _read(store, name, stat.size, stat.generation)
    except UnavailableError:
        raise
    except DstlError as error:
        found.problem(name, f"cannot be read: {error.message}")
        return
    found.checked(name, size)
    # In a copied store the generation is another one, and the object what its length and checksum say.
    if expected.generation not in (None, stat.generation) and (size, crc) != (expected.size, expected.crc32c):
        found.problem(
            name, f"was overwritten: it has generation {stat.generation}, not {expected.generation}"
        )
    wanted_size = stat.size if expected.size is None else expected.size
    wanted_crc = stat.crc32c if expected.crc32c is None else expected.crc32c
    if size != wanted_size:
        found.problem(name, f"has {size} bytes, not {wanted_size}")
    elif crc != wanted_crc:
        found.problem(name, f"is damaged: its bytes have CRC-32C {crc:08x}, not {wanted_crc:08x}")


def is_as_expected(store: ObjectStore, name: str, expected: Expected, found: Findings) -> bool:
    """Whether the object has the expected generation, size and CRC-32C; nothing is read but its bytes.

    False also if one of them is unknown; `check_object` finds out what is wrong.

    Raises: UnavailableError.
    """
    if expected.generation is None or expected.size is None or expected.crc32c is None:
        return False
    try:
        size, crc = _read(store, name, expected.size, expected.generation)
    except UnavailableError:
        raise
    except DstlError:
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


class FileChecks:
    """Checks each changelog file once, whoever asks first. Thread-safe: the others wait for the first.

    Args:
        blocks: what else reads the files, row by row. A file of several blocks is summed as they are read,
            and compared once nobody needs it any more; by default each is read here alone.
        users: the files that `begin` and `end` are called for, each as often as it is.
    """

    def __init__(
        self,
        store: ObjectStore,
        found: Findings,
        blocks: BlockReads | None = None,
        users: Iterable[StreamStateHandle] = (),
    ) -> None:
        self._store = store
        self._found = found
        in_place = store.capabilities.is_local
        self._blocks = None if in_place else blocks
        self._users = Counter(stream.name for stream in users)
        self._lock = threading.Lock()
        self._files: dict[str, threading.Lock] = {}
        self._done: set[str] = set()
        self._summed: set[str] = set()

    def begin(self, stream: StreamStateHandle) -> None:
        """Check the file, or what of it can be checked before it is read. Raises: UnavailableError."""
        with self._lock:
            file = self._files.setdefault(stream.name, threading.Lock())
        with file:
            if stream.name in self._done:
                return
            if not self._is_summed(stream):
                check_object(self._store, stream.name, _expected(stream), self._found)
            self._done.add(stream.name)

    def end(self, stream: StreamStateHandle) -> None:
        """The file was read, once for each `begin`. Raises: UnavailableError."""
        with self._lock:
            self._users[stream.name] -= 1
            if self._users[stream.name] or stream.name not in self._summed:
                return
        assert self._blocks is not None
        assert stream.generation is not None
        try:
            crc, size = self._blocks.sum(stream.name, stream.generation)
        except UnavailableError:
            raise
        except DstlError:
            crc, size = -1, -1
        if (size, crc) == (stream.stored_bytes, stream.crc32c):
            self._found.checked(stream.name, size)
        else:
            check_object(self._store, stream.name, _expected(stream), self._found)

    def _is_summed(self, stream: StreamStateHandle) -> bool:
        blocks, size, generation = self._blocks, stream.stored_bytes, stream.generation
        if blocks is None or size is None or size <= _SMALL_BYTES or None in (generation, stream.crc32c):
            return False
        assert generation is not None
        blocks.expect(stream.name, generation, size)
        try:
            blocks.last_block(stream.name, generation)
        except UnavailableError:
            raise
        except DstlError:
            return False
        self._summed.add(stream.name)
        return True


def _expected(stream: StreamStateHandle) -> Expected:
    return Expected(stream.generation, stream.stored_bytes, stream.crc32c)
