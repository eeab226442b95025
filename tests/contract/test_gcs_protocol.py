"""The storage protocol that we rely on, request by request, without any client.

It runs against the strict server, or against any endpoint that the environment names (`endpoint`), so that
the server can be compared with others. All objects are below a fresh prefix and are deleted at the end.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

import google_crc32c
import pytest
import requests

from tests.contract.endpoint import Endpoint, endpoint_from

CHUNK = 256 * 1024
_REFUSALS = 5


def crc(payload: bytes) -> str:
    return base64.b64encode(google_crc32c.value(payload).to_bytes(4, "big")).decode()


class Wire:
    """Bare requests on one bucket, below one prefix."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, self.bucket = endpoint.url, endpoint.bucket
        self.prefix = f"protocol-{uuid.uuid4()}/"
        self.session = endpoint.session()

    def url(self, name: str, area: str = "") -> str:
        path = quote(self.prefix + name, safe="")
        return f"{self.endpoint}{area}/storage/v1/b/{self.bucket}/o/{path}"

    def ask(self, method: str, url: str, **options: Any) -> requests.Response:
        for _ in range(_REFUSALS):
            answer = self.session.request(method, url, timeout=60, **options)
            if answer.status_code != 429:
                break
            # A real bucket takes about one change of an object a second.
            threading.Event().wait(float(answer.headers.get("Retry-After", "1")))
        return answer

    def media(
        self, name: str, payload: bytes, headers: dict[str, str] | None = None, **params: Any
    ) -> requests.Response:
        url = f"{self.endpoint}/upload/storage/v1/b/{self.bucket}/o"
        return self.ask(
            "POST",
            url,
            params={"uploadType": "media", "name": self.prefix + name, **params},
            data=payload,
            headers={"Content-Type": "text/plain", **(headers or {})},
        )

    def multipart(
        self, name: str, payload: bytes, resource: dict[str, Any], **params: Any
    ) -> requests.Response:
        document = json.dumps({"name": self.prefix + name, **resource}).encode()
        body = (
            b"--==x==\r\nContent-Type: application/json\r\n\r\n"
            + document
            + b"\r\n--==x==\r\nContent-Type: text/plain\r\n\r\n"
            + payload
            + b"\r\n--==x==--"
        )
        return self.ask(
            "POST",
            f"{self.endpoint}/upload/storage/v1/b/{self.bucket}/o",
            params={"uploadType": "multipart", **params},
            data=body,
            headers={"Content-Type": 'multipart/related; boundary="==x=="'},
        )

    def start(self, name: str, resource: dict[str, Any] | None = None, **params: Any) -> str:
        reply = self.ask(
            "POST",
            f"{self.endpoint}/upload/storage/v1/b/{self.bucket}/o",
            params={"uploadType": "resumable", **params},
            json={"name": self.prefix + name, **(resource or {})},
        )
        assert reply.status_code == 200, reply.text
        return reply.headers["Location"]

    def send(self, session: str, payload: bytes, span: str, **headers: str) -> requests.Response:
        # No redirect is followed: 308 means "resume incomplete" here.
        return self.ask(
            "PUT", session, data=payload, headers={"Content-Range": span, **headers}, allow_redirects=False
        )

    def stat(self, name: str, **params: Any) -> requests.Response:
        return self.ask("GET", self.url(name), params=params)

    def read(self, name: str, span: str | None = None, **params: Any) -> requests.Response:
        headers = {"Range": span} if span else {}
        return self.ask(
            "GET", self.url(name, "/download"), params={"alt": "media", **params}, headers=headers
        )

    def delete(self, name: str, **params: Any) -> requests.Response:
        return self.ask("DELETE", self.url(name), params=params)

    def compose(self, target: str, sources: list[dict[str, Any]], **more: Any) -> requests.Response:
        params = {key: value for key, value in more.items() if key.startswith("if")}
        body = {key: value for key, value in more.items() if not key.startswith("if")}
        named = [{**source, "name": self.prefix + source["name"]} for source in sources]
        document = {"destination": {}, "sourceObjects": named, **body}
        return self.ask("POST", f"{self.url(target)}/compose", params=params, json=document)

    def rewrite(
        self, source: str, target: str, resource: dict[str, Any] | None = None, **params: Any
    ) -> requests.Response:
        to = f"/rewriteTo/b/{self.bucket}/o/{quote(self.prefix + target, safe='')}"
        return self.ask("POST", self.url(source) + to, params=params, json=resource or {})

    def list(self, **params: Any) -> dict[str, Any]:
        url = f"{self.endpoint}/storage/v1/b/{self.bucket}/o"
        given = {**params, "prefix": self.prefix + params.get("prefix", "")}
        if "startOffset" in params:
            given["startOffset"] = self.prefix + params["startOffset"]
        reply = self.ask("GET", url, params=given)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def names(self, **params: Any) -> list[str]:
        return [item["name"][len(self.prefix) :] for item in self.list(**params).get("items", ())]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with endpoint_from() as endpoint:
        yield endpoint


@pytest.fixture
def wire(endpoint: Endpoint) -> Iterator[Wire]:
    wire = Wire(endpoint)
    yield wire
    for name in wire.names():
        wire.delete(name)
    wire.session.close()


# -- uploads


@pytest.mark.parametrize("payload", [b"", b"hello", b"--==x==\r\n\r\n--", bytes(range(256)) * 100])
def test_media_and_multipart_store_the_bytes(wire: Wire, payload: bytes) -> None:
    """Both uploads store any bytes, and return size, checksums, generation and metageneration."""
    for reply in (wire.media("a", payload), wire.multipart("b", payload, {"metadata": {"k": "v"}})):
        assert reply.status_code == 200
        resource = reply.json()
        assert resource["size"] == str(len(payload))
        assert resource["crc32c"] == crc(payload)
        assert resource["md5Hash"] == base64.b64encode(hashlib.md5(payload).digest()).decode()
        assert int(resource["generation"]) > 0
        assert resource["metageneration"] == "1"
    assert wire.read("a").content == wire.read("b").content == payload
    assert wire.stat("b").json()["metadata"] == {"k": "v"}


def test_upload_cut_in_its_body(wire: Wire) -> None:
    """An upload whose client dies before sending the whole body creates nothing."""
    split = urlsplit(wire.endpoint)
    kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
    connection = kind(split.netloc, timeout=60)
    target = quote(wire.prefix + "cut", safe="")
    connection.putrequest("POST", f"/upload/storage/v1/b/{wire.bucket}/o?uploadType=media&name={target}")
    for key, value in {**wire.session.headers, "Content-Type": "text/plain", "Content-Length": "100"}.items():
        connection.putheader(key, value)
    connection.endheaders()
    connection.send(b"x" * 50)
    connection.sock.shutdown(socket.SHUT_WR)
    connection.sock.recv(1 << 16)  # an error or the end: the service has seen that no more comes
    connection.close()
    assert wire.stat("cut").status_code == 404


def test_wrong_checksums_are_refused(wire: Wire) -> None:
    """A crc32c or md5 that does not match the bytes is 400, and nothing is stored."""
    wrong = crc(b"other")
    assert wire.media("a", b"bytes", {"X-Goog-Hash": f"crc32c={wrong}"}).status_code == 400
    assert wire.multipart("a", b"bytes", {"crc32c": wrong}).status_code == 400
    assert wire.multipart("a", b"bytes", {"md5Hash": "AAAAAAAAAAAAAAAAAAAAAA=="}).status_code == 400
    assert wire.stat("a").status_code == 404
    assert wire.multipart("a", b"bytes", {"crc32c": crc(b"bytes")}).status_code == 200


def test_create_only(wire: Wire) -> None:
    """ifGenerationMatch=0 creates an absent object, and refuses a live one with 412, for every upload."""
    assert wire.media("a", b"1", ifGenerationMatch=0).status_code == 200
    assert wire.media("a", b"2", ifGenerationMatch=0).status_code == 412
    assert wire.multipart("a", b"2", {}, ifGenerationMatch=0).status_code == 412
    session = wire.start("a", ifGenerationMatch=0)
    assert wire.send(session, b"2", "bytes 0-0/1").status_code == 412
    assert wire.read("a").content == b"1"


def test_generation_match(wire: Wire) -> None:
    """Only the live generation matches, and each write has a higher one."""
    first = int(wire.media("a", b"1").json()["generation"])
    second = int(wire.media("a", b"2", ifGenerationMatch=first).json()["generation"])
    assert second > first
    assert wire.media("a", b"3", ifGenerationMatch=first).status_code == 412
    assert wire.media("b", b"3", ifGenerationMatch=first).status_code == 412
    assert wire.media("a", b"3", ifGenerationNotMatch=second).status_code == 412
    assert wire.media("a", b"3", ifMetagenerationMatch=2).status_code == 412


def test_generation_is_not_used_again(wire: Wire) -> None:
    """After a deletion the name starts at a higher generation."""
    first = int(wire.media("a", b"1").json()["generation"])
    assert wire.delete("a").status_code == 204
    assert int(wire.media("a", b"1").json()["generation"]) > first


def test_one_of_many_creators(wire: Wire) -> None:
    """Of 16 concurrent uploads with ifGenerationMatch=0 one succeeds."""
    with ThreadPoolExecutor(16) as pool:
        codes = list(
            pool.map(lambda n: wire.media("race", b"%d" % n, ifGenerationMatch=0).status_code, range(16))
        )
    assert sorted(codes) == [200] + [412] * 15


# -- resumable


def test_resumable_in_chunks(wire: Wire) -> None:
    """Chunks are 308 with the range received; nothing is visible before the last one."""
    payload = bytes(range(256)) * 1024 * 2 + b"rest"
    session = wire.start("a", {"metadata": {"k": "v"}})
    first = wire.send(session, payload[:CHUNK], f"bytes 0-{CHUNK - 1}/*")
    assert (first.status_code, first.headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    assert wire.stat("a").status_code == 404
    end = wire.send(session, payload[CHUNK:], f"bytes {CHUNK}-{len(payload) - 1}/{len(payload)}")
    assert end.status_code == 200
    assert end.json()["metadata"] == {"k": "v"}
    assert wire.read("a").content == payload


def test_resumable_status(wire: Wire) -> None:
    """A status query returns the range received and finalizes nothing; after the end it is the object."""
    session = wire.start("a")
    fresh = wire.send(session, b"", "bytes */*")
    assert (fresh.status_code, "Range" in fresh.headers) == (308, False)
    wire.send(session, b"x" * CHUNK, f"bytes 0-{CHUNK - 1}/*")
    asked = wire.send(session, b"", f"bytes */{2 * CHUNK}")
    assert (asked.status_code, asked.headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    assert wire.stat("a").status_code == 404
    wire.send(session, b"y", f"bytes {CHUNK}-{CHUNK}/{CHUNK + 1}")
    again = wire.send(session, b"", f"bytes */{CHUNK + 1}")
    assert again.status_code == 200
    assert again.json()["generation"] == wire.stat("a").json()["generation"]


def test_resumable_end_without_bytes(wire: Wire) -> None:
    """`bytes */N` with all N received ends the upload; with N=0 it creates an empty object."""
    session = wire.start("a")
    wire.send(session, b"x" * CHUNK, f"bytes 0-{CHUNK - 1}/*")
    assert wire.send(session, b"", f"bytes */{CHUNK}").status_code == 200
    assert wire.send(wire.start("empty"), b"", "bytes */0").status_code == 200
    assert wire.read("empty").content == b""


def test_resumable_bad_chunks(wire: Wire) -> None:
    """A chunk that is neither a multiple of 256 KiB nor the last one is 400."""
    session = wire.start("a")
    assert wire.send(session, b"x" * 1000, "bytes 0-999/*").status_code == 400
    assert wire.stat("a").status_code == 404


def test_resumable_wrong_checksum(wire: Wire) -> None:
    """A final checksum that does not match the bytes is 400, and nothing is created."""
    session = wire.start("a")
    headers = {"X-Goog-Hash": f"crc32c={crc(b'other')}"}
    assert wire.send(session, b"bytes", "bytes 0-4/5", **headers).status_code == 400
    assert wire.stat("a").status_code == 404


def test_resumable_cancel(wire: Wire) -> None:
    """A cancelled upload is 499 and accepts no more bytes."""
    session = wire.start("a")
    wire.send(session, b"x" * CHUNK, f"bytes 0-{CHUNK - 1}/*")
    assert wire.ask("DELETE", session, headers={"Content-Length": "0"}).status_code == 499
    assert wire.send(session, b"y", f"bytes {CHUNK}-{CHUNK}/{CHUNK + 1}").status_code >= 400
    assert wire.stat("a").status_code == 404


# -- reading


def test_missing_is_404(wire: Wire) -> None:
    """Stat, read and delete of a missing object, or of another generation, are 404."""
    generation = int(wire.media("a", b"x").json()["generation"])
    for reply in (
        wire.stat("no"),
        wire.read("no"),
        wire.delete("no"),
        wire.stat("a", generation=generation + 1),
        wire.read("a", generation=generation + 1),
    ):
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == 404 if "json" in reply.headers["Content-Type"] else True


def test_download_headers(wire: Wire) -> None:
    """A download's headers have generation, stored length and checksums."""
    made = wire.media("a", b"hello").json()
    reply = wire.read("a")
    assert reply.headers["X-Goog-Generation"] == made["generation"]
    assert reply.headers["X-Goog-Stored-Content-Length"] == "5"
    assert f"crc32c={made['crc32c']}" in reply.headers["X-Goog-Hash"]


@pytest.mark.parametrize(
    ("span", "expected", "span_sent"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=4-", b"456789", "bytes 4-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=8-100", b"89", "bytes 8-9/10"),
    ],
)
def test_ranges(wire: Wire, span: str, expected: bytes, span_sent: str) -> None:
    """Ranges are 206 with their bytes and place."""
    wire.media("a", b"0123456789")
    reply = wire.read("a", span)
    assert (reply.status_code, reply.content, reply.headers["Content-Range"]) == (
        206,
        expected,
        span_sent,
    )


def test_range_beyond_the_end(wire: Wire) -> None:
    """A range that starts beyond the end is 416."""
    wire.media("a", b"0123456789")
    assert wire.read("a", "bytes=10-").status_code == 416


def test_read_preconditions(wire: Wire) -> None:
    """Reads honour preconditions too: 412, and 304 for not-match."""
    generation = int(wire.media("a", b"x").json()["generation"])
    assert wire.stat("a", ifGenerationMatch=generation).status_code == 200
    assert wire.stat("a", ifGenerationMatch=generation + 1).status_code == 412
    assert wire.stat("a", ifGenerationNotMatch=generation).status_code == 304


# -- list


def test_list_order_and_offset(wire: Wire) -> None:
    """Names come in UTF-8 order, from an inclusive offset."""
    wanted = ["a", "a//b", "a/b", "a0", "é", "\uffee", "😀", "x" * 900]
    wanted.sort(key=str.encode)
    for name in reversed(wanted):
        wire.media(name, b"")
    assert wire.names() == wanted
    assert wire.names(startOffset="a/b") == wanted[wanted.index("a/b") :]
    assert wire.names(prefix="a/") == ["a//b", "a/b"]


def test_list_pages(wire: Wire) -> None:
    """Pages of any size list all objects once, even while others are deleted."""
    wanted = [f"p{number}" for number in range(7)]
    for name in wanted:
        wire.media(name, b"")
    listed: list[str] = []
    token: dict[str, str] = {}
    while True:
        page = wire.list(maxResults=3, **token)
        listed += [item["name"][len(wire.prefix) :] for item in page["items"]]
        if "nextPageToken" not in page:
            break
        token = {"pageToken": page["nextPageToken"]}
    assert listed == wanted


def test_list_delimiter(wire: Wire) -> None:
    """With a delimiter, folders are listed once as prefixes."""
    for name in ("a", "b/1", "b/2", "c/d/e"):
        wire.media(name, b"")
    page = wire.list(delimiter="/")
    assert [item["name"][len(wire.prefix) :] for item in page["items"]] == ["a"]
    assert [name[len(wire.prefix) :] for name in page["prefixes"]] == ["b/", "c/"]


# -- compose


def test_compose(wire: Wire) -> None:
    """The target has the bytes in order, a crc32c, a component count, and no md5; the sources stay."""
    for number in range(3):
        wire.media(f"p{number}", b"%d" % number)
    sources = [{"name": f"p{number}"} for number in (2, 0, 1)]
    reply = wire.compose("whole", sources, destination={"metadata": {"k": "v"}}, ifGenerationMatch=0)
    assert reply.status_code == 200
    made = reply.json()
    assert (made["crc32c"], made["componentCount"], made["metadata"]) == (crc(b"201"), 3, {"k": "v"})
    assert "md5Hash" not in made
    assert wire.read("whole").content == b"201"
    assert wire.names() == ["p0", "p1", "p2", "whole"]


@pytest.mark.parametrize("count", [0, 33])
def test_compose_limits(wire: Wire, count: int) -> None:
    """0 and 33 sources are 400."""
    wire.media("p", b"x")
    assert wire.compose("whole", [{"name": "p"}] * count).status_code == 400
    assert wire.stat("whole").status_code == 404


def test_compose_of_what_is_missing(wire: Wire) -> None:
    """A missing source or generation is 404, a failing source precondition 412; nothing changes."""
    generation = int(wire.media("p", b"x").json()["generation"])
    conditions = {"objectPreconditions": {"ifGenerationMatch": str(generation + 1)}}
    for source, code in (
        ({"name": "no"}, 404),
        ({"name": "p", "generation": str(generation + 1)}, 404),
        ({"name": "p", **conditions}, 412),
    ):
        assert wire.compose("w", [{"name": "p"}, source], deleteSourceObjects=True).status_code == code
    assert wire.names() == ["p"]
    assert wire.compose("w", [{"name": "p", "generation": str(generation)}]).status_code == 200


def test_compose_deletes_sources(wire: Wire) -> None:
    """With deleteSourceObjects the sources are gone; not when the compose is refused."""
    for name in ("p", "q", "there"):
        wire.media(name, b"x")
    sources = [{"name": "p"}, {"name": "q"}]
    refused = wire.compose("there", sources, deleteSourceObjects=True, ifGenerationMatch=0)
    assert refused.status_code == 412
    assert wire.names() == ["p", "q", "there"]
    assert wire.compose("w", sources, deleteSourceObjects=True, ifGenerationMatch=0).status_code == 200
    assert wire.names() == ["there", "w"]


def test_one_of_many_composes(wire: Wire) -> None:
    """Of 16 concurrent composes with ifGenerationMatch=0 one succeeds."""
    for number in range(16):
        wire.media(f"p{number}", b"%d" % number)
    with ThreadPoolExecutor(16) as pool:
        replies = list(
            pool.map(lambda n: wire.compose("race", [{"name": f"p{n}"}], ifGenerationMatch=0), range(16))
        )
    codes = [reply.status_code for reply in replies]
    assert sorted(codes) == [200] + [412] * 15
    assert wire.read("race").content == b"%d" % codes.index(200)


# -- rewrite, delete, patch


def test_rewrite(wire: Wire) -> None:
    """A rewrite copies the bytes, takes new metadata if given, and honours preconditions of both sides."""
    generation = int(wire.multipart("a", b"bytes", {"metadata": {"of": "source"}}).json()["generation"])
    done = wire.rewrite("a", "b", {"metadata": {"of": "copy"}}, ifGenerationMatch=0).json()
    assert (done["done"], done["resource"]["metadata"]) == (True, {"of": "copy"})
    assert wire.read("b").content == b"bytes"
    assert wire.rewrite("a", "b", ifGenerationMatch=0).status_code == 412
    assert wire.rewrite("a", "c", sourceGeneration=generation + 1).status_code == 404
    assert wire.rewrite("a", "c", ifSourceGenerationMatch=generation + 1).status_code == 412
    assert wire.rewrite("no", "c").status_code == 404
    assert wire.rewrite("a", "c").json()["resource"]["metadata"] == {"of": "source"}


def test_delete_preconditions(wire: Wire) -> None:
    """A delete of another generation is refused, and the object stays."""
    generation = int(wire.media("a", b"x").json()["generation"])
    assert wire.delete("a", ifGenerationMatch=generation + 1).status_code == 412
    assert wire.delete("a", generation=generation + 1).status_code == 404
    assert wire.delete("a", ifGenerationMatch=generation).status_code == 204
    assert wire.stat("a").status_code == 404


def test_batch_of_deletes(wire: Wire) -> None:
    """Up to a hundred calls in one request, each with its own precondition and status, by its own id."""
    made = {name: int(wire.media(name, b"x").json()["generation"]) for name in ("a", "b c", "d/é")}
    calls = [
        ("a", made["a"] + 1, 412),
        ("b c", made["b c"], 204),
        ("missing", 1, 404),
        ("d/é", made["d/é"], 204),
    ]
    parts = [
        "--==b==\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"
        f"Content-ID: <n+{number}>\r\n\r\n"
        f"DELETE {urlsplit(wire.url(name)).path}?ifGenerationMatch={generation} HTTP/1.1\r\n"
        "Content-Length: 0\r\n\r\n"
        for number, (name, generation, _status) in enumerate(calls)
    ]
    reply = wire.ask(
        "POST",
        f"{wire.endpoint}/batch/storage/v1",
        data=("\r\n".join(parts) + "\r\n--==b==--\r\n").encode(),
        headers={"Content-Type": 'multipart/mixed; boundary="==b=="'},
    )
    assert reply.status_code == 200
    assert reply.headers["Content-Type"].startswith("multipart/mixed")
    for number, (name, generation, status) in enumerate(calls):
        answer = reply.text.partition(f"n+{number}>")[2]
        # A missing object may be told as a failed precondition, too.
        allowed = {404, 412} if status == 404 else {status}
        found = int(answer.partition("HTTP/1.1 ")[2][:3])
        if found == 429:  # the limit holds within a batch, too; the other parts are done all the same
            found = wire.delete(name, ifGenerationMatch=generation).status_code
        assert found in allowed
    assert wire.names() == ["a"]


def test_malformed_batches(wire: Wire) -> None:
    """No parts, too many, or another type: refused as a whole."""
    url = f"{wire.endpoint}/batch/storage/v1"
    headers = {"Content-Type": "multipart/mixed; boundary=b"}
    part = (
        "--b\r\nContent-Type: application/http\r\nContent-ID: <n+1>\r\n\r\n"
        f"DELETE {urlsplit(wire.url('a')).path} HTTP/1.1\r\n\r\n\r\n"
    )
    for body in ("", "--b--\r\n", part * 101 + "--b--\r\n"):
        assert wire.ask("POST", url, data=body.encode(), headers=headers).status_code == 400
    assert wire.ask("POST", url, data=b"{}", headers={"Content-Type": "application/json"}).status_code == 400


def test_patch(wire: Wire) -> None:
    """A patch merges metadata into a new metageneration of the same generation."""
    made = wire.multipart("a", b"x", {"metadata": {"k": "v", "gone": "x"}}).json()
    reply = wire.ask("PATCH", wire.url("a"), json={"metadata": {"l": "w", "gone": None}})
    changed = reply.json()
    assert changed["metadata"] == {"k": "v", "l": "w"}
    assert (changed["generation"], changed["metageneration"]) == (made["generation"], "2")


@pytest.mark.parametrize("name", ["x//y", "a/b/", "%41?#[]*&=+ ü", "😀" * 100, "x" * 900, ".hidden", "a\tb"])
def test_odd_names(wire: Wire, name: str) -> None:
    """Any legal name is accepted unchanged."""
    assert wire.media(name, b"odd").status_code == 200
    assert wire.read(name).content == b"odd"
    assert wire.names() == [name]


def test_bad_names(wire: Wire) -> None:
    """A name above 1,024 bytes or with a line break is 400."""
    for name in ("x" * 1024, "a\nb"):
        assert wire.media(name, b"").status_code == 400


def test_missing_bucket(wire: Wire) -> None:
    """Everything in a bucket that does not exist is 404."""
    own, wire.bucket = wire.bucket, f"missing-{uuid.uuid4()}"
    assert wire.media("a", b"").status_code == 404
    assert wire.stat("a").status_code == 404
    wire.bucket = own
