"""Handles of persisted changes: small values that cross processes and are stored in manifests.

Owns their fields and their JSON form. Does not own the objects they name: nothing here reads or deletes.
Twin of Flink's `FileStateHandle`, `ChangelogStateHandleStreamImpl` and `SnapshotResult`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.envelope import reading
from dstl_dagster.format.key_group_ranges import KeyGroupRange, merged_ranges
from dstl_dagster.format.stored import NOT_STORED, from_fields, plain_list, to_fields, whole_number

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar

STORAGE_IDENTIFIER: Final = "filesystem"
"""Flink's name of the changelog storage whose files these are."""

_MOST_HELD: Final = 32
"""Ranges that a handle lists: about as many bytes as the rest of it, in a manifest."""


@dataclass(frozen=True, slots=True)
class StreamStateHandle:
    """One stored changelog file. Two handles are equal if their name and size are.

    Attributes:
        name: the object's name in its store (for a `LocalStateHandle`, the path of a local file).
        size: logical bytes of the body, uncompressed, without the flag byte and the footer: Flink's state
            size of the file. None if only the name is known.
        generation: the object's generation in the store, if known.
        crc32c: CRC-32C of the whole stored object, if known.
        stored_bytes: bytes of the whole stored object, if known. If known, this package wrote the file, and
            a reader requires its footer.
    """

    name: str
    size: int | None
    generation: int | None = field(default=None, compare=False)
    crc32c: int | None = field(default=None, compare=False)
    stored_bytes: int | None = field(default=None, compare=False)

    KIND: ClassVar[str] = "object"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInputError(f"a stream state handle needs the name of its object, not {self.name!r}")
        if self.size is not None and self.size < 0:
            raise InvalidInputError(f"size {self.size} of {self.name!r} is negative; unknown is None")

    @property
    def known_bytes(self) -> int:
        """Of the stored object, as far as its writer knew them."""
        return self.stored_bytes or self.size or 0

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        return {"kind": self.KIND, **to_fields(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StreamStateHandle:
        """Inverse of `to_json`, for either kind. FormatError for anything else."""
        with reading("a stored stream state handle is not valid"):
            fields = dict(document)
            classes = {each.KIND: each for each in (StreamStateHandle, LocalStateHandle)}
            handle_class = classes[fields.pop("kind")]
            return from_fields(handle_class, fields)


@dataclass(frozen=True, slots=True)
class LocalStateHandle(StreamStateHandle):
    """The copy of one changelog file on this machine's disk; `name` is its absolute path."""

    KIND: ClassVar[str] = "local"


@dataclass(frozen=True, slots=True)
class ChangelogStateHandle:
    """The persisted changes of one writer, of one range of sequence numbers.

    Attributes:
        handles_and_offsets: ascending by sequence number; each entry points at one change set: the
            file, and the offset in its logical (uncompressed) body.
        key_group_range: the writer's, or an intersection with it. The list is not filtered by it.
        state_size: payload bytes of all change sets named.
        checkpointed_size: the part of it that was not yet durable when persist was called.
        state_handle_id: identifies this value while it is written, not the files: a random UUID as text.
        storage_identifier: the kind of changelog storage that wrote it.
        share_bytes: stored bytes of its files that count as its own, where others share them; `None`: all.
        slices: a key group with as many changes in a change set has one for each slice of its keys' hashes.
        held: it has no changes of other key groups, metadata aside; empty: of any in `key_group_range`.
    """

    handles_and_offsets: tuple[tuple[StreamStateHandle, int], ...] = field(metadata=NOT_STORED)
    key_group_range: KeyGroupRange
    state_size: int
    checkpointed_size: int
    state_handle_id: str = field(default_factory=lambda: str(uuid.uuid4()), compare=False)
    storage_identifier: str = STORAGE_IDENTIFIER
    share_bytes: int | None = None
    slices: int = 1
    held: tuple[KeyGroupRange, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "handles_and_offsets", tuple(self.handles_and_offsets))
        for handle, offset in self.handles_and_offsets:
            if offset < 0:
                raise InvalidInputError(f"offset {offset} in {handle.name!r} is negative")
        if self.state_size < 0 or self.checkpointed_size < 0:
            raise InvalidInputError("the sizes of a changelog handle are bytes, 0 or more")

    def holding(self, key_groups: Iterable[int]) -> Self:
        """The same with changes of these key groups alone, which it lists if they are few ranges."""
        held = merged_ranges(key_groups)
        is_news = len(held) <= _MOST_HELD and held != (self.key_group_range,)
        return replace(self, held=held if is_news else ())

    @property
    def streams(self) -> Iterator[StreamStateHandle]:
        """The file of each change set, in their order; a file that holds several is repeated."""
        return (stream for stream, _offset in self.handles_and_offsets)

    def stream_state_handles(self) -> tuple[StreamStateHandle, ...]:
        """The files, each once, in the order of their first change set."""
        return tuple(dict.fromkeys(self.streams))

    def stream_state_handle(self) -> StreamStateHandle:
        """The one file that holds everything.

        InvalidInputError where there are several, as after a pre-emptive upload, or none: use
        `stream_state_handles()`.
        """
        files = self.stream_state_handles()
        if len(files) != 1:
            raise InvalidInputError(
                f"the changes stand in {len(files)} files, not in one: use stream_state_handles()"
            )
        return files[0]

    @classmethod
    def of_files(
        cls, files_and_offsets: Iterable[tuple[str, int]], key_group_range: KeyGroupRange
    ) -> ChangelogStateHandle:
        """A handle on change sets that something else wrote (such as Flink), each as (object name, offset).

        Its sizes are 0, because they are unknown.
        """
        entries = tuple((StreamStateHandle(name, None), offset) for name, offset in files_and_offsets)
        return cls(entries, key_group_range, 0, 0)

    def intersection(self, key_group_range: KeyGroupRange) -> ChangelogStateHandle | None:
        """The same files for the key groups in both ranges, with both sizes 0; None if there are none.

        Nothing is filtered here: a reader skips the changes outside of the range.
        """
        shared = self.key_group_range.intersection(key_group_range)
        if shared.number_of_key_groups == 0:
            return None
        return replace(
            self, key_group_range=shared, state_size=0, checkpointed_size=0, state_handle_id=str(uuid.uuid4())
        )

    def to_json(self) -> dict[str, Any]:
        """A plain dict: `files` without repeats, `entries` as [index of the file, offset]."""
        files: dict[StreamStateHandle, int] = {}
        entries = [
            [files.setdefault(handle, len(files)), offset] for handle, offset in self.handles_and_offsets
        ]
        return {**to_fields(self), "files": [handle.to_json() for handle in files], "entries": entries}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`. FormatError for anything else."""
        with reading("a stored changelog handle is not valid"):
            fields = dict(document)
            files = [StreamStateHandle.from_json(file) for file in plain_list(fields.pop("files"))]
            entries = tuple(
                (files[whole_number(index)], whole_number(offset))
                for index, offset in plain_list(fields.pop("entries"))
            )
            return from_fields(cls, fields, handles_and_offsets=entries)


if TYPE_CHECKING:  # typing's own has a default from Python 3.13 on
    HandleT = TypeVar("HandleT", bound=ChangelogStateHandle, default=ChangelogStateHandle)
else:
    HandleT = TypeVar("HandleT", bound=ChangelogStateHandle)


@dataclass(frozen=True)
class SnapshotResult(Generic[HandleT]):
    """The result of a persist: the durable handle, and one on the local copies if all of them exist.

    InvalidInputError for a local part without a durable one. `SnapshotResult()` is the empty result.
    """

    job_manager_owned_snapshot: HandleT | None = None
    task_local_snapshot: HandleT | None = None

    def __post_init__(self) -> None:
        if self.job_manager_owned_snapshot is None and self.task_local_snapshot is not None:
            raise InvalidInputError("a snapshot result with a local part needs the durable part it copies")

    @property
    def state_size(self) -> int:
        """Payload bytes of the durable part; 0 without one."""
        return 0 if self.job_manager_owned_snapshot is None else self.job_manager_owned_snapshot.state_size
