"""Which requests a read of changelog files makes: whose bytes are shared, and what is one request. Pure.

Owns what is fetched whole, and which ranges become one request. Does not own making requests
(`stored_file`), or how far ahead of the reader that is (`concurrency`): once for the files that are opened,
and once for the ranges of the one being read. The changes that a reader keeps come on top.

A file is opened by one request: a small one is fetched whole, of a larger one its end, which says where each
change set is. The change sets that are needed are then fetched in joined ranges. A file is opened once,
however many handles name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dstl_dagster.format.changelog_file.change_set_parts import WantedKeys
from dstl_dagster.format.handles import ChangelogStateHandle, StreamStateHandle
from dstl_dagster.format.key_group_ranges import KeyGroupRange

WHOLE_FILE_BYTES: Final = 8 << 20
"""Up to this size one request fetches the file: 8 MiB take about two round trips to transfer, and a file's
end, the layouts and the change sets take three."""

END_BYTES: Final = 256 << 10
"""The end of a larger file: mostly all of its footer, for a few milliseconds of transfer."""

GAP_BYTES: Final = 1 << 20
"""So many unneeded bytes are fetched to save a request: they take a fraction of a round trip."""

REQUEST_BYTES: Final = 8 << 20
"""Ranges are joined up to this length. A longer range, such as a large change set, is one request."""

THREADS: Final = 16
"""Requests in flight: more take longer in the client than they save at 50 ms."""


@dataclass(frozen=True, slots=True)
class HandleRead:
    """One handle to be read.

    Attributes:
        key_groups: with metadata, all that is needed of it, ascending; `None`: everything.
        views: changes may point into the bytes that were fetched.
        wanted_keys: changes that cannot be of these keys may be left out; `None`: all are needed.
    """

    handle: ChangelogStateHandle
    key_groups: tuple[KeyGroupRange, ...] | None = None
    views: bool = False
    wanted_keys: WantedKeys | None = None


class SetUse(NamedTuple):
    """A change set as one read needs it: the read's index, and the change set's in the read's handle."""

    read: int
    place: int


@dataclass(frozen=True, slots=True)
class FileRead:
    """The needed parts of one file.

    Attributes:
        sets: the change sets by their offsets, ascending, and the users of each.
        key_groups: that any of them needs; `None`: all.
        wanted_keys: the keys that all of them look for; `None`: everything is needed.
        slices: of each key group, in all of them.
    """

    stream: StreamStateHandle
    sets: tuple[tuple[int, tuple[SetUse, ...]], ...]
    key_groups: tuple[KeyGroupRange, ...] | None
    wanted_keys: WantedKeys | None = None
    slices: int = 1


class Span(NamedTuple):
    """Bytes `[start, start + length)` of a file, of which `needed` were asked for."""

    start: int
    length: int
    needed: int

    @property
    def end(self) -> int:
        return self.start + self.length


def files_of(reads: Sequence[HandleRead]) -> list[FileRead]:
    """Every file once, in the order in which it is first needed."""
    uses: dict[StreamStateHandle, dict[int, list[SetUse]]] = {}
    for number, read in enumerate(reads):
        for place, (stream, offset) in enumerate(read.handle.handles_and_offsets):
            uses.setdefault(stream, {}).setdefault(offset, []).append(SetUse(number, place))
    found = []
    for stream, sets in uses.items():
        by = [reads[use.read] for each in sets.values() for use in each]
        alike = {(read.wanted_keys, read.handle.slices) for read in by}
        wanted_keys, slices = alike.pop() if len(alike) == 1 else (None, 1)
        in_order = tuple((offset, tuple(sets[offset])) for offset in sorted(sets))
        found.append(FileRead(stream, in_order, _key_groups(by), wanted_keys, slices))
    return found


def _key_groups(reads: Iterable[HandleRead]) -> tuple[KeyGroupRange, ...] | None:
    wanted: dict[KeyGroupRange, None] = {}
    for read in reads:
        if read.key_groups is None:
            return None
        wanted.update(dict.fromkeys(read.key_groups))
    return tuple(wanted)


def opening(size_bytes: int) -> Span:
    """The first request of a file: all of it, or its end."""
    length = size_bytes if size_bytes <= WHOLE_FILE_BYTES else END_BYTES
    return Span(size_bytes - length, length, length)


def opening_bytes(size_bytes: int | None) -> int:
    """The bytes of a file from `opening` on until its first change set is read, unless that is longer."""
    return WHOLE_FILE_BYTES if size_bytes is None else min(size_bytes, WHOLE_FILE_BYTES)


def joined(ranges: Iterable[tuple[int, int]]) -> list[Span]:
    """The requests that fetch these (start, length), ascending: no byte twice, near ones together."""
    spans: list[Span] = []
    for start, length in sorted(set(ranges)):
        if length == 0:
            continue
        last = spans[-1] if spans else None
        overlap = 0 if last is None else max(0, last.end - start)
        if last is not None and (overlap or _is_one_request(last, start + length, start - last.end)):
            new = max(0, length - overlap)
            spans[-1] = Span(last.start, max(last.length, start + length - last.start), last.needed + new)
        else:
            spans.append(Span(start, length, length))
    return spans


def _is_one_request(last: Span, end: int, gap_bytes: int) -> bool:
    return gap_bytes <= GAP_BYTES and end - last.start <= REQUEST_BYTES
