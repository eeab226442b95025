"""The log of one operator's task: its changes, those of them that are durable, the futures that wait.

Owns positions and their states; `contract` says what each call promises. Does not own when bytes leave
(`upload`), how they look (`format`), or how long a file lives (`registry`).

A change set is in one state, and moves only downwards:

    active         appended since the last roll-over                                   `_pending`
    not uploaded   has a position; waits for a persist or the threshold                `_not_uploaded`
    in flight      with the scheduler                                                  neither map
    uploaded       stands in a file                                                    `_uploaded`
    failed         its upload failed permanently; the caller persists from above it       `_highest_failed`

All of it is touched by the owner's thread alone. Results of uploads come from other threads; they wait in
an inbox, and the mailbox is asked to drain it.

Source: Flink's `FsStateChangelogWriter`.
"""

from __future__ import annotations

import logging
import operator
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from threading import get_ident
from typing import Any, Final

from dstl_dagster.changelog.contract import StateChangelogWriter
from dstl_dagster.changelog.writer.pending import (
    SMALLEST_PIECE_BYTES,
    PendingChanges,
    checked_columns,
    cut_by_size,
)
from dstl_dagster.changelog.writer.results import Arrival, Inbox, PersistCompletion, snapshot_of
from dstl_dagster.errors import (
    ClosedError,
    DstlError,
    ErrorKind,
    InternalError,
    InvalidInputError,
    UnavailableError,
)
from dstl_dagster.format.changes import MAX_CHANGE_BYTES, META_KEY_GROUP, StateChangeSet, checked_change
from dstl_dagster.format.handles import ChangelogStateHandle, SnapshotResult
from dstl_dagster.format.key_group_ranges import KeyGroupRange
from dstl_dagster.format.sequence import MAX_SEQUENCE_NUMBER, SequenceNumber, SequenceNumberRange
from dstl_dagster.futures import MailboxExecutor, MailboxFuture, TaskMailbox
from dstl_dagster.registry import LocalChangelogRegistry, TaskChangelogRegistry
from dstl_dagster.settings.changelog import LocalRecoveryConfig
from dstl_dagster.upload import StateChangeUploadScheduler, UploadResult, UploadTask

_logger = logging.getLogger(__name__)

_INITIAL = SequenceNumber(0)
_END = SequenceNumber(MAX_SEQUENCE_NUMBER)


class _OwnedFiles:
    """Both registries, by upload result: its file is used by a checkpoint, handed over to one, or released.

    A released one is deleted once no writer needs it: it may hold other writers' change sets. Any thread.
    """

    def __init__(self, registry: TaskChangelogRegistry, local_registry: LocalChangelogRegistry) -> None:
        self._registry = registry
        self._local_registry = local_registry

    def register_local(self, result: UploadResult, checkpoint_id: int) -> None:
        """This checkpoint uses the local copy, if there is one."""
        if result.local_handle is not None:
            self._local_registry.register(result.local_handle, checkpoint_id)

    def discard_local_up_to(self, checkpoint_id: int) -> None:
        """Local copies that only earlier checkpoints used go."""
        self._local_registry.discard_up_to_checkpoint(checkpoint_id)

    def hand_over(self, result: UploadResult) -> None:
        """A checkpoint owns the file now: it is never deleted from here."""
        self._registry.stop_tracking(result.stream_state_handle)
        if result.local_handle is not None:
            self._registry.stop_tracking(result.local_handle)

    def release(self, result: UploadResult) -> None:
        """This writer no longer needs the file; it is deleted once no writer does."""
        self._registry.release(result.stream_state_handle)
        if result.local_handle is not None:
            self._registry.release(result.local_handle)

    def release_late(self, arrival: Arrival) -> None:
        """Of a writer that is closed: no handle refers to these sets."""
        results = arrival[1]
        if isinstance(results, list):
            for result in results:
                self.release(result)


class FsStateChangelogWriter(StateChangelogWriter[ChangelogStateHandle]):
    """The `StateChangelogWriter` of changelog files.

    A call on another thread than its maker's is an InvalidInputError.

    Args: as upstream's constructor, and the operator's id, for measurements. Without a mailbox there is one
    inside, which this writer's methods and the futures it gave run.
    """

    def __init__(
        self,
        log_id: uuid.UUID,
        key_group_range: KeyGroupRange,
        uploader: StateChangeUploadScheduler,
        preemptive_persist_threshold_in_bytes: int,
        mailbox_executor: MailboxExecutor | None,
        changelog_registry: TaskChangelogRegistry,
        local_recovery_config: LocalRecoveryConfig,
        local_changelog_registry: LocalChangelogRegistry,
        *,
        operator_id: str | None = None,
    ) -> None:
        self.log_id = log_id
        self._operator_id = operator_id
        self.key_group_range = key_group_range
        self._uploader = uploader
        self._threshold_bytes = preemptive_persist_threshold_in_bytes
        self._own_mailbox = TaskMailbox() if mailbox_executor is None else None
        self._mailbox: MailboxExecutor = mailbox_executor or self._own_mailbox  # type: ignore[assignment]  # one of them is there
        self._local_backup = local_recovery_config.is_local_backup_enabled
        self._files = _OwnedFiles(changelog_registry, local_changelog_registry)
        self._thread = threading.get_ident()
        self._lowest_key_group = key_group_range.start_key_group
        self._highest_key_group = key_group_range.end_key_group

        self._pending = PendingChanges()
        self._add_row = self._pending.add_row
        self._active_sqn = _INITIAL
        self._lowest_sqn = _INITIAL
        self._highest_sqn = _END
        # Positions only grow, so the order of insertion of these dicts is not yet their order: uploads end
        # in any order.
        self._not_uploaded: dict[SequenceNumber, StateChangeSet] = {}
        self._uploaded: dict[SequenceNumber, UploadResult] = {}
        self._highest_failed: tuple[SequenceNumber, BaseException] | None = None
        self._completions: list[PersistCompletion] = []

        self._inbox = Inbox()
        self._closed = False

    # -- appending ---------------------------------------------------------------------------------

    def append(self, key_group: int, value: bytes) -> None:
        """Append one change. Blocks while too much is in flight, if it reaches the pre-emptive threshold.

        InvalidInputError for a key group outside the writer's range, or a value that is not bytes; nothing
        was appended then. A failed pre-emptive upload shows at the next persist of its range, not here.
        """
        # The cheap forms of all checks first: this is called for each change.
        if get_ident() != self._thread or self._closed:
            self._check_usable()
        if type(key_group) is not int:
            key_group = checked_key_group(key_group)
        if not self._lowest_key_group <= key_group <= self._highest_key_group:
            raise InvalidInputError(
                f"key group {key_group} is outside the writer's range {self.key_group_range}"
            )
        if type(value) is not bytes or len(value) > MAX_CHANGE_BYTES:
            value = checked_value(value)
        if self._add_row(key_group, value) >= self._threshold_bytes:
            self._persist_preemptively()

    def append_meta(self, value: bytes) -> None:
        self._check_usable()
        if self._add_row(META_KEY_GROUP, checked_value(value)) >= self._threshold_bytes:
            self._persist_preemptively()

    def append_batch(self, key_groups: Any, values: Any) -> None:
        """Append many changes: an int32 and a binary column of pyarrow, of one length, without nulls.

        The same as appending them one by one, without a loop over rows; the columns are not copied.
        The pre-emptive threshold is checked only after the whole batch, or after each 16 MiB of it (or the
        threshold, if that is more). InvalidInputError, with nothing appended, as in
        `append` and for a wrong column.
        """
        self._check_usable()
        groups, changes = checked_columns(key_groups, values, self.key_group_range)
        for start, stop in cut_by_size(groups, changes, max(self._threshold_bytes, SMALLEST_PIECE_BYTES)):
            self._pending.add_columns(groups[start:stop], changes.slice(start, stop - start))
            if self._pending.size_bytes >= self._threshold_bytes:
                self._persist_preemptively()

    def _persist_preemptively(self) -> None:
        """Upload what no checkpoint asked for yet. A failure belongs to its range, not to this append."""
        self._roll_over()
        from_ = self._highest_failed[0].next() if self._highest_failed is not None else _INITIAL
        taken = self._take_not_uploaded(from_)
        if taken:
            try:
                self._submit(taken, None)
            except DstlError as error:
                _logger.warning("a pre-emptive upload could not be begun: %s", error)

    # -- positions ---------------------------------------------------------------------------------

    def initial_sequence_number(self) -> SequenceNumber:
        self._check_usable()
        return _INITIAL

    def next_sequence_number(self) -> SequenceNumber:
        self._check_usable()
        self._roll_over()
        return self._active_sqn

    def _roll_over(self) -> None:
        if self._pending.is_empty:
            return
        change_set = StateChangeSet(self.log_id, self._active_sqn, self._pending.take())
        self._not_uploaded[self._active_sqn] = change_set
        self._active_sqn = self._active_sqn.next()

    def _take_not_uploaded(self, from_: SequenceNumber) -> list[StateChangeSet]:
        taken = [change_set for sqn, change_set in self._not_uploaded.items() if sqn >= from_]
        for change_set in taken:
            del self._not_uploaded[change_set.sequence_number]
        return taken

    # -- persisting --------------------------------------------------------------------------------

    def persist(self, from_: SequenceNumber, checkpoint_id: int) -> MailboxFuture[SnapshotResult]:
        """As `StateChangelogWriter.persist`; an upload's foreign error is wrapped in an UnavailableError.

        After a permanent failure, persist from above it, or begin a new log.
        """
        self._settle(from_=from_)
        self._check_persist(from_, checkpoint_id)
        self._roll_over()
        taken = self._take_not_uploaded(from_)
        wanted = SequenceNumberRange(from_, self._active_sqn)
        ready = self._uploaded_in(wanted)
        for result in ready.values():
            self._files.register_local(result, checkpoint_id)
        future: MailboxFuture[SnapshotResult] = MailboxFuture(self._mailbox)
        if wanted.size == len(ready):
            if taken:
                raise InternalError(f"{len(taken)} change sets of {wanted} are both uploaded and not")
            snapshot = snapshot_of(ready.values(), self.key_group_range, 0, local_backup=self._local_backup)
            future.set_result(snapshot)
            return future
        self._completions.append(PersistCompletion(wanted, checkpoint_id, ready, future))
        if taken:
            self._submit(taken, checkpoint_id)
        return future

    def _check_persist(self, from_: SequenceNumber, checkpoint_id: object) -> None:
        """Raises: UnavailableError (kind `upload_failed`), InvalidInputError."""
        if isinstance(checkpoint_id, bool) or not isinstance(checkpoint_id, int) or checkpoint_id < 0:
            raise InvalidInputError(f"a checkpoint id is a whole number of 0 or more, not {checkpoint_id!r}")
        if self._highest_failed is not None and self._highest_failed[0] >= from_:
            raise UnavailableError(
                f"the upload for {self._highest_failed[0]} has already failed previously: persist from above "
                "it, after writing the state anew, or begin a new log",
                kind=ErrorKind.UPLOAD_FAILED,
            ) from self._highest_failed[1]
        if self._lowest_sqn > from_:
            raise InvalidInputError(
                f"requested changes were truncated (requested: {from_}, truncated: {self._lowest_sqn})"
            )
        if self._active_sqn < from_:
            raise InvalidInputError(
                f"requested changes were not yet appended (requested: {from_}, appended: {self._active_sqn})"
            )

    def _uploaded_in(self, positions: SequenceNumberRange) -> dict[SequenceNumber, UploadResult]:
        """The uploaded part of a range. Costs as much as the range is long, not the log."""
        if positions.size > len(self._uploaded):
            return {sqn: result for sqn, result in self._uploaded.items() if positions.contains(sqn)}
        found = ((sqn, self._uploaded.get(sqn)) for sqn in positions)
        return {sqn: result for sqn, result in found if result is not None}

    def _submit(self, change_sets: list[StateChangeSet], checkpoint_id: int | None) -> None:
        task = UploadTask(
            change_sets,
            lambda results: self._arrived((checkpoint_id, results), "handleUploadSuccess"),
            lambda sequence_numbers, error: self._arrived((sequence_numbers, error), "handleUploadFailure"),
            self._operator_id,
        )
        try:
            self._uploader.upload(task)
        except BaseException as error:
            # A scheduler that raises has failed the task; one that forgot must not leave a future pending.
            task.fail(error)
            # A closed one is reported by the future, as when it is closed a moment later.
            if not isinstance(error, ClosedError):
                raise

    # -- results of uploads, from any thread -------------------------------------------------------

    def _arrived(self, arrival: Arrival, description: str) -> None:
        if self._inbox.put(arrival):
            self._mailbox.execute(self._empty_inbox, description)
        else:
            self._files.release_late(arrival)

    def _empty_inbox(self) -> None:
        self._check_thread()
        while (arrival := self._inbox.take()) is not None:
            results = arrival[1]
            if isinstance(results, list):
                self._take_results(arrival[0], results)  # type: ignore[arg-type]  # an Arrival of this second part
            else:
                self._take_failure(arrival[0], results)  # type: ignore[arg-type]  # as above

    def _take_results(self, checkpoint_id: int | None, results: list[UploadResult]) -> None:
        satisfied = [completion for completion in self._completions if completion.take(results)]
        for result in results:
            if checkpoint_id is not None:
                self._files.register_local(result, checkpoint_id)
            for completion in self._completions:
                if completion.wanted.contains(result.sequence_number):
                    self._files.register_local(result, completion.checkpoint_id)
            if self._lowest_sqn <= result.sequence_number < self._highest_sqn:
                self._uploaded[result.sequence_number] = result
            else:
                self._files.release(result)
        self._completions = [completion for completion in self._completions if completion not in satisfied]

        def settle(completion: PersistCompletion) -> None:
            snapshot = completion.snapshot(self.key_group_range, local_backup=self._local_backup)
            completion.future.set_result(snapshot)

        _settle_each(satisfied, settle)

    def _take_failure(self, sequence_numbers: list[SequenceNumber], error: BaseException) -> None:
        highest = max(sequence_numbers)
        if highest >= self._lowest_sqn and (
            self._highest_failed is None or highest > self._highest_failed[0]
        ):
            self._highest_failed = (highest, error)
        hit = [completion for completion in self._completions if completion.wants_any(sequence_numbers)]
        self._completions = [completion for completion in self._completions if completion not in hit]
        _settle_each(hit, lambda completion: completion.future.set_exception(as_dstl_error(error)))

    # -- the life of a checkpoint ------------------------------------------------------------------

    def confirm(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        """As `StateChangelogWriter.confirm`. Local copies that only earlier checkpoints used go."""
        self._settle(from_=from_, to=to)
        if from_ > to:
            raise InvalidInputError(f"invalid confirm range: [{from_},{to})")
        if max(from_, to) > self._active_sqn:
            raise InvalidInputError(f"invalid confirm range: [{from_},{to}), active sqn: {self._active_sqn}")
        for result in self._uploaded_in(SequenceNumberRange(from_, to)).values():
            self._files.hand_over(result)
        self._files.discard_local_up_to(checkpoint_id)

    def reset(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        """As `StateChangelogWriter.reset`. Local copies that only this checkpoint and earlier ones used go.

        Nothing is uploaded again; the range is upstream's and has no effect.
        """
        self._settle(from_=from_, to=to)
        self._files.discard_local_up_to(checkpoint_id + 1)

    def truncate(self, to: SequenceNumber) -> None:
        """As `StateChangelogWriter.truncate`.

        Sets not uploaded are dropped, uploaded ones released, those in flight are released when they arrive.
        """
        self._settle(to=to)
        if to > self._active_sqn:
            raise InvalidInputError(
                f"cannot truncate to {to}: only positions below {self._active_sqn} are there"
            )
        if to < self._lowest_sqn:
            raise InvalidInputError(f"cannot truncate to {to}: the log begins at {self._lowest_sqn} already")
        self._lowest_sqn = to
        self._not_uploaded = {sqn: change_set for sqn, change_set in self._not_uploaded.items() if sqn >= to}
        for sqn in [sqn for sqn in self._uploaded if sqn < to]:
            self._files.release(self._uploaded.pop(sqn))

    def truncate_and_close(self, from_: SequenceNumber) -> None:
        self._settle(from_=from_)
        self._highest_sqn = from_
        for sqn in [sqn for sqn in self._uploaded if sqn >= from_]:
            self._files.release(self._uploaded.pop(sqn))
        self.close()

    def close(self) -> None:
        """As `StateChangelogWriter.close`. Durable files stay as they are: a checkpoint may hold them.

        Uploads that have ended by now complete their futures; results that arrive later are released.
        """
        self._check_thread()
        if self._closed:
            return
        if self._completions:
            self._empty_inbox()
        # A step that followed may have closed it already: what follows changes nothing then.
        self._closed = True
        for arrival in self._inbox.close():
            self._files.release_late(arrival)
        self._pending.clear()
        self._not_uploaded.clear()
        self._uploaded.clear()
        waiting, self._completions = self._completions, []
        text = "the writer was closed before checkpoint {} was durable"
        _settle_each(
            waiting, lambda each: each.future.set_exception(ClosedError(text.format(each.checkpoint_id)))
        )

    # -- guards ------------------------------------------------------------------------------------

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise InvalidInputError(
                "a changelog writer belongs to the thread that made it: make one for each thread"
            )

    def _settle(self, **positions: object) -> None:
        """The beginning of every call for a range: checks, and the results that have arrived."""
        self._check_usable()
        self._empty_inbox()
        for what, sqn in positions.items():
            if not isinstance(sqn, SequenceNumber):
                raise InvalidInputError(
                    f"{what} is a {type(sqn).__name__}, not a SequenceNumber: SequenceNumber.of(n)"
                )

    def _check_usable(self) -> None:
        self._check_thread()
        if self._closed:
            raise ClosedError("the changelog writer is closed: create another")


def _settle_each(completions: list[PersistCompletion], settle: Callable[[PersistCompletion], None]) -> None:
    """In order, and the others too where a step that follows one is interrupted; the interrupt goes on then.

    Once all else is consistent: such a step may call the writer at once.
    """
    with ExitStack() as stack:
        for completion in reversed(completions):
            stack.callback(settle, completion)


def checked_key_group(key_group: object) -> int:
    """A key group of any integer type, as an int. InvalidInputError for what has no integer value."""
    try:
        return operator.index(key_group)  # type: ignore[arg-type]  # what has no index raises TypeError
    except TypeError:
        raise InvalidInputError(f"a key group is an int, not {type(key_group).__name__}") from None


def checked_value(value: object) -> bytes:
    """A change as immutable bytes. InvalidInputError for another type or too large a size."""
    change = checked_change(value)
    if len(change) > MAX_CHANGE_BYTES:
        raise InvalidInputError(
            f"a change of {len(change)} bytes is larger than {MAX_CHANGE_BYTES}: split it"
        )
    return change


_BUGS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
)
"""A wrong call or a library of another version: the same call fails the same way."""


def as_dstl_error(error: BaseException) -> DstlError:
    """An upload's error as a DstlError, with the original as its cause."""
    if isinstance(error, DstlError):
        return error
    text = f"{type(error).__name__}: {error}"
    failure: DstlError = UnavailableError(f"the upload failed: {text}", ErrorKind.UPLOAD_FAILED)
    if isinstance(error, _BUGS):
        failure = InternalError(f"the upload failed, and not for the storage's sake: {text}")
    failure.__cause__ = error
    return failure
