"""Uploads that made nothing, and machines without another thread: tried again, or told, never waited for."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError, UnavailableError
from dstl_dagster.format import SequenceNumber, StateChange, StateChangeSet
from dstl_dagster.registry import TaskChangelogRegistry
from dstl_dagster.storage import ABSENT, GCSObjectStore, MemoryObjectStore, ObjectStore
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.upload import RetryPolicy, StateChangeFsUploader, UploadTask
from dstl_dagster.upload.scheduler import UploadPolicy, UploadScheduler
from dstl_dagster.upload.timers import ThreadTimer, Timer
from tests.doubles.uploads import CallerExecutor, ManualTimer

CHUNK = 256 * 1024


@pytest.fixture
def server() -> Iterator[GCSServer]:
    with GCSServer() as server:
        server.create_bucket("b")
        yield server


@pytest.fixture
def store(server: GCSServer) -> Iterator[GCSObjectStore]:
    client = storage.Client(
        project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )
    yield GCSObjectStore(client, "b")
    client.close()


def persist(store: ObjectStore, *, timer: Timer, timeout_seconds: float = 0.0, size: int = 10) -> object:
    """One task through the batched lane: its error, or the name of its file. It must have ended."""
    ended: list[object] = []
    uploader = StateChangeFsUploader(
        store, "", "job", TaskChangelogRegistry(lambda _: None, CallerExecutor()), buffer_bytes=CHUNK
    )
    policy = UploadPolicy(
        persist_delay_seconds=0.0,
        size_threshold_bytes=1,
        max_bytes_in_flight=1 << 30,
        num_threads=1,
        retry=RetryPolicy.fixed(3, timeout_seconds, 0),
    )
    scheduler = UploadScheduler(policy, uploader, timer=timer, executor=CallerExecutor())
    change_set = StateChangeSet(uuid.UUID(int=1), SequenceNumber.of(1), [StateChange.of(0, b"x" * size)])
    scheduler.upload(
        UploadTask([change_set], lambda results: ended.append("stored"), lambda _, error: ended.append(error))
    )
    if not ended and isinstance(timer, ManualTimer):
        timer.advance(1.0)
    (end,) = ended
    scheduler.close()
    return end


@pytest.mark.parametrize("method", ["upload.chunk", "upload.finish"])
@pytest.mark.parametrize(
    "fault",
    [
        ServerFault(FaultKind.STATUS, status=404),
        ServerFault(FaultKind.STATUS, status=410),
        ServerFault(FaultKind.MISMATCH),
    ],
)
def test_a_lost_or_damaged_upload_is_made_again(
    server: GCSServer, store: GCSObjectStore, method: str, fault: ServerFault
) -> None:
    """A session that is gone, or whose bytes arrived damaged, costs an attempt and not the persist."""
    server.faults.add(ServerFault(fault.kind, method, status=fault.status))
    assert persist(store, timer=ManualTimer(), size=20 << 20) == "stored"


@pytest.mark.parametrize("size", [10, 9 << 20])
def test_a_damaged_put_is_sent_again(server: GCSServer, store: GCSObjectStore, size: int) -> None:
    """The bytes are at hand: twice damaged is healed, always damaged is told."""
    server.faults.add(ServerFault(FaultKind.MISMATCH, "objects.insert", times=2))
    server.faults.add(ServerFault(FaultKind.MISMATCH, "upload.finish", times=2))
    store.put("a", b"x" * size, precondition=ABSENT)
    assert store.get("a") == b"x" * size
    server.faults.add(ServerFault(FaultKind.MISMATCH, "*.[if]*", times=None))
    with pytest.raises(FormatError) as caught:
        store.put("b", b"x" * size, precondition=ABSENT)
    assert caught.value.kind == ErrorKind.UPLOAD_LOST


def test_a_large_put_survives_its_session(server: GCSServer, store: GCSObjectStore) -> None:
    """A put that goes by a session begins another where the session is lost."""
    server.faults.add(ServerFault(FaultKind.STATUS, "upload.finish", status=410))
    store.put("a", b"x" * (9 << 20), precondition=ABSENT)
    server.faults.add(ServerFault(FaultKind.STATUS, "upload.finish", status=410, times=None))
    with pytest.raises(NotFoundError):
        store.put("b", b"x" * (9 << 20), precondition=ABSENT)


def test_an_answer_that_cannot_be_read_is_asked_again(server: GCSServer, store: GCSObjectStore) -> None:
    """After the effect, a damaged answer is no answer: the session says what it made."""
    upload = store.open_write("a", precondition=ABSENT, chunk_size=CHUNK)
    upload.write(b"x" * (CHUNK + 1))
    server.faults.add(ServerFault(FaultKind.GARBLE, "upload.finish"))
    assert upload.close() == store.stat("a")


class NoThreads(ManualTimer):
    """A timer that cannot start its thread."""

    def schedule(self, *_: object) -> None:  # type: ignore[override]
        raise UnavailableError("can't start new thread")


def test_an_upload_without_a_time_out_ends(store: GCSObjectStore) -> None:
    """Where no attempt can begin for want of a thread, the tasks of the batch are failed."""
    assert isinstance(persist(MemoryObjectStore(), timer=NoThreads(), timeout_seconds=5), UnavailableError)


def test_a_timer_starts_its_thread_when_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused thread is told at once, and the next command tries again; nothing is queued for nobody."""
    timer, ran = ThreadTimer("timer"), threading.Event()

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(UnavailableError):
            timer.schedule(0.0, lambda: pytest.fail("it was refused"))
    timer.schedule(0.0, ran.set)
    assert ran.wait(10)
    timer.close()
    ThreadTimer("unused").close()
