"""Asking again. Owns the loop of attempts and its pauses, and `RetryingStore`, which puts it around a store.

Does not own what an error means: only `UnavailableError` is asked again, and everything else is an answer.
An answer that follows a lost one is taken by the rules of `readback`: where the write carries a writer id,
a failed precondition is looked at before it is told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import ConflictError, UnavailableError
from dstl_dagster.format.crc32c import crc32c as checksum
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage.base import (
    Buffer,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    Source,
    summed_write,
)
from dstl_dagster.storage.readback import WRITER_ID_KEY, Expected

__all__ = ["Attempt", "BackoffPolicy", "Retries", "RetryingStore"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class BackoffPolicy:
    """How often, how long, and with which pauses a request is attempted. Frozen.

    Attributes:
        max_attempts: the first included; None: as many as the total time allows.
        total_seconds: no attempt begins after this; None: no limit.
        first_pause_seconds: before the second attempt; each next pause is twice as long.
        max_pause_seconds: the longest pause.
        first_timeout_seconds: of the first attempt; None: what the transport does by itself.
        timeout_multiplier: each next attempt's time-out is this times the one before.
        max_timeout_seconds: the longest time-out of an attempt.

    """

    max_attempts: int | None = None
    total_seconds: float | None = 120.0
    first_pause_seconds: float = 0.2
    max_pause_seconds: float = 30.0
    first_timeout_seconds: float | None = None
    timeout_multiplier: float = 1.0
    max_timeout_seconds: float | None = None

    @classmethod
    def from_options(cls, options: GSFileSystemOptions) -> BackoffPolicy:
        """The defaults, with what the options set in their place."""
        seconds = {
            field: duration.total_seconds()
            for field, duration in (
                ("total_seconds", options.retry_total_timeout),
                ("first_timeout_seconds", options.retry_init_rpc_timeout),
                ("max_timeout_seconds", options.retry_max_rpc_timeout),
            )
            if duration is not None
        }
        multiplier = options.retry_rpc_timeout_multiplier
        return cls(
            # Zero attempts means, as with Google's clients, that the total time alone decides.
            max_attempts=options.retry_max_attempt or None,
            timeout_multiplier=1.0 if multiplier is None else multiplier,
            **seconds,
        )

    def timeout_seconds(self, number: int) -> float | None:
        """The time-out of attempt `number`, counted from 1."""
        if self.first_timeout_seconds is None:
            return self.max_timeout_seconds
        timeout = self.first_timeout_seconds * self.timeout_multiplier ** (number - 1)
        return timeout if self.max_timeout_seconds is None else min(timeout, self.max_timeout_seconds)

    def pause_seconds(self, number: int) -> float:
        """The longest pause after attempt `number`, counted from 1."""
        return min(self.max_pause_seconds, self.first_pause_seconds * 2.0 ** min(number - 1, 60))


@dataclass(frozen=True)
class Attempt:
    """One try: its number from 1, its time-out in seconds, and whether an earlier answer was lost."""

    number: int
    timeout_seconds: float | None

    @property
    def in_doubt(self) -> bool:
        """True if an earlier attempt of the same request may have had its effect."""
        return self.number > 1


class Retries:
    """The loop. Safe from any thread.

    Args:
        policy: how often and how long.
        clock: measures and waits.
        random_unit: a number from 0 to 1 for each pause, so that many callers do not come back at once.
    """

    def __init__(
        self,
        policy: BackoffPolicy | None = None,
        *,
        clock: Clock | None = None,
        random_unit: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy or BackoffPolicy()
        self._clock = clock or SystemClock()
        self._random_unit = random_unit

    def run(self, attempt_once: Callable[[Attempt], _T]) -> _T:
        """Call `attempt_once` until it does not raise UnavailableError, or no attempt is left."""
        began_seconds = self._clock.monotonic_seconds()
        number = 1
        while True:
            try:
                return attempt_once(Attempt(number, self.policy.timeout_seconds(number)))
            except UnavailableError:
                if number == self.policy.max_attempts:
                    raise
                longest = self.policy.pause_seconds(number)
                pause = longest * (0.5 + 0.5 * self._random_unit())
                total = self.policy.total_seconds
                elapsed = self._clock.monotonic_seconds() - began_seconds
                if total is not None and elapsed + pause > total:
                    raise
            self._clock.sleep_seconds(pause)
            number += 1


def settle(store: ObjectStore, name: str, expected: Expected, error: ConflictError) -> ObjectStat:
    """After doubt, a failed precondition may be our own write: its stat, or the error again."""
    stat = store.stat(name)
    if stat is not None and expected.matches(stat):
        return stat
    raise error


class RetryingStore:
    """Any store, asked again where it is unavailable. Streams ask again when they are closed.

    A write that carries a writer id (`readback.WRITER_ID_KEY` in its metadata) and meets a failed
    precondition after a lost answer is read back, and is a success if it is its own.
    """

    def __init__(self, inner: ObjectStore, retries: Retries | None = None) -> None:
        self._inner = inner
        self._retries = retries or Retries()

    def __repr__(self) -> str:
        return f"RetryingStore({self._inner!r})"

    @property
    def inner(self) -> ObjectStore:
        """The store that is asked once."""
        return self._inner

    @property
    def uri(self) -> str:
        return self._inner.uri

    @property
    def bucket_name(self) -> str:
        return self._inner.bucket_name

    @property
    def prefix(self) -> str:
        return self._inner.prefix

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        return RetryingStore(self._inner.in_bucket(bucket_name), self._retries)

    def locate(self, uri: str) -> tuple[str, str]:
        return self._inner.locate(uri)

    def uri_of(self, name: str) -> str:
        return self._inner.uri_of(name)

    def put(
        self,
        name: str,
        payload: Buffer,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        stamp = _stamp(metadata)

        def once(attempt: Attempt) -> ObjectStat:
            try:
                return self._inner.put(name, payload, precondition=precondition, metadata=metadata)
            except ConflictError as error:
                if stamp is None or not attempt.in_doubt:
                    raise
                octets = bytes(payload)
                return settle(self._inner, name, Expected(stamp, len(octets), checksum(octets)), error)

        return self._retries.run(once)

    def open_write(
        self,
        name: str,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
    ) -> ObjectWriter:
        upload = self._retries.run(
            lambda _: self._inner.open_write(
                name, precondition=precondition, metadata=metadata, chunk_size=chunk_size
            )
        )
        return _RetryingWriter(upload, self._retries)

    def stat(self, name: str, *, generation: int | None = None) -> ObjectStat | None:
        return self._retries.run(lambda _: self._inner.stat(name, generation=generation))

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        return self._retries.run(lambda _: self._inner.get(name, generation=generation))

    def get_range(
        self, name: str, start: int, length: int, *, generation: int | None = None
    ) -> bytes | memoryview:
        return self._retries.run(lambda _: self._inner.get_range(name, start, length, generation=generation))

    def open_read(self, name: str, *, start: int = 0, generation: int | None = None) -> ObjectReader:
        reader = self._retries.run(lambda _: self._inner.open_read(name, start=start, generation=generation))
        return _RetryingReader(reader, self._retries)

    def list(self, prefix: str = "", *, start_offset: str | None = None) -> Iterator[ObjectStat]:
        last_name: str | None = None
        walk = self._inner.list(prefix, start_offset=start_offset)

        def following(attempt: Attempt) -> ObjectStat | None:
            nonlocal walk
            if attempt.in_doubt:
                # A walk that failed is over: begin another after the last name that was told.
                offset = start_offset if last_name is None else last_name + "\u0001"
                walk = self._inner.list(prefix, start_offset=offset)
            return next(walk, None)

        while (stat := self._retries.run(following)) is not None:
            last_name = stat.name
            yield stat

    def compose(
        self,
        sources: Sequence[Source],
        target: str,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
        delete_sources: bool = False,
        crc32c: int | None = None,
    ) -> ObjectStat:
        return self._retries.run(
            lambda _: self._inner.compose(
                sources,
                target,
                precondition=precondition,
                metadata=metadata,
                delete_sources=delete_sources,
                crc32c=crc32c,
            )
        )

    def copy(
        self,
        source: Source,
        target: str,
        *,
        to: ObjectStore | None = None,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        destination = to.inner if isinstance(to, RetryingStore) else to
        return self._retries.run(
            lambda _: self._inner.copy(
                source, target, to=destination, precondition=precondition, metadata=metadata
            )
        )

    def delete(self, name: str, *, precondition: Precondition) -> bool:
        return self._retries.run(lambda _: self._inner.delete(name, precondition=precondition))

    def close(self) -> None:
        self._inner.close()


class _RetryingWriter:
    def __init__(self, upload: ObjectWriter, retries: Retries) -> None:
        self._upload = upload
        self._retries = retries

    def write(self, payload: Buffer) -> int:
        # Not asked again: how much of it was taken is not known.
        return self._upload.write(payload)

    def write_summed(self, payload: Buffer, crc32c: int) -> int:
        return summed_write(self._upload)(payload, crc32c)

    def flush(self) -> None:
        self._upload.flush()

    def close(self) -> ObjectStat:
        return self._retries.run(lambda _: self._upload.close())

    def abort(self) -> None:
        self._upload.abort()


class _RetryingReader:
    def __init__(self, reader: ObjectReader, retries: Retries) -> None:
        self._reader = reader
        self._retries = retries

    def read(self, size: int = -1) -> bytes:
        return self._retries.run(lambda _: self._reader.read(size))

    def close(self) -> None:
        self._reader.close()


def _stamp(metadata: Mapping[str, str] | None) -> Mapping[str, str] | None:
    writer_id = (metadata or {}).get(WRITER_ID_KEY)
    return None if writer_id is None else {WRITER_ID_KEY: writer_id}
