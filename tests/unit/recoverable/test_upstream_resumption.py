"""Upstream's suites of a recoverable writer on the real service, by their names: persist, recover, commit.

`AbstractRecoverableWriterTest`, which HadoopGSRecoverableWriterITCase inherits, and the exceptions of
HadoopGSRecoverableWriterExceptionITCase. Each with its short pieces and, as "...WithMultiPart", with pieces
that take several requests.
"""

from __future__ import annotations

import pytest

from dstl_dagster.recoverable import (
    GSRecoverableFsDataOutputStream,
    GSRecoverableWriter,
    GSResumeRecoverableSerializer,
)
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import MemoryObjectStore

URI = "gs://foo/bar"
OPTIONS = GSFileSystemOptions(writer_chunk_size=256 * 1024)
SHORT = [b"Here goes the first piece. ", b"The second one. ", b"The third."]
MULTI_PART = [bytes([number]) * (700 << 10) for number in (1, 2, 3)]


@pytest.fixture(params=[SHORT, MULTI_PART], ids=["short", "multi part"])
def pieces(request: pytest.FixtureRequest) -> list[bytes]:
    return request.param


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore("foo")


def opened(store: MemoryObjectStore) -> GSRecoverableFsDataOutputStream:
    return GSRecoverableWriter(store, OPTIONS).open(URI)


def recovered(
    store: MemoryObjectStore, stream: GSRecoverableFsDataOutputStream, lost: bytes
) -> GSRecoverableFsDataOutputStream:
    """The stream of another process from a state that went through bytes; `lost` was written after it."""
    serializer = GSResumeRecoverableSerializer.INSTANCE
    octets = serializer.serialize(stream.persist())
    stream.write(lost)
    stream.close()
    return GSRecoverableWriter(store, OPTIONS).recover(serializer.deserialize(serializer.version, octets))


def test_recover_with_empty_state(store: MemoryObjectStore, pieces: list[bytes]) -> None:
    """Recovered from the state of a stream without a byte: what follows is the whole object."""
    stream = recovered(store, opened(store), lost=pieces[0])
    assert stream.tell() == 0
    stream.write(pieces[1])
    stream.close_for_commit().commit()
    assert store.get("bar") == pieces[1]


def test_recover_with_state(store: MemoryObjectStore, pieces: list[bytes]) -> None:
    """What was there at the persist, then what follows; nothing of what was written in between."""
    stream = opened(store)
    stream.write(pieces[0])
    stream = recovered(store, stream, lost=pieces[1])
    stream.write(pieces[2])
    stream.close_for_commit().commit()
    assert store.get("bar") == pieces[0] + pieces[2]


def test_recover_from_interm_without_additional_state(store: MemoryObjectStore, pieces: list[bytes]) -> None:
    """Recovered, and committed without another byte."""
    stream = opened(store)
    stream.write(pieces[0])
    recovered(store, stream, lost=pieces[1]).close_for_commit().commit()
    assert store.get("bar") == pieces[0]


def test_recover_after_multiple_persists_state(store: MemoryObjectStore, pieces: list[bytes]) -> None:
    """The last of several states has everything up to it."""
    stream = opened(store)
    stream.write(pieces[0])
    stream.persist()
    stream.write(pieces[1])
    stream = recovered(store, stream, lost=pieces[2])
    stream.write(pieces[2])
    stream.close_for_commit().commit()
    assert store.get("bar") == b"".join(pieces)


def test_commit_after_normal_close_and_after_persist(store: MemoryObjectStore, pieces: list[bytes]) -> None:
    """Nothing is there before the commit; a persist before the close changes nothing."""
    stream = opened(store)
    stream.write(pieces[0])
    stream.persist()
    stream.write(pieces[1])
    committer = stream.close_for_commit()
    assert store.stat("bar") is None
    committer.commit()
    assert store.get("bar") == pieces[0] + pieces[1]


def test_exception_writing_after_close_for_commit(store: MemoryObjectStore, pieces: list[bytes]) -> None:
    """An IOException, which is an OSError; the commit is none the worse for it."""
    stream = opened(store)
    stream.write(pieces[0])
    committer = stream.close_for_commit()
    with pytest.raises(OSError, match="closed"):
        stream.write(pieces[1])
    committer.commit()
    assert store.get("bar") == pieces[0]
