"""Objects that name the runs of operators, so that later manifests need not name them again.

Owns when runs move into such an object, its bytes, and reading it. Does not own what it says of an operator
(`entries`), or the manifests that name it (`manifest`).

One is written at step 4, under the attempt's own name, by a checkpoint that merged runs, has many of them
inline, or leaves operators as they are that its parent wrote. It is never changed; a manifest names it with
its checksum.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from dstl_dagster.concurrency import gather
from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError
from dstl_dagster.format.crc32c import crc32c as crc32c_of
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.keyed.entries import Listed, OperatorEntry
from dstl_dagster.storage import ObjectStore

__all__ = ["RunLists", "encode_list", "load_list", "to_be_listed"]

_KIND = "run-list"
_VERSION = 1

_LEAST_INLINE: Final = 8
"""Runs that a manifest names itself, at least. Of a log that is never merged more: a list of all runs costs
what they are, and is written the less often."""

_IDLE_BYTES: Final = 4 << 10
"""Of JSON, that a manifest spends on operators which it only repeats; above it these move into a list."""

_SMALL_ENTRY_BYTES: Final = 512
"""Of JSON, for one operator beside its list: such as its TTL's time, which moves on with each checkpoint."""

_MOST_LISTS: Final = 16
"""Objects that list operators which are idle: with more, they move into one."""

_MOST_KEPT: Final = 64
_THREADS: Final = 8


def to_be_listed(entries: Mapping[str, OperatorEntry]) -> list[str]:
    """The operators of a checkpoint whose runs move into an object of its own, ascending. Pure."""
    found = {name for name, entry in entries.items() if _has_many(entry)}
    idle = {name: entry for name, entry in entries.items() if entry.is_idle}
    repeated = {
        name: size
        for name, entry in idle.items()
        if not entry.is_as_listed
        and (size := len(json.dumps(entry.to_json(_ANY_ATTEMPT)))) > _SMALL_ENTRY_BYTES
    }
    if sum(repeated.values()) > _IDLE_BYTES:
        found.update(repeated)
    lists = {entry.listed.name for entry in idle.values() if entry.listed is not None}
    if len(lists) > _MOST_LISTS:
        found.update(idle)
    return sorted(name for name in found if entries[name].older_runs)


def _has_many(entry: OperatorEntry) -> bool:
    inline = len(entry.inline_runs) - bool(entry.report.handles)
    return bool(entry.merged_bytes) or inline > max(_LEAST_INLINE, math.isqrt(2 * len(entry.runs)))


class _AnyAttempt(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "0" * 36


_ANY_ATTEMPT: Final = _AnyAttempt()


def encode_list(job: str, entries: Mapping[str, OperatorEntry], names: Collection[str]) -> bytes:
    """The object that lists these operators. The same entries give the same bytes."""
    fields = {"job": job, "operators": {name: entries[name].as_listed().to_json() for name in names}}
    return encode_document(_KIND, _VERSION, fields)


@dataclass
class _List:
    """One object that was read; what it says of an operator is decoded once."""

    name: str
    crc32c: int
    operators: Mapping[str, Any]
    decoded: dict[str, Listed] = field(default_factory=dict)

    def of(self, operator: str) -> Listed:
        found = self.decoded.get(operator)
        if found is None:
            if operator not in self.operators:
                raise FormatError(f"{self.name} should list the runs of operator {operator!r}, but does not")
            found = Listed.from_json(self.name, self.crc32c, operator, self.operators[operator])
            self.decoded[operator] = found
        return found


def load_list(store: ObjectStore, job: str, name: str, crc32c: int) -> _List:
    """Raises: NotFoundError (kind `state_missing`), FormatError."""
    try:
        payload = store.get(name)
    except NotFoundError as error:
        raise NotFoundError(
            f"run list {name} is gone",
            kind=ErrorKind.STATE_MISSING,
        ) from error
    found = crc32c_of(payload)
    if found != crc32c:
        raise FormatError(
            f"run list {name} has CRC-32C {found:08x}, but the manifest that names it says {crc32c:08x}: it "
            "was damaged or replaced. Put back the object from a copy, or restore to an older checkpoint"
        )
    _, fields = decode_document(_KIND, _VERSION, payload, name)
    with reading(f"{name} is not a valid run list"):
        if fields["job"] != job:
            raise FormatError(f"run list {name} is of job {fields['job']!r}, not of {job!r}")
        return _List(name, found, dict(fields["operators"]))


class RunLists:
    """The lists that were read or written last: later manifests name the same ones. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, _List] = {}
        self._lock = threading.Lock()
        self._loading: dict[str, threading.Lock] = {}

    def of(self, store: ObjectStore, job: str, wanted: Mapping[str, int]) -> Callable[[str, str], Listed]:
        """What gives an operator's part of each of these lists, by name with their checksums.

        Raises: as `load_list`; what it returns, FormatError.
        """
        loads = [partial(self._one, store, job, *each) for each in wanted.items()]
        lists = gather(loads, store.capabilities.lookup_threads(_THREADS), "dstl-run-lists")
        found = dict(zip(wanted, lists, strict=True))
        return lambda name, operator: found[name].of(operator)

    def _one(self, store: ObjectStore, job: str, name: str, crc32c: int) -> _List:
        with self._lock:
            alone = self._loading.setdefault(name, threading.Lock())
        with alone:  # manifests that are read at once name the same lists
            with self._lock:
                found = self._find(name, crc32c)
            if found is None:
                found = load_list(store, job, name, crc32c)
                self._keep(found)
        with self._lock:
            self._loading.pop(name, None)
        return found

    def written(
        self, name: str, payload: bytes, entries: Mapping[str, OperatorEntry], names: Collection[str]
    ) -> dict[str, OperatorEntry]:
        """The entries after these moved into this object."""
        crc32c = crc32c_of(payload)
        listed = {each: replace(entries[each].as_listed(), name=name, crc32c=crc32c) for each in names}
        self._keep(_List(name, crc32c, {}, dict(listed)))
        return {
            each: replace(entry, listed=listed[each]) if each in listed else entry
            for each, entry in entries.items()
        }

    def _find(self, name: str, crc32c: int) -> _List | None:
        found = self._kept.pop(name, None)
        if found is not None:
            self._kept[name] = found
        return found if found is not None and found.crc32c == crc32c else None

    def _keep(self, each: _List) -> None:
        with self._lock:
            self._kept[each.name] = each
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
