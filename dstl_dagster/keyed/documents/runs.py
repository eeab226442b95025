"""A state as runs: which changes make up an operator's state at a checkpoint, and what a merge makes of them.

Owns the values, the rule by which a merge replaces what it read, and their compact JSON form. Does not own
when something is merged (`merge.policy`), merging (`merge`), or which checkpoint has which runs
(`manifest`). Pure.

A run holds the last change of each of its keys, in some key groups, of a span of checkpoints. The runs of a
state are in the order of their changes: of a key that is in several, the last run has the row. So a state is
read from its runs alone, even if the checkpoints that wrote them are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import (
    ChangelogStateHandle,
    KeyGroupRange,
    StreamStateHandle,
    common_ranges,
    plain_list,
    whole_number,
)
from dstl_dagster.format.envelope import reading
from dstl_dagster.format.handles import STORAGE_IDENTIFIER

FROM_THE_BEGINNING: Final = 0
"""The first checkpoint of a merge that nothing older precedes."""


@dataclass(frozen=True, slots=True)
class Run:
    """Changes that were written together.

    Attributes:
        first, last: it stands for the changes of these checkpoints, both inclusive. Of each key group, a run
            begins after every run before it.
        handles: where they are; disjoint key groups if merged.
        merged: written by a merge, and not by the batch of a checkpoint.
        whole: of its key groups there is nothing older. If merged, it has no tombstones and no expired rows.
        upserts, deletes: of so many keys at most; `None`: not counted.
    """

    first: int
    last: int
    handles: tuple[ChangelogStateHandle, ...]
    merged: bool = False
    whole: bool = False
    upserts: int | None = None
    deletes: int | None = None

    @property
    def stored_bytes(self) -> int:
        """Of its handles, as far as their writers knew them."""
        return sum(map(handle_bytes, self.handles))

    def without(self, key_groups: KeyGroupRange) -> Run:
        """The same less these key groups; perhaps without any handle."""
        if not any(
            each.key_group_range.intersection(key_groups).number_of_key_groups for each in self.handles
        ):
            return self
        left = KeyGroupRange.of(0, key_groups.start_key_group - 1)
        right = KeyGroupRange.of(key_groups.end_key_group + 1, _MOST_KEY_GROUPS)
        return replace(self, handles=tuple(within(self.handles, (left, right))))


@dataclass(frozen=True, slots=True)
class Merge:
    """A run that a checkpoint puts in the place of older ones.

    Attributes:
        key_groups: of these the run has all changes that it stands for; its handles may leave some out.
        run: stands for every run of these key groups that begins with `run.first` or later.
    """

    key_groups: KeyGroupRange
    run: Run

    def __post_init__(self) -> None:
        if not self.key_groups.number_of_key_groups or not self.run.merged:
            raise InvalidInputError(f"a merge is of some key groups, and marked as one: not {self}")

    def is_of_all(self, max_parallelism: int) -> bool:
        """Whether nothing older is needed of any key group."""
        return self.run.whole and self.key_groups == KeyGroupRange.of(0, max_parallelism - 1)

    def to_json(self) -> dict[str, Any]:
        return {"key_groups": self.key_groups.to_json(), "run": encode_runs([self.run])}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Merge:
        """Raises: FormatError."""
        with reading("a merge is not valid"):
            (run,) = decode_runs(fields["run"])
            return cls(KeyGroupRange.from_json(fields["key_groups"]), run)


def merged_runs(runs: Iterable[Run], merges: Iterable[Merge]) -> tuple[Run, ...]:
    """The runs after these merges, oldest first.

    A merge takes all that is newest of its key groups, so its place is behind all others.
    """
    found = list(runs)
    for merge in merges:
        left = (each.without(merge.key_groups) if each.first >= merge.run.first else each for each in found)
        found = [each for each in left if each.handles]
        if merge.run.handles:
            found.append(merge.run)
    return tuple(found)


def within(
    handles: Iterable[ChangelogStateHandle], key_groups: Iterable[KeyGroupRange]
) -> Iterator[ChangelogStateHandle]:
    """The handles for these key groups only: one becomes none, or one for each range where it has changes.

    The sizes of a part are in proportion to its key groups that have some: to hold it, not to read it.
    """
    wanted = list(key_groups)
    for handle in handles:
        own = handle.key_group_range
        for each in wanted:
            shared = own.intersection(each)
            if shared == own:
                yield handle
            elif share := _number_in(shared, handle):
                whole = _number_in(own, handle)
                yield replace(
                    handle,
                    key_group_range=shared,
                    state_size=handle.state_size * share // whole,
                    share_bytes=handle_bytes(handle) * share // whole,
                )


def _number_in(key_groups: KeyGroupRange, handle: ChangelogStateHandle) -> int:
    """How many of these key groups may have changes in the handle."""
    ranges = common_ranges(handle.held, [key_groups]) if handle.held else [key_groups]
    return sum(each.number_of_key_groups for each in ranges)


def handle_bytes(handle: ChangelogStateHandle) -> int:
    """Stored bytes of its changes: of files that others share, their part."""
    if handle.share_bytes is not None:
        return handle.share_bytes
    return sum(stream.known_bytes for stream in handle.stream_state_handles())


_MOST_KEY_GROUPS: Final = 32_767
_FLAGS: Final = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}
_OF_FLAGS: Final = {number: flags for flags, number in _FLAGS.items()}


def encode_runs(runs: Iterable[Run]) -> dict[str, Any]:
    """As JSON, in which a folder and a file stand once, however many handles they are of."""
    folders: dict[str, int] = {}
    files: dict[StreamStateHandle, int] = {}
    plain = []
    for run in runs:
        handles = []
        for handle in run.handles:
            entries = [
                [files.setdefault(stream, len(files)), offset]
                for stream, offset in handle.handles_and_offsets
            ]
            slices = [] if handle.slices == 1 else [handle.slices]
            sizes = [handle.state_size, handle.checkpointed_size, handle.share_bytes, *slices]
            other = [] if handle.storage_identifier == STORAGE_IDENTIFIER else [handle.storage_identifier]
            bounds = [bound for each in (handle.key_group_range, *handle.held) for bound in each.to_json()]
            handles.append([bounds, sizes, entries, *other])
        flags = _FLAGS[run.merged, run.whole]
        plain.append([run.first, run.last, flags, run.upserts, run.deletes, handles])
    named = []
    for stream in files:
        folder, slash, name = stream.name.rpartition("/")
        index = folders.setdefault(folder + slash, len(folders))
        named.append([index, name, stream.size, stream.generation, stream.crc32c, stream.stored_bytes])
    return {"folders": list(folders), "files": named, "runs": plain}


def decode_runs(fields: Mapping[str, Any]) -> tuple[Run, ...]:
    """Inverse of `encode_runs`. Raises: FormatError."""
    with reading("the runs of a state are not valid"):
        folders = [str(each) for each in plain_list(fields["folders"])]
        files = [
            StreamStateHandle(folders[whole_number(folder)] + str(name), *map(_size, known))
            for folder, name, *known in plain_list(fields["files"])
        ]
        return tuple(_run(each, files) for each in plain_list(fields["runs"]))


def _run(plain: Any, files: list[StreamStateHandle]) -> Run:
    first, last, flags, upserts, deletes, handles = plain
    merged, whole = _OF_FLAGS[flags]
    return Run(
        whole_number(first),
        whole_number(last),
        tuple(_handle(each, files) for each in plain_list(handles)),
        merged,
        whole,
        _size(upserts),
        _size(deletes),
    )


def _handle(plain: Any, files: list[StreamStateHandle]) -> ChangelogStateHandle:
    bounds, (state_size, checkpointed_size, share_bytes, *slices), entries, *other = plain
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    key_groups, *held = (KeyGroupRange(start, end) for start, end in pairs)
    found = tuple((files[whole_number(file)], whole_number(offset)) for file, offset in plain_list(entries))
    return ChangelogStateHandle(
        found,
        key_groups,
        whole_number(state_size),
        whole_number(checkpointed_size),
        # It distinguishes handles while they are written; of a stored one it is what it names.
        f"{found[0][0].name}#{found[0][1]}" if found else "",
        str(other[0]) if other else STORAGE_IDENTIFIER,
        _size(share_bytes),
        whole_number(slices[0]) if slices else 1,
        tuple(held),
    )


def _size(value: Any) -> int | None:
    return None if value is None else whole_number(value)
