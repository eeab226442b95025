"""From components to the final object: the procedure behind every commit.

Owns the order of requests, what each answer means, and the outcome. Does not own the tree (`compose_plan`),
the proof of ownership (`fingerprint`), or what a checkpoint does with the outcome.

Any number of callers may run the same commit at the same time, be killed at any request, and run it again:

* Bytes only move upwards: components into intermediates, intermediates into the final object. Each compose
  requires its exact sources by generation and an absent target, and deletes the sources in the same call.
  So a late or repeated compose either finds its sources and writes what was due, or changes nothing; and
  once the final object has been removed, nothing can bring it back.
* A run that misses a source looks one level up for an object that is provably of this commit, and so on to
  the final one. Searching upwards finds all that a rival has moved meanwhile.
* A foreign object is never touched. A commit is reported as published only when no source is left.

In a copy of a store every object has another generation, and tools may lose metadata. Where the caller knows
that the store is a copy (`Copied`), components are bound to the generations that are live, and what a commit
made is known by length and checksum, each only if these are the right ones. No other process may: a twin of a
component is also what a late repeat of its upload leaves, and a zombie that took it would bring back a file
that was retracted. There the file is blocked, for a person to decide.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cache, partial
from typing import TypeVar

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.concurrency import both, gather
from dstl_dagster.errors import ConflictError, NotFoundError, UnavailableError
from dstl_dagster.format.crc32c import EMPTY_CRC32C, combine_all
from dstl_dagster.recoverable.compose_plan import (
    Node,
    TemporaryNames,
    leaves,
    plan_compose,
    recoverable_hash,
    waves,
)
from dstl_dagster.recoverable.fingerprint import COMMIT_KEY, Fingerprint, is_own
from dstl_dagster.recoverable.recoverables import Component, GSCommitRecoverable
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import (
    ABSENT,
    Expected,
    Generation,
    ObjectStat,
    ObjectStore,
    Source,
    check_crc32c,
    delete_each,
    let_settle,
    write_own,
)

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_ROUNDS = 4
Copied = Callable[[], bool]
"""Whether the store is certainly a copy. Asked where it decides, at most once for each file."""


@dataclass(frozen=True)
class Pin:
    """One object as observed: no generation but this one is ever read or deleted.

    `updated` is its time stamp by the store's clock, if known.
    """

    name: str
    generation: int
    size: int
    crc32c: int
    updated: datetime | None = None

    @classmethod
    def of(cls, stat: ObjectStat) -> Pin:
        return cls(stat.name, stat.generation, stat.size, stat.crc32c, stat.updated)


@dataclass(frozen=True)
class CopiedSource:
    """A temporary object whose copy in another bucket is the final one: to be deleted by `delete_copied`."""

    store: ObjectStore
    pin: Pin


def all_there(pins: Sequence[Pin | None]) -> list[Pin] | None:
    """The pins; `None` if one is missing."""
    there = [pin for pin in pins if pin is not None]
    return there if len(there) == len(pins) else None


def delete_exactly(store: ObjectStore, pin: Pin) -> bool:
    """Whether this call deleted it."""
    try:
        return store.delete(pin.name, precondition=Generation(pin.generation))
    except ConflictError:
        return False  # another generation has the name: ours is gone, and this one is not ours


def delete_copied(sources: Iterable[CopiedSource], clock: Clock, *, threads: int) -> None:
    """Delete them all, after one wait for the youngest, so that none changes twice within a second.

    Until then the commits that copied them are not done: a rival could copy them again. Idempotent.

    Raises: UnavailableError.
    """
    by_bucket: dict[str, list[CopiedSource]] = {}
    for source in sources:
        by_bucket.setdefault(source.store.bucket_name, []).append(source)
    for copied in by_bucket.values():
        store, pins = copied[0].store, [each.pin for each in copied]
        let_settle(store, (pin.updated for pin in pins if pin.updated is not None), clock)
        for _ in delete_each(
            store, [(pin.name, Generation(pin.generation)) for pin in pins], threads=threads
        ):
            pass  # a conflict: another generation has the name, and ours is gone


class CommitState(StrEnum):
    """How a commit ended."""

    PUBLISHED = "published"  # this run (or a concurrent one) wrote the final object; no source is left
    ALREADY_PUBLISHED = "already_published"  # it existed, provably of this commit; no source is left
    TAKEN_AWAY = "taken_away"  # sources and final object are gone: it was published and removed since
    BLOCKED = "blocked"  # a foreign object has the name; it is untouched, and no byte of ours is lost


@dataclass(frozen=True)
class CommitOutcome:
    """The outcome of one file.

    Attributes:
        state: see `CommitState`.
        final: the final object, if it exists and is ours.
        reason: for a person to read, where the state needs explaining.
        foreign_generation: of the foreign object, when blocked.
    """

    state: CommitState
    final: ObjectStat | None = None
    reason: str | None = None
    foreign_generation: int | None = None


class _Blocked(Exception):  # noqa: N818 (not an error: a result that crosses several calls)
    def __init__(self, stat: ObjectStat, where: str) -> None:
        super().__init__(where)
        self.stat = stat
        self.where = where


class FileCommit:
    """One run of the commit of one file, by one of its four methods, each idempotent.

    The plan is fixed at the start; an answer is trusted only for the generation it names.

    Args:
        store: any bucket of the account that holds the objects.
        recoverable: what to commit.
        components: as written, in order; without them each costs one metadata read, and the generations
            found are assumed to be the right ones.
        options: locate the temporary objects if `components` are not passed.
        parallelism: concurrent requests; with 1 they run in the calling thread, in a fixed order.
        copied: of a file of a checkpoint.

    Raises: UnavailableError (call again), FormatError (bytes are not what was written; all sources of the
        bad object are retained), InvalidInputError (components of another recoverable).
    """

    def __init__(
        self,
        store: ObjectStore,
        recoverable: GSCommitRecoverable,
        components: Sequence[Component] | None = None,
        *,
        options: GSFileSystemOptions | None = None,
        parallelism: int = 32,
        copied: Copied | None = None,
    ) -> None:
        self._of_checkpoint = copied is not None
        self._copied = cache(copied or (lambda: False))
        self._commit = recoverable_hash(recoverable)
        self._parallelism = parallelism
        self._root = plan_compose(recoverable)
        self._names = TemporaryNames.of(recoverable, components, options or GSFileSystemOptions())
        self._components = components
        final = recoverable.final_blob_identifier
        self._final_name = final.object_name
        self._final_store = store.in_bucket(final.bucket_name)
        self._final_uri = self._final_store.uri_of(self._final_name)
        self._same_bucket = self._names.bucket_name == final.bucket_name
        self._temporary_store = (
            self._final_store if self._same_bucket else store.in_bucket(self._names.bucket_name)
        )
        self._looks_first = not self._is_one_write()
        self._copies: list[CopiedSource] = []

    def commit(self, clock: Clock | None = None) -> CommitOutcome:
        """Publish the final object, or find out what became of it.

        `clock`: waits, for a store that refuses to change an object that it has only just made.
        """
        outcome = self._run()
        delete_copied(self._copies, clock or SystemClock(), threads=self._parallelism)
        return outcome

    def compose(self) -> tuple[CommitOutcome, Sequence[CopiedSource]]:
        """`commit` of one of many, whose final name was free a moment ago, and which no other takes before
        this step has ended: without components and final object it is blocked, not taken away.

        It is not looked up first: a foreign object is found by the last request, when a tree of composes has
        joined the components already. It is as after a commit that was killed there: no byte is lost.

        Returns: the outcome, and what `delete_copied` must delete before the commit is done.
        """
        self._of_checkpoint, self._looks_first = True, False
        return self._run(), self._copies

    def discard(self) -> int:
        """Delete the sources of a file that is never to be published. Returns how many this call deleted.

        Components go first, by generation, then upwards what a concurrent commit composed of them: after each
        step nothing can be composed again from the level below.
        """
        if self._copied():
            twins = self._twins_of(self._live_components())
            self._components = [twins.get(each.object_name, each) for each in self._components or ()]
        deleted = self._delete(pin for pin in self._pin_components() if pin is not None)
        if self._root is None:
            return deleted
        upwards = waves(self._root)
        if not self._same_bucket and len(self._root.children) > 1:
            upwards.append([self._root])
        for wave in upwards:
            found = self._all(
                [partial(self._temporary_store.stat, self._names.of_id(node.object_id)) for node in wave]
            )
            own = [
                Pin.of(stat)
                for node, stat in zip(wave, found, strict=True)
                if stat is not None and self._is_ours(stat, node)
            ]
            deleted += self._delete(own)
        return deleted

    def retract(self) -> bool:
        """Undo a commit, finished or not: `discard`, then delete the final object if it is of this commit.

        Returns: True if this call deleted the final object. A foreign one stays.
        """
        self.discard()
        return self._delete_final()

    # -- the commit

    def _run(self) -> CommitOutcome:
        for number in range(_ROUNDS):
            if number or self._looks_first:
                final = self._final_store.stat(self._final_name)
                if final is not None:
                    return self._settled(final)
            try:
                made = self._publish()
            except _Blocked as blocked:
                return _blocked_by(blocked.stat, blocked.where)
            except ConflictError:
                continue  # the final name is taken: look
            if made is not None:
                return CommitOutcome(CommitState.PUBLISHED, made)
            # A source is gone. Bytes only move upwards, so a rival's final object is visible by now.
            final = self._final_store.stat(self._final_name)
            if final is not None:
                return self._settled(final)
            live = self._live_components()
            twins = self._twins_of(live)
            if not twins:
                gone = self._gone(live)
                if not gone:
                    continue  # the service says that a source is missing, and all are there
                return self._without(gone, len(live))
            if not self._copied():
                return self._copied_or_repeated(twins)
            self._components = [twins.get(each.object_name, each) for each in self._components or ()]
        raise UnavailableError(
            f"{self._final_uri!r}, or what it is composed of, keeps appearing and disappearing during the "
            "commit; find out what else writes there, then commit again"
        )

    def _is_one_write(self) -> bool:
        """It is refused where the name is taken, and moves nothing. A tree of composes would have by then."""
        if self._root is None:
            return False
        return not waves(self._root) if self._same_bucket else len(self._root.children) == 1

    def _settled(self, final: ObjectStat) -> CommitOutcome:
        if not self._is_ours(final):
            return _blocked_by(final, self._final_uri)
        self.discard()
        return CommitOutcome(CommitState.ALREADY_PUBLISHED, final)

    def _is_ours(self, stat: ObjectStat, node: Node | None = None) -> bool:
        """Whether this commit wrote the object: by its metadata, or in a copy that lost them by its bytes.

        An empty object proves nothing by its bytes.
        """
        if is_own(stat, self._commit, node):
            return True
        if COMMIT_KEY in stat.metadata or not stat.size or not self._components or not self._copied():
            return False
        part = self._components if node is None else self._components[node.first : node.end]
        crc, size = combine_all((each.crc32c, each.size) for each in part)
        return (stat.size, stat.crc32c) == (size, crc)

    def _live_components(self) -> dict[str, ObjectStat | None]:
        names = self._names.of_components
        found = self._all([partial(self._temporary_store.stat, name) for name in names])
        return dict(zip(names, found, strict=True))

    def _twins_of(self, live: Mapping[str, ObjectStat | None]) -> dict[str, Component]:
        """The components that are live with the same bytes and another generation, bound to that; by name."""
        if not self._of_checkpoint:
            return {}
        return {
            each.object_name: replace(each, generation=stat.generation)
            for each in self._components or ()
            if (stat := live[each.object_name]) is not None
            and stat.generation != each.generation
            and (stat.size, stat.crc32c) == (each.size, each.crc32c)
        }

    def _copied_or_repeated(self, twins: Mapping[str, Component]) -> CommitOutcome:
        name = min(twins)
        return CommitOutcome(
            CommitState.BLOCKED,
            reason=(
                f"{self._temporary_store.uri_of(name)!r}, of which it is composed, has another "
                "generation and the same bytes: if it was restored from a copy, publish it (--replace), "
                "else not (--keep)"
            ),
        )

    def _gone(self, live: Mapping[str, ObjectStat | None]) -> list[str]:
        """The names of the components that are not there as they were written."""
        known = {each.object_name: each.generation for each in self._components or ()}
        return [
            name
            for name, stat in live.items()
            if stat is None or known.get(name, stat.generation) != stat.generation
        ]

    def _without(self, gone: Sequence[str], count: int) -> CommitOutcome:
        """The final object is not there, nor are these of so many components.

        Publishing leaves no component behind, and nothing else deletes one: if others are there, it is lost.
        """
        copied = self._copied()
        if copied or len(gone) < count:
            lost = "not in this copy of the store: copy it too" if copied else "lost: put it back"
            return CommitOutcome(
                CommitState.BLOCKED,
                reason=(
                    f"{self._temporary_store.uri_of(gone[0])!r}, of which it is composed, is {lost}, and "
                    "publish the file (--replace), or do without it (--keep)"
                ),
            )
        _logger.info("final object was removed", extra={"final_object": self._final_uri})
        return CommitOutcome(
            CommitState.TAKEN_AWAY,
            reason=f"{self._final_uri!r} and sources of it are gone: it was published and removed since",
        )

    def _publish(self) -> ObjectStat | None:
        """Write the final object; None if a source is gone and nothing above contains it."""
        if self._root is None:
            return self._put_empty()
        made: dict[uuid.UUID, Pin | None] = {}
        for leaf, pin in zip(leaves(self._root), self._pin_components(), strict=True):
            made[leaf.object_id] = pin
        for wave in waves(self._root):
            pins = self._all([partial(self._make, node, made) for node in wave])
            made.update(zip((node.object_id for node in wave), pins, strict=True))
        try:
            if self._same_bucket:
                sources = all_there([made[child.object_id] for child in self._root.children])
                return self._compose(self._final_store, self._final_name, sources) if sources else None
            first, *others = self._root.children
            last = self._make(self._root, made) if others else made[first.object_id]
            return self._copy_to_final(last) if last else None
        except NotFoundError:
            return None

    def _make(self, node: Node, made: Mapping[uuid.UUID, Pin | None]) -> Pin | None:
        """Compose an intermediate, or find it already composed. None: its bytes have moved further up."""
        name = self._names.of_id(node.object_id)
        children = [made[child.object_id] for child in node.children]
        sources = all_there(children)
        if sources:
            try:
                return Pin.of(self._compose(self._temporary_store, name, sources, node))
            except (NotFoundError, ConflictError):
                pass  # a rival was here: the intermediate it left decides
        found = self._temporary_store.stat(name)
        if found is None:
            return None
        if not self._is_ours(found, node):
            raise _Blocked(found, self._temporary_store.uri_of(name))
        self._delete(pin for pin in children if pin is not None)
        return Pin.of(found)

    # -- single writes, each provably ours or an error

    def _put_empty(self) -> ObjectStat:
        fingerprint = Fingerprint(self._commit, 0, EMPTY_CRC32C)
        stamp = fingerprint.to_metadata()
        return write_own(
            self._final_store,
            self._final_name,
            Expected(stamp, 0, EMPTY_CRC32C),
            lambda: self._final_store.put(self._final_name, b"", precondition=ABSENT, metadata=stamp),
        )

    def _compose(
        self, store: ObjectStore, name: str, sources: Sequence[Pin], node: Node | None = None
    ) -> ObjectStat:
        fingerprint = self._fingerprint(sources)
        stamp = fingerprint.to_metadata(node)
        answered = False

        def compose_once() -> ObjectStat:
            nonlocal answered
            stat = store.compose(
                [Source(pin.name, pin.generation) for pin in sources],
                name,
                precondition=ABSENT,
                metadata=stamp,
                delete_sources=True,
                crc32c=fingerprint.crc32c,
            )
            answered = True
            return stat

        stat = write_own(store, name, Expected(stamp, fingerprint.size, fingerprint.crc32c), compose_once)
        if not answered:
            # The run that wrote it may have been killed while deleting its sources.
            self._delete(sources)
        return stat

    def _copy_to_final(self, source: Pin) -> ObjectStat:
        fingerprint = self._fingerprint([source])
        stamp = fingerprint.to_metadata()

        def copy() -> ObjectStat:
            return self._temporary_store.copy(
                Source(source.name, source.generation),
                self._final_name,
                to=self._final_store,
                precondition=ABSENT,
                metadata=stamp,
            )

        expected = Expected(stamp, fingerprint.size, fingerprint.crc32c)
        write = partial(write_own, self._final_store, self._final_name, expected, copy)
        limited = bool(self._temporary_store.capabilities.seconds_between_updates)
        if limited and source.updated is None:
            # The age of a component is unknown, and a young one may not be deleted yet.
            look = partial(self._temporary_store.stat, source.name)
            made, stat = both(write, look, self._final_store.capabilities.lookup_threads(self._parallelism))
            source = replace(source, updated=None if stat is None else stat.updated)
        else:
            made = write()
        check_crc32c(self._final_uri, made.crc32c, fingerprint.crc32c)
        self._copies.append(CopiedSource(self._temporary_store, source))
        return made

    def _fingerprint(self, sources: Sequence[Pin]) -> Fingerprint:
        crc, size = combine_all((pin.crc32c, pin.size) for pin in sources)
        return Fingerprint(self._commit, size, crc)

    # -- sources

    def _pin_components(self) -> list[Pin | None]:
        if self._components is not None:
            return [
                Pin(known.object_name, known.generation, known.size, known.crc32c)
                for known in self._components
            ]
        found = self._all([partial(self._temporary_store.stat, name) for name in self._names.of_components])
        return [None if stat is None else Pin.of(stat) for stat in found]

    def _delete_final(self) -> bool:
        final = self._final_store.stat(self._final_name)
        if final is None or not self._is_ours(final):
            return False
        return delete_exactly(self._final_store, Pin.of(final))

    def _delete(self, pins: Iterable[Pin]) -> int:
        return sum(self._all([partial(delete_exactly, self._temporary_store, pin) for pin in pins]))

    def _all(self, steps: Sequence[Callable[[], _T]]) -> list[_T]:
        # No request is in flight when a failed run is reported.
        return gather(steps, max(1, self._parallelism), "dstl-commit")


def _blocked_by(stat: ObjectStat, where: str) -> CommitOutcome:
    """A commit that ends at this foreign object."""
    return CommitOutcome(
        CommitState.BLOCKED,
        reason=(
            f"{where!r} is a foreign object (generation {stat.generation}), and was not touched; "
            "keep it, or delete it and commit again"
        ),
        foreign_generation=stat.generation,
    )
