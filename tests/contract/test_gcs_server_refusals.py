"""What the strict server refuses: no success for what it did not do, and no silent end of a connection."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from dstl_dagster.errors import ConflictError
from dstl_dagster.testing.gcs_server import GCSServer, model
from dstl_dagster.testing.gcs_server.journal import Journal


@pytest.fixture
def server() -> Iterator[GCSServer]:
    with GCSServer() as server:
        server.create_bucket("b")
        yield server


def ask(server: GCSServer, method: str, path: str, **options: Any) -> requests.Response:
    return requests.request(method, server.url + path, timeout=30, **options)


def insert(server: GCSServer, name: str, payload: Any = b"x", **options: Any) -> requests.Response:
    path = f"/upload/storage/v1/b/b/o?uploadType=media&name={name}"
    return ask(server, "POST", path, data=payload, **options)


def test_a_chunked_body_is_read(server: GCSServer) -> None:
    """`Transfer-Encoding: chunked`, as a generator is sent, stores every byte; the connection goes on."""
    with requests.Session() as session:
        url = f"{server.url}/upload/storage/v1/b/b/o?uploadType=media&name=a"
        for _ in range(2):
            answer = session.post(url, data=iter([b"one", b"two" * 50_000]), timeout=30)
            assert answer.status_code == 200
    assert server.raw_read("b", "a") == b"one" + b"two" * 50_000


@pytest.mark.parametrize("body", [b"zz\r\nab\r\n0\r\n\r\n", b"3\r\nabcdef", b"-3\r\nabc\r\n0\r\n\r\n"])
def test_a_broken_chunk_is_refused(server: GCSServer, body: bytes) -> None:
    """What is no chunk is 400, and stores nothing."""
    head = b"POST /upload/storage/v1/b/b/o?uploadType=media&name=a HTTP/1.1\r\nHost: x\r\n"
    assert raw(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + body).startswith(b"HTTP/1.1 400")
    assert server.raw_read("b", "a") is None


def raw(server: GCSServer, request: bytes) -> bytes:
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:  # type: ignore[arg-type]
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize("length", [b"abc", b"-1", b"1e3"])
def test_a_length_that_is_none_is_refused(server: GCSServer, length: bytes) -> None:
    """400, as of any other malformed header."""
    head = b"GET /storage/v1/b/b/o HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n"
    assert raw(server, head).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("GET", "/storage/v1/b/b/o?maxResults=many", None),
        ("GET", "/storage/v1/b/b/o?pageToken=%C3%A9", None),
        ("POST", "/storage/v1/b/b/o/t/compose", {"sourceObjects": [{}]}),
        ("POST", "/storage/v1/b/b/o/t/compose", {"sourceObjects": 7}),
        ("POST", "/storage/v1/b/b/o/t/compose", {"sourceObjects": [{"name": "a", "generation": "x"}]}),
        ("POST", "/storage/v1/b/b/o/t/compose", {"sourceObjects": [{"name": ["a"]}]}),
        ("PATCH", "/storage/v1/b/b/o/a", {"metadata": ["x"]}),
        ("PATCH", "/storage/v1/b/b/o/a", {"contentType": {"x": 1}}),
        ("POST", "/upload/storage/v1/b/b/o?uploadType=resumable", {"name": "\ud800"}),
        ("POST", "/upload/storage/v1/b/b/o?uploadType=resumable", {"name": "n", "metadata": 3}),
        ("POST", "/storage/v1/b", {"name": ["b"]}),
        ("POST", "/storage/v1/b", {"name": ""}),
    ],
)
def test_malformed_input_is_refused(server: GCSServer, method: str, path: str, document: Any) -> None:
    """400 in the service's form, and the next request on the connection is served."""
    insert(server, "a")
    with requests.Session() as session:
        body = None if document is None else json.dumps(document)
        answer = session.request(method, server.url + path, data=body, timeout=30)
        if answer.status_code == 200 and "resumable" in path:
            answer = session.put(answer.headers["Location"], data=b"x", timeout=30)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == 400
        assert session.get(f"{server.url}/storage/v1/b/b/o/a", timeout=30).status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain\r\nX-Injected: yes", "text/\u20ac", "a\nb"])
def test_a_content_type_injects_no_header(server: GCSServer, content_type: str) -> None:
    """Line breaks, and what no header can carry, are refused in a new object and in a changed one."""
    insert(server, "a")
    changed = ask(server, "PATCH", "/storage/v1/b/b/o/a", data=json.dumps({"contentType": content_type}))
    document = json.dumps({"name": "new", "contentType": content_type})
    started = ask(server, "POST", "/upload/storage/v1/b/b/o?uploadType=resumable", data=document)
    made = started
    if started.status_code == 200:
        made = requests.put(started.headers["Location"], data=b"x", timeout=30)
    assert (changed.status_code, made.status_code) == (400, 400)
    assert "X-Injected" not in ask(server, "GET", "/storage/v1/b/b/o/a?alt=media").headers


@pytest.mark.parametrize("query", ["matchGlob=*", "versions=true", "softDeleted=true"])
def test_a_listing_that_is_not_built_is_refused(server: GCSServer, query: str) -> None:
    """501, not a listing of something else."""
    assert ask(server, "GET", f"/storage/v1/b/b/o?{query}").status_code == 501


@pytest.mark.parametrize(
    "settings",
    [
        {"versioning": {"enabled": True}},
        {"softDeletePolicy": {"retentionDurationSeconds": "604800"}},
        {"retentionPolicy": {"retentionPeriod": "1"}},
    ],
)
def test_a_setting_that_is_not_built_is_refused(server: GCSServer, settings: dict[str, Any]) -> None:
    """501, not a bucket that does otherwise; switched off, it is what the server does."""
    made = ask(server, "POST", "/storage/v1/b", data=json.dumps({"name": "new", **settings}))
    assert made.status_code == 501
    off = {"versioning": {"enabled": False}, "softDeletePolicy": {"retentionDurationSeconds": "0"}}
    assert ask(server, "POST", "/storage/v1/b", data=json.dumps({"name": "new", **off})).status_code == 200


def test_permissions_of_no_bucket(server: GCSServer) -> None:
    """404 where there is no such bucket."""
    path = "/storage/v1/b/{}/iam/testPermissions?permissions=storage.objects.get"
    assert ask(server, "GET", path.format("b")).json()["permissions"] == ["storage.objects.get"]
    assert ask(server, "GET", path.format("none")).status_code == 404


def test_one_server_a_folder(tmp_path: Path) -> None:
    """A second server on the folder does not start, in this process or another; after the first it does."""
    command = [sys.executable, "-c", "from dstl_dagster.cli import main; main()"]
    serve = [*command, "gcs-server", "--port", "0", "--folder", str(tmp_path)]
    with GCSServer(tmp_path):
        with pytest.raises(ConflictError):
            GCSServer(tmp_path)
        refused = subprocess.run(serve, check=False, capture_output=True, text=True, timeout=60)
        assert refused.returncode != 0
        assert "Traceback" not in refused.stderr
        assert str(tmp_path) in refused.stderr
    with GCSServer(tmp_path):
        pass


def test_the_journal_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was replaced or deleted leaves the journal and the folder, and nothing that is there is lost."""
    monkeypatch.setattr(model, "_MIN_LINES", 100)
    with GCSServer(tmp_path) as server:
        server.create_bucket("b")
        for number in range(150):
            assert insert(server, f"{number % 3}", str(number).encode()).status_code == 200
        written = (tmp_path / "journal.jsonl").read_bytes().count(b"\n")
        assert written < 110
        before = ask(server, "GET", "/storage/v1/b/b/o").json()
    (tmp_path / "payloads" / "1").write_bytes(b"of a change that was never answered for")
    with GCSServer(tmp_path) as server:
        assert ask(server, "GET", "/storage/v1/b/b/o").json() == before
        assert (tmp_path / "journal.jsonl").read_bytes().count(b"\n") == 4
        assert len(list((tmp_path / "payloads").iterdir())) == 3
        assert server.raw_read("b", "2") == b"149"


def test_a_journal_that_could_not_be_written_answers_for_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync every change is 503, reads go on, and what was answered for is there again."""
    with GCSServer(tmp_path) as server:
        server.create_bucket("b")
        insert(server, "a")

        def fail(_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            patch.setattr(Journal, "write_payload", lambda *_: None)
            assert insert(server, "b").status_code == 503
        assert insert(server, "c").status_code == 503
        assert ask(server, "GET", "/storage/v1/b/b/o/a").status_code == 200
    with GCSServer(tmp_path) as server:
        assert server.raw_read("b", "a") == b"x"
        assert insert(server, "c").status_code == 200
