"""Deletions in batches: each part keeps its precondition, its retries and its answer, as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import requests as requests_of_python
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.storage import ABSENT, ANY, GCSObjectStore, Generation, delete_each
from dstl_dagster.storage.gcs.batch_deletes import decoded_batch
from dstl_dagster.storage.gcs.client import facts_of
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.testing.virtual_clock import VirtualClock

NAMES = ["a", "b/c d", "ü%2F?#&+", "last"]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[GCSServer]:
    with GCSServer() as server:
        server.create_bucket("bucket")
        yield server


@pytest.fixture
def server(shared_server: GCSServer) -> Iterator[GCSServer]:
    shared_server.reset_counts()
    yield shared_server
    shared_server.faults.clear()


def store_on(server: GCSServer, bucket: str = "bucket", tries: int = 4) -> GCSObjectStore:
    client = storage.Client(
        project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )
    retries = Retries(RetryPolicy(max_attempts=tries, total_seconds=None), clock=VirtualClock())
    return GCSObjectStore(client, bucket, "below/", retries=retries)


def requests(server: GCSServer) -> dict[str, int]:
    """By method, without what Google's client asks about buckets in the background."""
    return {method: count for method, count in server.counts.items() if not method.startswith("buckets.")}


def fill(store: GCSObjectStore) -> list[tuple[str, Generation]]:
    return [(name, Generation(store.put(name, b"x", precondition=ANY).generation)) for name in NAMES]


def test_one_request_deletes_all(server: GCSServer) -> None:
    """Whatever the names; run again, it finds nothing."""
    store = store_on(server)
    objects = fill(store)
    server.reset_counts()
    assert store.delete_all(objects) == [True] * len(NAMES)
    assert requests(server) == {"batch": 1}
    assert list(store.list()) == []
    assert store.delete_all(objects) == [False] * len(NAMES)
    assert store.delete_all([]) == []


def test_each_part_has_its_own_precondition(server: GCSServer) -> None:
    """An overwritten object is a conflict, a missing one is False, and the others go."""
    store = store_on(server)
    objects = fill(store)
    store.put("a", b"later", precondition=ANY)
    store.delete("last", precondition=ANY)
    overwritten, *gone, missing = store.delete_all(objects)
    assert isinstance(overwritten, ConflictError)
    assert (gone, missing) == ([True, True], False)
    assert [stat.name for stat in store.list()] == ["a"]
    store.delete("a", precondition=ANY)


@pytest.mark.parametrize("status", [503, 429, 408])
def test_a_refused_part_is_sent_again(server: GCSServer, status: int) -> None:
    """Only the part that was refused, in a second batch."""
    store = store_on(server)
    objects = fill(store)
    server.reset_counts()
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.delete", "below/b*", status=status))
    assert store.delete_all(objects) == [True] * len(NAMES)
    assert requests(server) == {"batch": 2}


@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.DROP_ANSWER, FaultKind.CUT, FaultKind.GARBLE])
def test_a_lost_answer_is_asked_for_again(server: GCSServer, kind: FaultKind) -> None:
    """Each object counts as deleted, once; what was not there before does not."""
    store = store_on(server)
    objects = fill(store)
    server.faults.add(ServerFault(kind, "batch"))
    assert store.delete_all(objects) == [True] * len(NAMES)
    assert list(store.list()) == []
    assert store.delete_all(objects) == [False] * len(NAMES)


@pytest.mark.parametrize("wanted", [ANY, "its generation"])
def test_a_deletion_whose_answer_was_lost_counts(server: GCSServer, wanted: object) -> None:
    """Also of a single object, whether the service then says 404 or 412."""
    store = store_on(server)
    made = store.put("a", b"x", precondition=ABSENT)
    precondition = ANY if wanted is ANY else Generation(made.generation)
    server.faults.add(ServerFault(FaultKind.DROP_ANSWER, "objects.delete"))
    assert store.delete("a", precondition=precondition) is True
    assert store.delete("a", precondition=precondition) is False


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_service_without_batches_deletes_one_by_one(server: GCSServer, status: int) -> None:
    """Asked once, without another try; then it is known, and each deletion keeps its precondition."""
    store = store_on(server)
    objects = fill(store)
    store.put("a", b"later", precondition=ANY)
    server.reset_counts()
    server.faults.add(ServerFault(FaultKind.STATUS, "batch", status=status, times=None))
    overwritten, *gone = store.delete_all(objects)
    assert isinstance(overwritten, ConflictError)
    assert gone == [True, True, True]
    assert requests(server)["batch"] == 1
    assert not store.capabilities.batch_deletes
    assert list(delete_each(store, [("a", ANY), ("b", ANY)], threads=1)) == [True, False]
    assert requests(server)["batch"] == 1
    assert store_on(server).capabilities.batch_deletes


def test_a_permanent_refusal_is_not_tried_again(server: GCSServer) -> None:
    """501 of any request: the service will not do it the next time either."""
    store = store_on(server)
    server.reset_counts()
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.insert", status=501, times=None))
    with pytest.raises(InvalidInputError, match="501"):
        store.put("a", b"x", precondition=ABSENT)
    assert requests(server) == {"objects.insert": 1}


def test_a_part_that_stays_refused_is_raised(server: GCSServer) -> None:
    """After the others are gone; a permanent refusal is not tried again."""
    store = store_on(server, tries=2)
    objects = fill(store)
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.delete", "below/a", status=503, times=2))
    with pytest.raises(UnavailableError, match="below/a"):
        store.delete_all(objects)
    assert [stat.name for stat in store.list()] == ["a"]
    server.reset_counts()
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.delete", "below/a", status=403))
    with pytest.raises(InvalidInputError, match="no permission"):
        store.delete_all(objects)
    assert requests(server) == {"batch": 1}
    assert store.delete_all(objects[:1]) == [True]


def test_a_missing_bucket_is_an_error(server: GCSServer) -> None:
    """As for a single deletion: it does not read as "nothing was there"."""
    with pytest.raises(NotFoundError):
        store_on(server, "nowhere").delete_all([("a", ANY)])


def test_what_is_refused_before_it_is_sent(server: GCSServer) -> None:
    """More than the service takes, and a precondition that makes no sense."""
    store = store_on(server)
    with pytest.raises(InvalidInputError, match="at most 100"):
        store.delete_all([("a", ANY)] * 101)
    with pytest.raises(InvalidInputError, match="absent"):
        store.delete_all([("a", ABSENT)])
    assert requests(server) == {}


@pytest.mark.parametrize("text", ["", "--x\r\n", "--x\r\nContent-ID: <response-part+0>\r\n\r\nHTTP/1.1\r\n"])
def test_an_answer_that_cannot_be_read_answers_nothing(text: str) -> None:
    """Its parts count as unanswered, and are sent again."""
    assert list(decoded_batch("multipart/mixed; boundary=x", text)) == []


ANSWER = """--b x\r
Content-Type: application/http\r
Content-ID: <response-part+1>\r
\r
HTTP/1.1 204 No Content\r
Content-Length: 0\r
\r
\r
--b x\r
content-id: response-part+0\r
\r
HTTP/1.1 412 Precondition Failed\r
Content-Type: application/json\r
\r
{"error": {"message": "--b x is not a boundary here"}}\r
--b x--\r
"""


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
@pytest.mark.parametrize("before", ["", "What no reader shows.\r\n"])
def test_an_answer_is_read_whatever_its_line_ends(newline: str, before: str) -> None:
    """Parts in any order, header names in any case; what looks like a boundary within a line is none."""
    text = (before + ANSWER).replace("\r\n", newline)
    found = list(decoded_batch('multipart/mixed; boundary="b x"', text))
    assert found == [(1, (204, "")), (0, (412, "--b x is not a boundary here"))]


@pytest.mark.parametrize("length", range(0, len(ANSWER) - 10, 7))
def test_a_part_that_was_cut_off_is_left_out(length: int) -> None:
    """Wherever the answer ends: a part counts once the next boundary says that it is whole."""
    found = list(decoded_batch('multipart/mixed; boundary="b x"', ANSWER[:length]))
    assert found == ([(1, (204, ""))] if ANSWER[:length].count("--b x") > 1 else [])


def test_the_time_of_a_refusal_is_not_the_services() -> None:
    """A proxy may have sent it, by a clock of its own: ahead, it would end the grace of readers for good."""

    class Client:
        _http = requests_of_python.Session()

    client = Client()
    facts = facts_of(client)  # type: ignore[arg-type] # all of a client that it needs
    (hook,) = Client._http.hooks["response"]
    for status, date in ((502, "Sun, 06 Nov 2033 08:49:30 GMT"), (200, "Sun, 29 Nov 2026 08:49:30 GMT")):
        response = requests_of_python.Response()
        response.status_code, response.headers["Date"] = status, date
        hook(response)
    assert facts.time == datetime(2026, 11, 29, 8, 49, 30, tzinfo=UTC)


def test_the_service_tells_the_time(server: GCSServer) -> None:
    """By any response, without a request of its own, and never ahead of what it stamps."""
    store = store_on(server)
    made = store.put("clock", b"", precondition=ANY)
    told = store.server_time()
    assert told is not None
    assert told <= store.put("clock", b"", precondition=Generation(made.generation)).updated
    assert requests(server) == {"objects.insert": 2}
