"""What google-cloud-storage does behind its caller's back, over the wire, and how our store copes with it."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.errors import ConflictError, FormatError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.recoverable import CommitState, GSRecoverableWriter
from dstl_dagster.recoverable.commit import FileCommit
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import GCSObjectStore
from dstl_dagster.storage.base import ABSENT, ANY, Generation, Source
from dstl_dagster.storage.open import open_store
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.storage.readback import WRITER_ID_KEY, Expected, put_own, write_own
from dstl_dagster.testing.fault_schedules import AtRequests, Fault, SimulatedCrash
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.testing.gcs_server.faults import RandomFaults
from dstl_dagster.testing.virtual_clock import VirtualClock

BUCKET = "bucket"
CHUNK = 256 * 1024


@pytest.fixture
def server() -> Iterator[GCSServer]:
    with GCSServer() as server:
        server.create_bucket(BUCKET)
        server.create_bucket("temporary")
        yield server


@pytest.fixture
def client(server: GCSServer) -> Iterator[storage.Client]:
    client = storage.Client(
        project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )
    yield client
    client.close()


def quick(max_attempts: int | None = 6) -> Retries:
    return Retries(RetryPolicy(max_attempts=max_attempts, total_seconds=None), clock=VirtualClock())


@pytest.fixture
def store(client: storage.Client) -> GCSObjectStore:
    return GCSObjectStore(client, BUCKET, retries=quick())


def drop(method: str, **more: int) -> ServerFault:
    return ServerFault(FaultKind.DROP_ANSWER, method, **more)


def requests_of(server: GCSServer) -> dict[str, int]:
    """Counts without the one bucket lookup that each client makes in the background."""
    return {method: count for method, count in server.counts.items() if method != "buckets.get"}


# -- the client alone: these show that the server bites, and why our store turns the client's retries off


def test_client_alone_conflicts_with_its_own_write(server: GCSServer, client: storage.Client) -> None:
    """The client repeats an upload whose answer was lost, and raises 412 although the object is its own."""
    from google.api_core.exceptions import PreconditionFailed

    server.faults.add(drop("objects.insert"))
    with pytest.raises(PreconditionFailed):
        client.bucket(BUCKET).blob("a").upload_from_string(b"mine", if_generation_match=0)
    assert server.raw_read(BUCKET, "a") == b"mine"


def test_client_alone_writes_twice(server: GCSServer, client: storage.Client) -> None:
    """Without a precondition the client writes the object a second time."""
    server.faults.add(drop("objects.insert"))
    client.bucket(BUCKET).blob("a").upload_from_string(b"mine")
    assert server.counts["objects.insert"] == 2


def test_client_alone_commits_a_truncated_object(server: GCSServer, client: storage.Client) -> None:
    """A writer of the client that is collected without close creates a truncated object."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = client.bucket(BUCKET).blob("a").open("wb", chunk_size=CHUNK)
        writer.write(b"x" * (CHUNK + 100))
        del writer
        gc.collect()
    assert server.raw_read(BUCKET, "a") is not None


# -- our store on the same faults


def test_lost_answer_of_a_put_is_our_success(server: GCSServer, store: GCSObjectStore) -> None:
    """A put with a writer id whose answer is lost succeeds, and is written once."""
    server.faults.add(drop("objects.insert"))
    made = put_own(store, "a", b"mine", writer_id="w1")
    assert store.stat("a") == made
    assert server.raw_read(BUCKET, "a") == b"mine"


def test_rival_after_a_lost_answer_is_a_conflict(server: GCSServer, store: GCSObjectStore) -> None:
    """A rival's object is never mistaken for ours, even with the same bytes."""
    put_own(store, "a", b"same", writer_id="rival")
    server.faults.add(ServerFault(FaultKind.RESET, "objects.insert"))
    with pytest.raises(ConflictError):
        put_own(store, "a", b"same", writer_id="w1")


@pytest.mark.parametrize("method", ["upload.start", "upload.chunk", "upload.finish"])
@pytest.mark.parametrize(
    "kind", [FaultKind.DROP_ANSWER, FaultKind.RESET, FaultKind.STATUS], ids=lambda kind: kind.value
)
def test_stream_survives_a_fault_anywhere(
    server: GCSServer, store: GCSObjectStore, method: str, kind: FaultKind
) -> None:
    """A chunked upload with a fault at its start, a chunk or its end creates the object once, whole."""
    server.faults.add(ServerFault(kind, method))
    payload = bytes(range(256)) * 3100
    upload = store.open_write("a", precondition=ABSENT, chunk_size=CHUNK)
    for start in range(0, len(payload), 100_000):
        upload.write(payload[start : start + 100_000])
    made = upload.close()
    assert server.raw_read(BUCKET, "a") == payload
    assert store.stat("a") == made


def test_stream_whose_session_is_lost_makes_nothing(server: GCSServer, store: GCSObjectStore) -> None:
    """A session that the service forgot is NotFoundError at once, not an endless repeat."""
    upload = store.open_write("a", precondition=ABSENT, chunk_size=CHUNK)
    upload.write(b"x" * (2 * CHUNK + 1))
    server.faults.add(ServerFault(FaultKind.STATUS, "upload.*", status=410, times=None))
    with pytest.raises(NotFoundError):
        upload.close()
    assert server.raw_read(BUCKET, "a") is None


def test_aborted_stream_cancels_its_session(server: GCSServer, store: GCSObjectStore) -> None:
    """abort also ends the session on the service."""
    upload = store.open_write("a", precondition=ABSENT, chunk_size=CHUNK)
    upload.write(b"x" * (2 * CHUNK))
    upload.abort()
    assert server.counts["upload.cancel"] == 1


def test_small_stream_is_one_request(server: GCSServer, store: GCSObjectStore) -> None:
    """A stream that never fills a chunk costs what a put costs."""
    upload = store.open_write("a", precondition=ABSENT)
    upload.write(b"small")
    upload.close()
    assert requests_of(server) == {"objects.insert": 1}


def test_lost_answer_of_a_delete(server: GCSServer, store: GCSObjectStore) -> None:
    """A delete whose answer is lost is not an error, and the object is gone."""
    made = store.put("a", b"x", precondition=ABSENT)
    server.faults.add(drop("objects.delete"))
    store.delete("a", precondition=Generation(made.generation))
    assert server.raw_read(BUCKET, "a") is None


@pytest.mark.parametrize("kind", [FaultKind.CORRUPT, FaultKind.CUT], ids=lambda kind: kind.value)
def test_bytes_corrupted_in_transit_are_read_again(
    server: GCSServer, store: GCSObjectStore, kind: FaultKind
) -> None:
    """A read whose bytes fail their checksum, or are truncated, is repeated, and never returned."""
    store.put("a", b"right" * 1000, precondition=ABSENT)
    server.faults.add(ServerFault(kind, "objects.download"))
    assert store.get("a") == b"right" * 1000
    assert server.counts["objects.download"] == 2


def test_bytes_that_stay_wrong_are_an_error(server: GCSServer, store: GCSObjectStore) -> None:
    """Bytes that are wrong each time are FormatError, from get and from a reader at its end."""
    store.put("a", b"right" * 1000, precondition=ABSENT)
    server.faults.add(ServerFault(FaultKind.CORRUPT, "objects.download", times=None))
    with pytest.raises(FormatError):
        store.get("a")
    reader = store.open_read("a")
    with pytest.raises(FormatError):
        reader.read()


def test_stall_ends_by_the_read_timeout(server: GCSServer, client: storage.Client) -> None:
    """gs.http.read-timeout bounds a stalled request; the next attempt succeeds."""
    options = GSFileSystemOptions.from_mapping({"gs.http.read-timeout": "150"})
    store = GCSObjectStore(client, BUCKET, options=options)
    server.faults.add(ServerFault(FaultKind.STALL, "objects.get", seconds=30))
    assert store.stat("a") is None
    assert server.counts["objects.get"] == 2


def test_max_attempt_bounds_the_requests(server: GCSServer, client: storage.Client) -> None:
    """gs.retry.max-attempt is how often a request is sent, including the first."""
    options = GSFileSystemOptions.from_mapping({"gs.retry.max-attempt": "3"})
    policy = RetryPolicy.of_requests(options)
    store = GCSObjectStore(client, BUCKET, options=options, retries=Retries(policy, clock=VirtualClock()))
    server.faults.add(ServerFault(FaultKind.STATUS, status=503, times=None))
    with pytest.raises(UnavailableError):
        store.stat("a")
    assert server.counts["objects.get"] == 3


def test_max_attempt_bounds_the_requests_that_begin_a_stream(
    server: GCSServer, client: storage.Client
) -> None:
    """They are tried again once, and not again by the request that would follow them."""
    retries = Retries(RetryPolicy(max_attempts=3, total_seconds=None), clock=VirtualClock())
    store = GCSObjectStore(client, BUCKET, retries=retries)
    server.faults.add(ServerFault(FaultKind.STATUS, "upload.start", status=503, times=None))
    server.reset_counts()
    stream = store.open_write("a", precondition=ABSENT, chunk_size=256 * 1024)
    with pytest.raises(UnavailableError):
        stream.write(bytes(512 * 1024))
    assert server.counts == {"upload.start": 3}
    stream.abort()


def test_total_timeout_bounds_the_time(server: GCSServer, client: storage.Client) -> None:
    """After gs.retry.total-timeout, by the injected clock, no further attempt starts."""
    clock = VirtualClock()
    options = GSFileSystemOptions(retry_total_timeout=timedelta(seconds=20))
    store = GCSObjectStore(client, BUCKET, retries=Retries(RetryPolicy.of_requests(options), clock=clock))
    server.faults.add(ServerFault(FaultKind.STATUS, status=503, times=None))
    with pytest.raises(UnavailableError):
        store.stat("a")
    assert 5 < clock.monotonic_seconds() <= 20


def test_rpc_timeouts_grow_to_their_cap() -> None:
    """init-rpc-timeout, rpc-timeout-multiplier and max-rpc-timeout give each attempt its time-out."""
    policy = RetryPolicy.of_requests(
        GSFileSystemOptions.from_mapping(
            {
                "gs.retry.init-rpc-timeout": "1 s",
                "gs.retry.rpc-timeout-multiplier": "2.0",
                "gs.retry.max-rpc-timeout": "3 s",
            }
        )
    )
    assert [policy.timeout_seconds(number) for number in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, 3.0]


def test_first_attempt_has_the_rpc_timeout(server: GCSServer, client: storage.Client) -> None:
    """An attempt ends by its own time-out, over the wire."""
    options = GSFileSystemOptions.from_mapping({"gs.retry.init-rpc-timeout": "150 ms"})
    store = GCSObjectStore(client, BUCKET, options=options)
    server.faults.add(ServerFault(FaultKind.STALL, "objects.get", seconds=30))
    assert store.stat("a") is None


def test_no_permission_fails_at_once(server: GCSServer, store: GCSObjectStore) -> None:
    """401 and 403 are InvalidInputError of kind no_permission, and not repeated."""
    for status in (401, 403):
        server.faults.add(ServerFault(FaultKind.STATUS, "objects.insert", status=status))
        with pytest.raises(InvalidInputError) as raised:
            store.put("a", b"", precondition=ABSENT)
        assert raised.value.kind == "no_permission"
    assert server.counts["objects.insert"] == 2


def test_missing_bucket_is_an_error(client: storage.Client) -> None:
    """A bucket that does not exist is NotFoundError from every method, not an absent object."""
    store = GCSObjectStore(client, "no-such-bucket", retries=quick())
    with pytest.raises(NotFoundError):
        store.stat("a")
    with pytest.raises(NotFoundError):
        store.put("a", b"", precondition=ABSENT)
    with pytest.raises(NotFoundError):
        list(store.list())
    with pytest.raises(NotFoundError):
        store.delete("a", precondition=ANY)


@pytest.mark.parametrize(
    "name", ["The specified bucket does not exist.", "bucket does not exist", "Provided CRC32C", "404"]
)
def test_a_name_like_an_error_is_a_name(store: GCSObjectStore, name: str) -> None:
    """The service's message for an absent object quotes its name; the name has no influence on the error."""
    assert store.stat(name) is None
    assert store.delete(name, precondition=ANY) is False
    with pytest.raises(NotFoundError):
        store.get(name)
    with pytest.raises(NotFoundError):
        store.compose([Source(name)], "whole", precondition=ABSENT)
    made = store.put(name, b"abc", precondition=ABSENT)
    with pytest.raises(ConflictError):
        store.put(name, b"abc", precondition=ABSENT)
    assert store.stat(name) == made
    assert store.delete(name, precondition=ANY)


def test_a_bucket_is_looked_up_once(server: GCSServer, client: storage.Client, store: GCSObjectStore) -> None:
    """Telling a missing object from a missing bucket costs a client one listing, none after a success."""
    assert store.stat("a") is None
    assert server.counts["objects.list"] == 1
    for other in (store, store.in_bucket(BUCKET), GCSObjectStore(client, BUCKET, retries=quick())):
        assert other.stat("a") is None
        assert other.delete("a", precondition=ANY) is False
    assert server.counts["objects.list"] == 1
    store.in_bucket("temporary").put("a", b"", precondition=ABSENT)
    assert store.in_bucket("temporary").stat("b") is None
    assert server.counts["objects.list"] == 1


def test_a_bucket_that_may_not_be_listed_is_there(server: GCSServer, store: GCSObjectStore) -> None:
    """Without permission to list, a missing object is absent, as with it."""
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.list", status=403))
    assert store.stat("a") is None


def test_too_many_updates_are_waited_out(client: storage.Client) -> None:
    """More than one update of an object per second is refused with 429, and succeeds later."""
    with GCSServer(one_update_a_second=True) as strict:
        strict.create_bucket(BUCKET)
        own = storage.Client(
            project="t", credentials=AnonymousCredentials(), client_options={"api_endpoint": strict.url}
        )
        store = GCSObjectStore(own, BUCKET)
        store.put("a", b"1", precondition=ANY)
        store.put("a", b"2", precondition=ANY)
        assert strict.raw_read(BUCKET, "a") == b"2"
        assert strict.counts["objects.insert"] > 2
        own.close()


def test_lost_answer_of_a_rewrite_across_buckets(server: GCSServer, store: GCSObjectStore) -> None:
    """A copy to another bucket whose answer is lost is our success by its writer id."""
    store.put("a", b"bytes", precondition=ABSENT)
    server.faults.add(drop("objects.rewrite"))
    to = store.in_bucket("temporary")
    own = {WRITER_ID_KEY: "w"}
    copy = partial(store.copy, Source("a"), "b", to=to, precondition=ABSENT, metadata=own)
    write_own(to, "b", Expected(own, size=5), copy)
    assert server.raw_read("temporary", "b") == b"bytes"


@pytest.mark.parametrize("temporary", [None, "temporary"])
def test_commit_through_random_faults(
    server: GCSServer, client: storage.Client, temporary: str | None
) -> None:
    """70 components written and committed with one request in twenty failing, answers lost included."""
    server.faults.set_random(RandomFaults(3, 0.05))
    store = GCSObjectStore(client, BUCKET, retries=quick(12))
    options = GSFileSystemOptions(writer_temporary_bucket_name=temporary)
    stream = GSRecoverableWriter(store, options).open(f"gs://{BUCKET}/out/part-1")
    for number in range(70):
        stream.write(b"%d;" % number)
        stream.sync()
    outcome = stream.close_for_commit().commit_after_recovery()
    server.faults.clear()
    assert outcome.state in (CommitState.PUBLISHED, CommitState.ALREADY_PUBLISHED)
    assert server.raw_read(BUCKET, "out/part-1") == b"".join(b"%d;" % number for number in range(70))
    assert [stat.name for stat in store.list()] == ["out/part-1"]
    assert list(store.in_bucket("temporary").list()) == []


@pytest.mark.parametrize(
    ("temporary", "fault"),
    [
        (None, Fault.CRASH_AFTER),
        (None, Fault.LOST_ANSWER),
        ("temporary", Fault.CRASH_AFTER),
        pytest.param("temporary", Fault.LOST_ANSWER, marks=pytest.mark.soak),
    ],
)
def test_commit_killed_at_any_request(
    server: GCSServer, store: GCSObjectStore, temporary: str | None, fault: Fault
) -> None:
    """Over the wire too: killed after any request and run again, the object is right and nothing is left."""
    options = GSFileSystemOptions(writer_temporary_bucket_name=temporary)
    index = 0
    while True:
        name = f"out-{index}"
        stream = GSRecoverableWriter(store, options).open(f"gs://{BUCKET}/{name}")
        for number in range(35):
            stream.write(b"%d;" % number)
            stream.sync()
        recoverable = stream.close_for_commit().recoverable
        view = FaultStore(store, AtRequests({index: fault}))
        with contextlib.suppress(SimulatedCrash, UnavailableError):
            FileCommit(view, recoverable, stream.components, options=options, parallelism=1).commit()
        FileCommit(store, recoverable, stream.components, options=options).commit()
        assert server.raw_read(BUCKET, name) == b"".join(b"%d;" % number for number in range(35))
        assert list(store.list(".inprogress")) == []
        assert list(store.in_bucket("temporary").list()) == []
        if index >= len(view.requests):
            return
        index += 1


@pytest.mark.dagster
def test_client_of_a_dagster_resource(server: GCSServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store can use the client of dagster-gcp's GCSResource."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dagster_gcp import GCSResource

    client = GCSResource(project="test").get_client()
    store = GCSObjectStore(client, BUCKET, "below/")
    store.put("a", b"x", precondition=ABSENT)
    assert server.raw_read(BUCKET, "below/a") == b"x"
    client.close()


def test_commit_costs_what_it_should(server: GCSServer, store: GCSObjectStore) -> None:
    """100 components: 4 composes and two looks at the final name; no list, no delete, no look at a
    component.
    """
    stream = GSRecoverableWriter(store).open(f"gs://{BUCKET}/out")
    for number in range(100):
        stream.write(b"%d;" % number)
        stream.sync()
    committer = stream.close_for_commit()
    server.reset_counts()
    committer.commit()
    assert requests_of(server) == {"objects.get": 2, "objects.compose": 4}


def test_open_store_takes_the_root_url(server: GCSServer) -> None:
    """gs.storage.root.url becomes the client's endpoint, whatever the environment says."""
    options = GSFileSystemOptions.from_mapping({"gs.storage.root.url": server.url, "gs.retry.max-attempt": 1})
    with pytest.MonkeyPatch.context() as patch:
        # An emulator, so that no credentials are looked for; nothing listens there.
        patch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
        store = open_store(f"gs://{BUCKET}/some/prefix", options)
        store.put("a", b"x", precondition=ABSENT)
    assert server.raw_read(BUCKET, "some/prefix/a") == b"x"


def test_server_on_a_folder_comes_back(tmp_path: object) -> None:
    """A restarted server on a folder has its objects again, and generations keep increasing."""
    from pathlib import Path

    folder = Path(str(tmp_path))

    def session(server: GCSServer) -> GCSObjectStore:
        own = storage.Client(
            project="t", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
        )
        return GCSObjectStore(own, BUCKET, retries=quick())

    with GCSServer(folder) as first:
        first.create_bucket(BUCKET)
        store = session(first)
        made = store.put("a//b", b"kept", precondition=ABSENT, metadata={"k": "v"})
        gone = store.put("gone", b"x", precondition=ABSENT)
        store.delete("gone", precondition=Generation(gone.generation))
    with (folder / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"put": {"torn')
    with GCSServer(folder) as second:
        store = session(second)
        assert list(store.list()) == [made]
        assert store.get("a//b") == b"kept"
        assert store.put("gone", b"x", precondition=ABSENT).generation > gone.generation
