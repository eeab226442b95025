"""Stores against a model that shares no code with them: to random requests, both give the same answers."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dstl_dagster.errors import ConflictError, FormatError, NotFoundError
from dstl_dagster.storage import LocalObjectStore
from dstl_dagster.storage.base import ABSENT, ANY, Generation, ObjectStore, Precondition, Source
from dstl_dagster.storage.memory import MemoryObjectStore
from tests.profiles import examples

NAMES = st.sampled_from(["a", "b/1", "b/2", "c/d/e", "é", "b-", "b0"])
PAYLOADS = st.binary(max_size=30)
CONDITIONS = st.sampled_from(["absent", "any", "live", "old"])
METADATA = st.dictionaries(st.sampled_from(["k", "dstl-writer-id"]), st.text(max_size=4), max_size=2)


@dataclass
class Kept:
    payload: bytes
    metadata: dict[str, str]
    generation: int


@dataclass
class Model:
    live: dict[str, Kept] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    """Names that have a record of a writer: until the store deletes the object, whatever hands do."""
    replaced: set[str] = field(default_factory=set)
    """Names of which the file is not what a writer recorded: read only by its own generation."""

    def gone(self, name: str) -> None:
        self.live.pop(name, None)
        self.written.discard(name)
        self.replaced.discard(name)

    def allows(self, name: str, wanted: str) -> bool:
        if wanted == "absent":
            return name not in self.live
        if wanted == "live":
            return name in self.live
        return wanted == "any"

    def condition(self, name: str, wanted: str) -> Precondition:
        if wanted == "absent":
            return ABSENT
        if wanted == "any":
            return ANY
        generation = self.live[name].generation if name in self.live else 1
        return Generation(generation if wanted == "live" else generation + 10**17)


class StoreMachine(RuleBasedStateMachine):
    store: ObjectStore

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def made(self, name: str, payload: bytes, metadata: dict[str, str], stat: object) -> None:
        assert (stat.name, stat.size) == (name, len(payload))
        assert stat.crc32c == google_crc32c.value(payload)
        assert dict(stat.metadata) == metadata
        assert stat.generation > self.model.highest.get(name, 0)
        self.model.highest[name] = stat.generation
        self.model.live[name] = Kept(payload, metadata, stat.generation)
        self.model.written.add(name)
        self.model.replaced.discard(name)

    @rule(name=NAMES, payload=PAYLOADS, wanted=CONDITIONS, metadata=METADATA, stream=st.booleans())
    def put(self, name: str, payload: bytes, wanted: str, metadata: dict[str, str], stream: bool) -> None:
        condition, allowed = self.model.condition(name, wanted), self.model.allows(name, wanted)
        try:
            if stream:
                upload = self.store.open_write(name, precondition=condition, metadata=metadata)
                upload.write(payload[:10])
                upload.write(payload[10:])
                stat = upload.close()
            else:
                stat = self.store.put(name, payload, precondition=condition, metadata=metadata)
        except ConflictError:
            assert not allowed
            return
        assert allowed
        self.made(name, payload, metadata, stat)

    @rule(name=NAMES, wanted=CONDITIONS.filter(lambda wanted: wanted != "absent"))
    def delete(self, name: str, wanted: str) -> None:
        condition, allowed = self.model.condition(name, wanted), self.model.allows(name, wanted)
        try:
            deleted = self.store.delete(name, precondition=condition)
        except ConflictError:
            assert name in self.model.live
            assert not allowed
            return
        assert deleted == (name in self.model.live)
        if deleted:
            self.model.gone(name)

    @rule(
        names=st.lists(NAMES, min_size=1, max_size=4),
        into=NAMES,
        wanted=CONDITIONS,
        pinned=st.sampled_from(["no", "live", "old"]),
        take=st.booleans(),
    )
    def compose(self, names: list[str], into: str, wanted: str, pinned: str, take: bool) -> None:
        condition, allowed = self.model.condition(into, wanted), self.model.allows(into, wanted)
        there = all(name in self.model.live for name in names) and pinned != "old"
        sources = []
        for name in names:
            generation = self.model.live[name].generation if name in self.model.live else 1
            offset = 10**17 if pinned == "old" else 0
            sources.append(Source(name, None if pinned == "no" else generation + offset))
        try:
            stat = self.store.compose(
                sources, into, precondition=condition, metadata={"k": "c"}, delete_sources=take
            )
        except ConflictError:
            assert not allowed
            return
        except NotFoundError:
            assert not there
            return
        except FormatError:
            assert pinned != "live"
            assert self.model.replaced.intersection(names)
            return
        assert allowed
        assert there
        payload = b"".join(self.model.live[name].payload for name in names)
        self.made(into, payload, {"k": "c"}, stat)
        if take:
            for name in set(names) - {into}:
                self.model.gone(name)

    @rule(source=NAMES, into=NAMES, wanted=CONDITIONS)
    def copy(self, source: str, into: str, wanted: str) -> None:
        condition, allowed = self.model.condition(into, wanted), self.model.allows(into, wanted)
        there = source in self.model.live
        try:
            stat = self.store.copy(Source(source), into, precondition=condition)
        except ConflictError:
            assert not allowed
            return
        except NotFoundError:
            assert not there
            return
        except FormatError:
            assert source in self.model.replaced
            return
        assert allowed
        assert there
        self.made(into, self.model.live[source].payload, {}, stat)

    @rule(prefix=st.sampled_from(["", "b", "b/", "c/d", "x"]), offset=st.none() | NAMES)
    def list(self, prefix: str, offset: str | None) -> None:
        first = (offset or "").encode()
        found = [name for name in self.model.live if name.startswith(prefix) and name.encode() >= first]
        expected = sorted(found, key=str.encode)
        assert [stat.name for stat in self.store.list(prefix, start_offset=offset)] == expected

    @rule(name=NAMES, start=st.integers(0, 40), length=st.integers(0, 40))
    @precondition(lambda self: self.model.live)
    def read_range(self, name: str, start: int, length: int) -> None:
        if name in self.model.replaced:
            with pytest.raises(FormatError):
                self.store.get_range(name, start, length)
        elif name in self.model.live:
            payload = self.model.live[name].payload
            assert self.store.get_range(name, start, length) == payload[start : start + length]

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        for name in ("a", "b/1", "b/2", "c/d/e", "é", "b-", "b0"):
            stat = self.store.stat(name)
            kept = self.model.live.get(name)
            assert (stat is None) == (kept is None)
            if stat is not None and kept is not None:
                assert stat.generation == kept.generation
                assert dict(stat.metadata) == kept.metadata
                assert self.store.get(name, generation=kept.generation) == kept.payload


class MemoryMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryObjectStore()


class LocalMachine(StoreMachine):
    """Also with files changed by hand, and read through a second store on the same root."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = LocalObjectStore(self.folder, durable=False)
        self.by_hand: dict[tuple[str, bytes], int] = {}

    @rule()
    def look_from_another_process(self) -> None:
        self.store = LocalObjectStore(self.folder, durable=False)

    @rule(name=NAMES)
    def taken_away_by_hand(self, name: str) -> None:
        if name in self.model.live:
            (self.folder / name).unlink()
            del self.model.live[name]
            self.model.replaced.discard(name)

    @rule(name=NAMES, payload=st.binary(min_size=31, max_size=40))
    def put_there_by_hand(self, name: str, payload: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(payload)
        # A person is slower than one tick of the file system's clock, within which an inode may be reused.
        os.utime(path, ns=(time.time_ns(), time.time_ns()))
        stat = self.store.stat(name)
        assert stat is not None
        kept = Kept(payload, {}, stat.generation)
        # The same bytes may have their generation again, also behind one put: a copied tree looks alike.
        highest = self.model.highest.get(name, 0)
        assert stat.generation >= highest or stat.generation == self.by_hand[name, payload]
        assert dict(stat.metadata) == {}
        self.by_hand[name, payload] = stat.generation
        self.model.highest[name] = max(highest, stat.generation)
        self.model.live[name] = kept
        if name in self.model.written:
            self.model.replaced.add(name)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


TestMemory = MemoryMachine.TestCase
TestMemory.settings = examples(30, stateful_step_count=30)
TestLocal = LocalMachine.TestCase
TestLocal.settings = examples(20, stateful_step_count=30)
