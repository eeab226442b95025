"""What a store counts is what the server saw: every request, its class as billed, and the objects' bytes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.errors import ConflictError, DstlError, NotFoundError, UnavailableError
from dstl_dagster.storage import (
    ABSENT,
    ANY,
    NO_COST,
    Cost,
    CostMeter,
    GCSObjectStore,
    Generation,
    LocalObjectStore,
    MemoryObjectStore,
    ObjectStore,
    Source,
    WrapperStore,
    metered,
)
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.testing.virtual_clock import VirtualClock

CHUNK = 256 * 1024


@pytest.fixture
def server() -> Iterator[GCSServer]:
    with GCSServer() as server:
        server.create_bucket("bucket")
        server.create_bucket("other")
        yield server


def store_on(server: GCSServer, *, tries: int = 5) -> GCSObjectStore:
    client = storage.Client(
        project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )
    retries = Retries(RetryPolicy(max_attempts=tries, total_seconds=None), clock=VirtualClock())
    return GCSObjectStore(client, "bucket", retries=retries)


def seen(server: GCSServer) -> int:
    """Requests by the server's own count."""
    return sum(server.counts.values())


def spent(
    server: GCSServer,
    act: Callable[[ObjectStore], object],
    *,
    tries: int = 5,
    store: ObjectStore | None = None,
) -> Cost:
    """What an action requests, having checked that the server saw as many requests, and no more."""
    meter = CostMeter()
    counted = metered(WrapperStore(store or store_on(server, tries=tries)), meter)
    server.reset_counts()
    with contextlib.suppress(DstlError):
        act(counted)
    if "batch" not in server.counts:
        assert meter.cost.requests == seen(server)
    return meter.cost


def test_each_kind_of_request_has_its_class(server: GCSServer) -> None:
    """As in Google's price list; what the service refuses is free."""
    store = store_on(server)
    for name in ("a", "b", "c"):
        store.put(name, b"abc", precondition=ABSENT)
    actions: dict[str, tuple[Callable[[ObjectStore], object], Cost]] = {
        "put": (
            lambda each: each.put("new", b"12345", precondition=ABSENT),
            Cost(class_a=1, uploads=1, bytes_up=5),
        ),
        "refused put": (
            lambda each: each.put("a", b"12345", precondition=ABSENT),
            Cost(free=1, uploads=1, bytes_up=5),
        ),
        "stat": (lambda each: each.stat("a"), Cost(class_b=1)),
        "stat of nothing": (lambda each: each.stat("nothing"), Cost(free=1)),
        "get": (lambda each: each.get("a"), Cost(class_b=1, bytes_down=3)),
        "get of nothing": (lambda each: each.get("nothing"), Cost(free=1)),
        "range": (lambda each: each.get_range("a", 1, 1), Cost(class_b=1, bytes_down=1)),
        "range behind the end": (lambda each: each.get_range("a", 9, 1), Cost(free=1)),
        "list": (lambda each: list(each.list()), Cost(class_a=1)),
        "compose": (
            lambda each: each.compose([Source("a"), Source("b")], "ab", precondition=ABSENT),
            Cost(class_a=1, composes=1),
        ),
        "copy": (lambda each: each.copy(Source("a"), "copy", precondition=ABSENT), Cost(class_a=1)),
        "delete": (lambda each: each.delete("b", precondition=ANY), Cost(free=1)),
        "batch": (
            lambda each: each.delete_all([("a", ANY), ("c", ANY), ("ab", ANY)]),  # type: ignore[attr-defined]
            Cost(free=3),
        ),
    }
    # By one store: a bucket that has answered is not asked for after the next 404.
    found = {name: spent(server, act, store=store) for name, (act, _) in actions.items()}
    assert found == {name: expected for name, (_, expected) in actions.items()}


def test_an_upload_in_chunks_is_one_operation(server: GCSServer) -> None:
    """The session's start is of class A; its chunks and its end are free, and their bytes count."""

    def write(store: ObjectStore) -> None:
        with_chunks = store.open_write("big", precondition=ABSENT, chunk_size=CHUNK)
        with_chunks.write(b"x" * (3 * CHUNK + 1))
        with_chunks.close()

    assert spent(server, write) == Cost(class_a=1, free=4, uploads=1, bytes_up=3 * CHUNK + 1)


def test_an_abandoned_upload_counts(server: GCSServer) -> None:
    """Its start, its chunk and its cancellation."""

    def write(store: ObjectStore) -> None:
        writer = store.open_write("big", precondition=ABSENT, chunk_size=CHUNK)
        writer.write(b"x" * (CHUNK + 1))
        writer.abort()

    assert spent(server, write) == Cost(class_a=1, free=2, uploads=1, bytes_up=CHUNK)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        # A refused try is free; a lost answer may have been carried out.
        (ServerFault(FaultKind.STATUS, "objects.insert", times=2), Cost(class_a=1, free=2, retries=2)),
        (ServerFault(FaultKind.RESET, "objects.insert"), Cost(class_a=2, retries=1)),
        # The repeat is refused, and a look proves that the object is our own.
        (ServerFault(FaultKind.MISMATCH, "objects.insert"), Cost(class_a=1, free=1, retries=1)),
    ],
    ids=["refused", "lost", "damaged"],
)
def test_retries_are_counted(server: GCSServer, fault: ServerFault, expected: Cost) -> None:
    """Each with its bytes, which were sent again."""
    server.faults.add(fault)
    found = spent(server, lambda store: store.put("a", b"abc", precondition=ABSENT))
    tries = expected.requests
    assert found == expected + Cost(uploads=tries, bytes_up=3 * tries)


def test_a_lost_chunk_is_asked_for_and_sent_again(server: GCSServer) -> None:
    """Both are requests that a failure caused, and both are part of the one upload."""
    server.faults.add(ServerFault(FaultKind.RESET, "upload.chunk"))

    def write(store: ObjectStore) -> None:
        writer = store.open_write("big", precondition=ABSENT, chunk_size=CHUNK)
        writer.write(b"x" * (CHUNK + 1))
        writer.close()

    assert spent(server, write) == Cost(class_a=1, free=4, retries=2, uploads=1, bytes_up=2 * CHUNK + 1)


def test_what_never_succeeds_is_counted_too(server: GCSServer) -> None:
    """As often as it was tried."""
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.get", times=None))
    with pytest.raises(UnavailableError):
        store_on(server, tries=3).stat("a")
    assert spent(server, lambda store: store.stat("a"), tries=3) == Cost(free=3, retries=2)


def test_a_batch_that_is_sent_again_counts_its_open_parts(server: GCSServer) -> None:
    store = store_on(server)
    for name in "abc":
        store.put(name, b"x", precondition=ABSENT)
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.delete", "b"))
    found = spent(server, lambda each: each.delete_all([(name, ANY) for name in "abc"]))  # type: ignore[attr-defined]
    assert found == Cost(free=4, retries=1)


def test_other_buckets_and_meters_count_along(server: GCSServer) -> None:
    """Both meters of a store that is counted twice; the store itself, used without them, adds to neither."""
    plain, outer, inner = store_on(server), CostMeter(), CostMeter()
    once = metered(plain, outer)
    twice = metered(once, inner)
    once.put("a", b"1", precondition=ABSENT)
    twice.in_bucket("other").put("b", b"22", precondition=ABSENT)
    plain.put("c", b"333", precondition=ABSENT)
    assert outer.cost == Cost(class_a=2, uploads=2, bytes_up=3)
    assert inner.cost == Cost(class_a=1, uploads=1, bytes_up=2)


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_any_store_counts_as_a_bucket_would(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder and memory make no requests; each call counts as the one that it stands for."""
    inner = MemoryObjectStore() if kind == "memory" else LocalObjectStore(tmp_path_factory.mktemp("store"))
    meter = CostMeter()
    store = metered(inner, meter)
    assert store.capabilities is inner.capabilities

    def cost(act: Callable[[], object]) -> Cost:
        before = meter.cost
        with contextlib.suppress(ConflictError, NotFoundError):
            act()
        return meter.cost - before

    def write() -> None:
        writer = store.open_write("w", precondition=ABSENT)
        writer.write(b"12")
        writer.write(b"3")
        writer.close()
        writer.close()

    def read() -> None:
        reader = store.open_read("w")
        reader.read(1)
        reader.read()

    assert cost(lambda: store.put("a", b"abc", precondition=ABSENT)) == Cost(1, uploads=1, bytes_up=3)
    assert cost(lambda: store.put("a", b"abc", precondition=ABSENT)) == Cost(free=1, uploads=1, bytes_up=3)
    assert cost(write) == Cost(1, uploads=1, bytes_up=3)
    assert cost(read) == Cost(class_b=1, bytes_down=3)
    assert cost(lambda: store.stat("a")) == Cost(class_b=1)
    assert cost(lambda: store.stat("nothing")) == Cost(free=1)
    assert cost(lambda: store.get("a")) == Cost(class_b=1, bytes_down=3)
    assert cost(lambda: store.get_range("a", 1, 2)) == Cost(class_b=1, bytes_down=2)
    assert cost(lambda: list(store.list())) == Cost(class_a=1)
    assert cost(lambda: store.compose([Source("a"), Source("w")], "c", precondition=ABSENT)) == Cost(
        class_a=1, composes=1
    )
    assert cost(lambda: store.copy(Source("a"), "d", precondition=ABSENT)) == Cost(class_a=1)
    assert cost(lambda: store.delete("d", precondition=Generation(1))) == Cost(free=1)
    assert cost(lambda: store.delete("d", precondition=ANY)) == Cost(free=1)
    if kind == "memory":
        deleted = cost(lambda: store.delete_all([("a", ANY), ("w", ANY)]))  # type: ignore[attr-defined]
        assert deleted == Cost(free=2)
    else:
        ranges = store.open_ranges("w")  # type: ignore[attr-defined]
        assert cost(lambda: ranges.read_range(0, 2)) == Cost(class_b=1, bytes_down=2)
        ranges.close()


def test_a_sum_survives_its_json_form() -> None:
    """Zeros are left out, and what a later release counts besides is ignored."""
    cost = Cost(1, 2, 3, 4, 5, 6, 7, 8, 0.5)
    assert Cost.from_json(cost.to_json()) == cost
    assert Cost.from_json({**cost.to_json(), "later": 9}) == cost
    assert NO_COST.to_json() == {}
    assert not NO_COST
    assert cost - cost == NO_COST
    assert cost.requests == 6


def test_the_client_asks_for_nothing_of_itself(server: GCSServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would ask for the bucket in a thread of its own, once an object is not there."""
    monkeypatch.delenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA")
    server.faults.add(ServerFault(FaultKind.LATENCY, "buckets.get", seconds=0.5, times=None))
    store = store_on(server)
    for act in (store.bucket_resource, lambda: store.get("a")):
        with contextlib.suppress(NotFoundError):
            act()
        assert not [each for each in threading.enumerate() if "background" in each.name]
    assert server.counts["buckets.get"] == 1
