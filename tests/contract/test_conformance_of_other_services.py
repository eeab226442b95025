"""The suite catches what other services, or clients for them, do differently from the contract.

Each store here has one such difference, which was measured (`docs/decisions/0078`). Whoever makes a store for
such a service meets it as a failing test, and not as a lost update or a file that is published twice.
"""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Sequence
from typing import Any

import pytest

from dstl_dagster.errors import ConflictError, NotFoundError
from dstl_dagster.recoverable import CommitState, GSRecoverableWriter
from dstl_dagster.storage import ANY, Generation, MemoryObjectStore, ObjectStat, ObjectStore, Source
from dstl_dagster.testing.conformance import ObjectStoreConformance
from dstl_dagster.testing.fault_store import FaultStore

SUITE = ObjectStoreConformance()


class GenerationsOfTheBytes(FaultStore):
    """S3's ETag is a digest of the bytes: the same bytes, written again, are the same version."""

    def put(self, name: str, payload: Any, **options: Any) -> ObjectStat:
        made = super().put(name, payload, **options)
        return dataclasses.replace(made, generation=zlib.crc32(payload) + 1)

    def delete(self, name: str, **options: Any) -> bool:
        return super().delete(name, precondition=ANY)


class DeletesWhateverIsThere(FaultStore):
    """A client whose delete takes no condition, or a service that does not look at it."""

    def delete(self, name: str, **options: Any) -> bool:
        return super().delete(name, precondition=ANY)


class ChecksThenPuts(FaultStore):
    """A server that looks for a live object first, and stores the bytes afterwards."""

    def put(self, name: str, payload: Any, **options: Any) -> ObjectStat:
        wanted = options["precondition"]
        live = self.stat(name)
        if wanted is not ANY and (live.generation if live else None) != getattr(wanted, "generation", None):
            raise ConflictError("there")
        time.sleep(0.01)  # the body arrives, while others look
        return super().put(name, payload, **{**options, "precondition": ANY})


class ForgetsWhenLong(FaultStore):
    """A client that sends more than one chunk as a multipart upload, which it completes without condition."""

    def open_write(self, name: str, **options: Any) -> Any:
        return _Parts(self, name, options)


class _Parts:
    def __init__(self, store: ObjectStore, name: str, options: dict[str, Any]) -> None:
        self._store, self._name = store, name
        self._precondition = options["precondition"]
        self._chunk_size = options.get("chunk_size") or 8 << 20
        self._parts: list[bytes] = []

    def write(self, payload: Any, crc32c: int | None = None) -> int:
        self._parts.append(bytes(payload))
        return len(self._parts[-1])

    def flush(self) -> None: ...

    def close(self) -> ObjectStat:
        payload = b"".join(self._parts)
        wanted = ANY if len(payload) > self._chunk_size else self._precondition
        return self._store.put(self._name, payload, precondition=wanted)

    def abort(self) -> None:
        self._parts.clear()


class ComposesInSteps(FaultStore):
    """Without a compose on the server: the sources are read, and written again in a later request."""

    def compose(self, sources: Sequence[Source], target: str, **options: Any) -> ObjectStat:
        pins = [self.stat(source.name, generation=source.generation) for source in sources]
        if not all(pins):
            raise NotFoundError("a source is gone")
        payload = b"".join(self.get(pin.name, generation=pin.generation) for pin in pins if pin is not None)
        self.between()
        made = self.put(
            target, payload, precondition=options["precondition"], metadata=options.get("metadata")
        )
        for pin in pins:
            if pin is not None and options.get("delete_sources"):
                self.delete(pin.name, precondition=Generation(pin.generation))
        return made

    def between(self) -> None:
        time.sleep(0.01)  # others compose


DIFFERENT: list[tuple[type[FaultStore], str, dict[str, Any]]] = [
    (GenerationsOfTheBytes, "test_generation_is_never_used_again", {}),
    (DeletesWhateverIsThere, "test_delete_spares_another_generation", {}),
    (ChecksThenPuts, "test_one_of_many_creators_wins", {}),
    (ChecksThenPuts, "test_no_update_is_lost", {}),
    (ForgetsWhenLong, "test_long_stream_checks_its_precondition", {"replaces": False}),
    (ForgetsWhenLong, "test_long_stream_checks_its_precondition", {"replaces": True}),
    (ComposesInSteps, "test_compose_taking_its_sources_happens_once", {}),
]


@pytest.mark.parametrize(
    ("different", "test", "values"), DIFFERENT, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_difference_is_caught(different: type[FaultStore], test: str, values: dict[str, Any]) -> None:
    """The named test of the suite passes on a store that keeps the contract, and fails on this one."""
    check = getattr(SUITE, test)

    def run(store: ObjectStore, whole: MemoryObjectStore) -> None:
        given: dict[str, Any] = {"store": store, **values}
        if "raw_read" in check.__code__.co_varnames:
            given["raw_read"] = lambda name: whole.get(name) if whole.stat(name) else None
        check(**given)

    good = MemoryObjectStore()
    run(FaultStore(good), good)
    bad = MemoryObjectStore()
    with pytest.raises((AssertionError, ConflictError, NotFoundError, pytest.fail.Exception)):
        run(different(bad), bad)


@pytest.mark.parametrize(("kind", "appears_again"), [(FaultStore, False), (ComposesInSteps, True)])
def test_a_late_compose_finds_no_sources(kind: type[FaultStore], appears_again: bool) -> None:
    """A zombie's compose arrives after another process published the file and a consumer took it away.

    One request that finds its sources gone changes nothing. In steps, what was read before is written after.
    """
    inner = MemoryObjectStore()
    stream = GSRecoverableWriter(inner).open(inner.uri_of("out.csv"))
    stream.write(b"once")
    recoverable = stream.close_for_commit().recoverable

    def publish_and_take() -> None:
        outcome = GSRecoverableWriter(inner).recover_for_commit(recoverable).commit_after_recovery()
        assert outcome.state is CommitState.PUBLISHED
        assert inner.delete("out.csv", precondition=ANY)

    class Zombie(kind):  # type: ignore[misc,valid-type] # the kind is the test's parameter
        def compose(self, *args: Any, **options: Any) -> ObjectStat:
            if kind is FaultStore:
                publish_and_take()
            return super().compose(*args, **options)

        def between(self) -> None:
            publish_and_take()

    GSRecoverableWriter(Zombie(inner)).recover_for_commit(recoverable).commit_after_recovery()
    assert (inner.stat("out.csv") is not None) == appears_again
