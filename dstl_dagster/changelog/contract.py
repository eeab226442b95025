"""The contract of every writer of a state changelog: Flink's `StateChangelogWriter`, in Python's spelling.

Owns the contract. Does not own the storage of a log: `writer` has it in files. Another implementation runs
`dstl_dagster.testing.changelog_conformance` against itself.
"""

from __future__ import annotations

from typing import Protocol

from dstl_dagster.concurrency import Closing
from dstl_dagster.format.handles import HandleT, SnapshotResult
from dstl_dagster.format.sequence import SequenceNumber
from dstl_dagster.futures import MailboxFuture


class StateChangelogWriter(Closing, Protocol[HandleT]):
    """Appends changes of one operator's state and makes ranges of them durable. One thread: its maker's.
    As a context manager it is closed at the end.

    What is appended has positions: a sequence number stands for everything appended between two roll-overs
    (`next_sequence_number`, `persist`). A position is durable once a persist that covers it has ended well.

    Every method but `close` raises ClosedError (a ValueError and an OSError) once it is closed.
    InvalidInputError (a ValueError) means a wrong call, and that nothing changed.
    """

    def append(self, key_group: int, value: bytes) -> None:
        """Append one change. May block while too much is on its way.

        InvalidInputError for a key group outside the writer's range, or a value that is not bytes. An upload
        that fails later shows at the persist of its range, not here.
        """
        ...

    def append_meta(self, value: bytes) -> None:
        """Append one change of metadata: it has no key group, and comes first on restore."""
        ...

    def initial_sequence_number(self) -> SequenceNumber:
        """The first position there is; the same at any time."""
        ...

    def next_sequence_number(self) -> SequenceNumber:
        """Roll over. The position that follows everything appended; the same again while nothing is."""
        ...

    def persist(self, from_: SequenceNumber, checkpoint_id: int) -> MailboxFuture[SnapshotResult[HandleT]]:
        """Make everything from `from_` (inclusive) to the last append durable; rolls over.

        The future's result holds the handle of exactly these changes. It fails with an OSError of ours where
        they could not be made durable. What is durable already, or on its way, is not written again. Several
        may be under way at once, and a step that follows the future may append and persist.

        Raises at once, with nothing changed: UnavailableError (kind `upload_failed`) where part of the range
        has failed permanently; InvalidInputError where `from_` was truncated or is beyond what was appended.
        """
        ...

    def truncate(self, to: SequenceNumber) -> None:
        """Everything below `to` (exclusive) is no longer needed: its state was materialized.

        InvalidInputError beyond what has a position, or below an earlier truncation.
        """
        ...

    def confirm(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        """A checkpoint owns `[from_, to)` now: this writer deletes none of it any more.

        InvalidInputError for a range that ends before it begins or reaches beyond what was appended.
        """
        ...

    def reset(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        """A checkpoint of `[from_, to)` was aborted. Nothing appended is lost: a later persist has it."""
        ...

    def truncate_and_close(self, from_: SequenceNumber) -> None:
        """Give up everything from `from_` (inclusive) on that no checkpoint holds, and close."""
        ...

    def close(self) -> None:
        """Forget what is not durable; may be called again. What is durable stays.

        A future whose range is durable by now has its result; any other that waits fails with ClosedError:
        close does not wait. A caller that needs the result waits for the future first.
        """
        ...
