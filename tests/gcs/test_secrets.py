"""Secrets of a run, planted wherever a user has some, are in nothing that the run leaves.

The program runs in a process of its own: an op writes state and a file in Spark, Dagster's instance is a
folder, and the bucket is on the strict server. What is left is all of that folder, the bucket, temporary
files, and what the processes printed.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dstl_dagster.testing.gcs_server import GCSServer
from dstl_dagster.testing.gcs_server.handler import Handler
from dstl_dagster.testing.gcs_server.uploads import Sessions

pytestmark = [pytest.mark.spark, pytest.mark.dagster, pytest.mark.timeout(300)]

PROGRAM = """
import sys

import dagster as dg
import dstl_dagster as dstl
from google.cloud import storage
from google.oauth2.credentials import Credentials

how, endpoint = sys.argv[1:]

class Login(dg.ConfigurableResource):
    token: str
    endpoint: str

    def get_client(self):
        options = {"api_endpoint": self.endpoint}
        return storage.Client("shop", Credentials(self.token), client_options=options)


options = {
    "gs.retry.max-attempt": "2",
    "gs.writer.chunk.size": "256kb",
}
login = {}
if how != "emulator":
    options["gs.storage.root.url"] = endpoint
if how == "field":
    login = {"gcs": Login(token=dg.EnvVar("PLANTED_TOKEN"), endpoint=endpoint)}


@dg.op(out=dg.Out(dict))
def update(context, changelog: dstl.ChangelogStorageResource, spark: dstl.SparkSessionResource):
    with changelog.checkpoint(context, "orders") as batch:
        rows = spark.spark_session.range(0, 30_000, 1, 2).selectExpr("id", "uuid() AS u")
        batch.write_state(rows, operator="totals", keys=["id"])
        batch.write_files(rows, "gs://secrets/out/day.jsonl", single_file=True)
    return batch.reference


job = dstl.build_checkpoint_job("orders", update, separate_steps=True)
resources = {
    "changelog": dstl.ChangelogStorageResource(uri=dg.EnvVar("STORE"), options=options, **login),
    "spark": dstl.SparkSessionResource(),
}
with dg.DagsterInstance.get() as instance:
    defs = dg.Definitions(jobs=[job], resources=resources)
    run = defs.get_job_def("orders").execute_in_process(instance=instance, raise_on_error=False)
    print("OK" if run.success else "FAILED")
"""

NAIVE = """
import dstl_dagster.storage.gcs.client as client
import dstl_dagster.storage.gcs.errors as errors
import dstl_dagster.storage.gcs.transport as transport

client.cleaned = errors.cleaned = transport.cleaned = str
"""
"""As every process would begin that does not clean what a library says."""


@dataclass
class Planted:
    """The server, and every secret that a run may meet; ids of upload sessions come as they are opened."""

    server: GCSServer
    password: str = "pa55-0f-the-emulator"
    token: str = "t0ken-0f-a-resource"
    bearer: str = "b3arer-0f-the-account"
    key: str = ""
    sessions: list[str] = field(default_factory=list)
    assertions: list[str] = field(default_factory=list)
    token_status: int = 200
    lost_sessions: bool = False
    there: bool = True

    def secrets(self) -> set[str]:
        lines = [line for line in self.key.splitlines() if line and "-----" not in line]
        return {self.password, self.token, self.bearer, "k3y-id", *lines, *self.sessions, *self.assertions}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    """The strict server also answers for the tokens of keys, and repeats what it was sent in its refusals."""
    plain, start = Handler._serve, Sessions.start
    with GCSServer() as server:
        server.create_bucket("secrets")
        found = Planted(server)

        def serve(self: Handler) -> None:
            if self.path != "/token":
                plain(self)
                return
            sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
            found.assertions.append(sent.rpartition("assertion=")[2])
            answer = {"access_token": found.bearer, "expires_in": 3600}
            if found.token_status != 200:
                answer = {"error": "invalid_grant", "error_description": f"no: {sent}", "assertion": sent}
            body = json.dumps(answer).encode()
            self.send_response(found.token_status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def started(self: Sessions, *of: object) -> str:
            session = start(self, *of)  # type: ignore[arg-type]
            found.sessions.append(session)
            return session

        def start_session(self: Handler, *of: object) -> object:
            answer = begin(self, *of)  # type: ignore[arg-type]
            if found.lost_sessions:  # nobody listens where the rest of the upload goes
                there = answer.headers["Location"]
                answer.headers["Location"] = there.replace(server.url, f"http://127.0.0.1:{_closed_port()}")
            return answer

        begin = Handler._start_session
        monkeypatch.setattr(Handler, "_serve", serve)
        monkeypatch.setattr(Handler, "_start_session", start_session)
        monkeypatch.setattr(Sessions, "start", started)
        yield found


def _closed_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def _key_file(folder: Path, planted: Planted) -> Path:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    planted.key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    account = {
        "type": "service_account",
        "project_id": "shop",
        "private_key_id": "k3y-id",
        "private_key": planted.key,
        "client_email": "etl@shop.iam.gserviceaccount.com",
        "token_uri": f"{planted.server.url}/token",
    }
    file = folder / "key.json"
    file.write_text(json.dumps(account))
    return file


def _run(planted: Planted, folder: Path, how: str, *, naive: bool = False) -> tuple[str, bytes]:
    """Whether it succeeded, and all that it left."""
    places = {name: folder / name for name in ("home", "tmp", "cache")}
    for place in places.values():
        place.mkdir()
    (places["home"] / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    secrets, code = folder / "secrets", folder / "code"
    secrets.mkdir()
    code.mkdir()
    if naive:
        (code / "sitecustomize.py").write_text(NAIVE)
    url = planted.server.url if planted.there else f"http://127.0.0.1:{_closed_port()}"
    environment = {name: value for name, value in os.environ.items() if name != "STORAGE_EMULATOR_HOST"}
    environment |= {
        "DAGSTER_HOME": str(places["home"]),
        "TMPDIR": str(places["tmp"]),
        "XDG_CACHE_HOME": str(places["cache"]),
        "PLANTED_TOKEN": planted.token,
        "PYTHONPATH": os.pathsep.join([str(code), *sys.path]),
        "STORE": "gs://secrets/jobs",
        "GOOGLE_APPLICATION_CREDENTIALS": str(_key_file(secrets, planted)),
    }
    if how == "emulator":
        environment["STORAGE_EMULATOR_HOST"] = url.replace("://", f"://user:{planted.password}@")
    program = code / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), how, url],
        env=environment,
        capture_output=True,
        check=False,
    )
    said = done.stdout.decode().split()[-1:]
    left = [done.stdout, done.stderr]
    for place in places.values():
        left += [_all_of(file) for file in place.rglob("*") if file.is_file()]
    with planted.server._model.lock:
        for stored in planted.server._model.names_from("secrets", b"", 10_000):
            left += [_opened(stored.payload), repr(stored).encode()]
    return (said or [done.stderr.decode()[-3000:]])[0], b"\n".join(left)


def _all_of(file: Path) -> bytes:
    """Of a database also each value: a long one lies in several pages."""
    raw = file.read_bytes()
    if not raw.startswith(b"SQLite format 3"):
        return _opened(raw)
    values = [raw]
    with sqlite3.connect(file) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in database.execute(f'SELECT * FROM "{table}"'):
                values += [_opened(each if isinstance(each, bytes) else str(each).encode()) for each in row]
    return b"\n".join(values)


def _opened(value: bytes) -> bytes:
    try:
        return value + b"\n" + zlib.decompress(value)
    except zlib.error:
        return value


def _leaked(planted: Planted, left: bytes) -> list[str]:
    return [secret for secret in planted.secrets() if secret.encode() in left]


@pytest.mark.soak
@pytest.mark.parametrize("how", ["emulator", "field"])
def test_a_green_run_leaves_none(planted: Planted, tmp_path: Path, how: str) -> None:
    """With a password in the emulator's address; with a resource's token, and a key for Spark's tasks."""
    outcome, left = _run(planted, tmp_path, how)
    assert outcome == "OK", left[-3000:]
    assert _leaked(planted, left) == []
    assert planted.sessions
    assert b"orders" in left
    assert bool(planted.assertions) == (how != "emulator")


FAILURES = [
    ("emulator", {"lost_sessions": True}, b"Connection refused"),
    ("emulator", {"there": False}, b"Connection refused"),
    ("key", {"token_status": 503}, b"invalid_grant"),
    ("field", {"token_status": 400}, b"invalid_grant"),
]


# Each is a run in a process of its own: the long form makes all of them.
@pytest.mark.parametrize(
    ("how", "fault", "said"),
    [FAILURES[0], *(pytest.param(*each, marks=pytest.mark.soak) for each in FAILURES[1:])],
)
def test_a_failed_run_leaves_none(
    planted: Planted, tmp_path: Path, how: str, fault: dict[str, object], said: bytes
) -> None:
    """An upload whose server is gone, a service that is away, and a refused token: each is said, cleaned."""
    vars(planted).update(fault)
    outcome, left = _run(planted, tmp_path, how)
    assert outcome == "FAILED", left[-3000:]
    assert _leaked(planted, left) == []
    assert said in left


@pytest.mark.soak
@pytest.mark.parametrize(("how", "fault"), [each[:2] for each in (FAILURES[0], FAILURES[2])])
def test_without_cleaning_they_would_be_there(
    planted: Planted, tmp_path: Path, how: str, fault: dict[str, object]
) -> None:
    """What the tests above look through does have the texts of libraries."""
    vars(planted).update(fault)
    outcome, left = _run(planted, tmp_path, how, naive=True)
    assert outcome == "FAILED"
    assert _leaked(planted, left)
