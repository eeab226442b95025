"""Secrets of a run, planted wherever a user has some, are in nothing that the run leaves; and who uses which.

As docs/storage/gcs.md has them, a resource's credentials stay in the control plane, and executors have their
own. The program runs in a process of its own: an op writes state and a file in Spark, Dagster's instance is
a folder, and the bucket is on the strict server. What is left is all of that folder, the bucket, temporary
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
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dstl_dagster.testing.gcs_server import GCSServer
from dstl_dagster.testing.gcs_server.handler import Handler
from dstl_dagster.testing.gcs_server.uploads import Sessions
from tests.sessions import QUICK

pytestmark = [pytest.mark.spark, pytest.mark.dagster, pytest.mark.timeout(300)]

PROGRAM = """
import sys

import dagster as dg
import dstl_dagster as dstl
from google.cloud import storage
from google.oauth2.credentials import Credentials

how, endpoint, key_file, *files = sys.argv[1:]

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
login, conf = {}, QUICK
if how != "emulator":
    options["gs.storage.root.url"] = endpoint
if how == "field":
    conf = QUICK | {"spark.executorEnv.GOOGLE_APPLICATION_CREDENTIALS": key_file}
    login = {"gcs": Login(token=dg.EnvVar("PLANTED_TOKEN"), endpoint=endpoint)}


@dg.op(out=dg.Out(dict), config_schema={"file": str})
def update(context, changelog: dstl.ChangelogStorageResource, spark: dstl.SparkSessionResource):
    with changelog.checkpoint(context, "orders") as batch:
        rows = spark.spark_session.range(0, 30_000, 1, 2).selectExpr("id", "uuid() AS u")
        batch.write_state(rows, operator="totals", keys=["id"])
        batch.write_files(rows, f"gs://secrets/out/{context.op_config['file']}", single_file=True)
    return batch.reference


job = dstl.build_checkpoint_job("orders", update, separate_steps=True)
resources = {
    "changelog": dstl.ChangelogStorageResource(uri=dg.EnvVar("STORE"), options=options, **login),
    "spark": dstl.SparkSessionResource(conf=conf),
}
with dg.DagsterInstance.get() as instance:
    defs = dg.Definitions(jobs=[job], resources=resources)
    for file in files:
        run = defs.get_job_def("orders").execute_in_process(
            instance=instance,
            run_config={"ops": {"update": {"config": {"file": file}}}},
            raise_on_error=False,
        )
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
    """The server, and every secret that a run may meet; ids of upload sessions come as they are opened.

    Attributes:
        requests: each with its token.
        lost: part of the names whose upload sessions are lost.
    """

    server: GCSServer
    password: str = "pa55-0f-the-emulator"
    token: str = "t0ken-0f-a-resource"
    bearer: str = "b3arer-0f-the-account"
    executors: str = "b3arer-0f-executors"
    key: str = ""
    sessions: list[str] = field(default_factory=list)
    assertions: list[str] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    token_status: int = 200
    lost: str | None = None
    there: bool = True

    def secrets(self) -> set[str]:
        lines = [line for line in self.key.splitlines() if line and "-----" not in line]
        tokens = {self.password, self.token, self.bearer, self.executors, "k3y-id"}
        return {*tokens, *lines, *self.sessions, *self.assertions}

    def asked(self, token: str, method: str) -> str:
        """The paths that came with a token."""
        return " ".join(
            path for by, asked, path in self.requests if (by, asked) == (f"Bearer {token}", method)
        )


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    """The strict server also answers for the tokens of keys, and repeats what it was sent in its refusals."""
    plain, start = Handler._serve, Sessions.start
    with GCSServer() as server:
        server.create_bucket("secrets")
        found = Planted(server)

        def serve(self: Handler) -> None:
            if not self.path.startswith("/token"):
                found.requests.append((self.headers.get("Authorization", ""), self.command, self.path))
                plain(self)
                return
            sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
            found.assertions.append(sent.rpartition("assertion=")[2])
            token = found.executors if self.path.endswith("/executors") else found.bearer
            answer = {"access_token": token, "expires_in": 3600}
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

        def start_session(self: Handler, bucket: str, name: str, *of: object) -> object:
            answer = begin(self, bucket, name, *of)  # type: ignore[arg-type]
            if found.lost is not None and found.lost in name:
                # Nothing listens where the rest of the upload goes.
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


def _key_files(folder: Path, planted: Planted) -> tuple[Path, Path]:
    """Of the account that a process finds, and of executors'."""
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
    }
    found, of_executors = folder / "key.json", folder / "executors.json"
    for file, path in ((found, "token"), (of_executors, "token/executors")):
        file.write_text(json.dumps({**account, "token_uri": f"{planted.server.url}/{path}"}))
    return found, of_executors


def _run(
    planted: Planted, folder: Path, how: str, *, naive: bool = False, files: Sequence[str] = ("day.jsonl",)
) -> tuple[list[str], bytes]:
    """Whether each run succeeded, one after another, and all that they left."""
    places = {name: folder / name for name in ("home", "tmp", "cache")}
    for place in places.values():
        place.mkdir()
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dstl-dagster"
    (places["cache"] / "dstl-dagster").mkdir()
    for each in cached.glob("*.jsa"):  # else Java would archive Spark's classes again
        (places["cache"] / "dstl-dagster" / each.name).symlink_to(each)
    (places["home"] / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    secrets, code = folder / "secrets", folder / "code"
    secrets.mkdir()
    code.mkdir()
    if naive:
        (code / "sitecustomize.py").write_text(NAIVE)
    url = planted.server.url if planted.there else f"http://127.0.0.1:{_closed_port()}"
    environment = {name: value for name, value in os.environ.items() if name != "STORAGE_EMULATOR_HOST"}
    found, of_executors = _key_files(secrets, planted)
    environment |= {
        "DAGSTER_HOME": str(places["home"]),
        "TMPDIR": str(places["tmp"]),
        "XDG_CACHE_HOME": str(places["cache"]),
        "PLANTED_TOKEN": planted.token,
        "PYTHONPATH": os.pathsep.join([str(code), *sys.path]),
        "STORE": "gs://secrets/jobs",
        "GOOGLE_APPLICATION_CREDENTIALS": str(found),
    }
    if how == "field":  # the driver has those of its resource alone
        del environment["GOOGLE_APPLICATION_CREDENTIALS"]
        environment["NO_GCE_CHECK"] = "true"
    if how == "emulator":
        environment["STORAGE_EMULATOR_HOST"] = url.replace("://", f"://user:{planted.password}@")
    program = code / "program.py"
    program.write_text(f"QUICK = {QUICK!r}\n{PROGRAM}")
    done = subprocess.run(
        [sys.executable, str(program), how, url, str(of_executors), *files],
        env=environment,
        capture_output=True,
        check=False,
    )
    said = done.stdout.decode().split()[-len(files) :]
    left = [done.stdout, done.stderr]
    for place in places.values():
        left += [_all_of(file) for file in place.rglob("*") if file.is_file() and not file.is_symlink()]
    with planted.server._model.lock:
        for stored in planted.server._model.names_from("secrets", b"", 10_000):
            left += [_opened(stored.payload), repr(stored).encode()]
    return said or [done.stderr.decode()[-3000:]], b"\n".join(left)


def _all_of(file: Path) -> bytes:
    """Of a database also each value: a long one lies in several pages."""
    raw = file.read_bytes()
    if not raw.startswith(b"SQLite format 3"):
        return _opened(raw)
    values = [raw]
    with closing(sqlite3.connect(file)) as database:
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


def test_a_green_run_and_a_failed_one_leave_none(planted: Planted, tmp_path: Path) -> None:
    """With a resource's token, which decides, and a key for executors, which write; then the upload of a file
    is lost.
    """
    planted.lost = "lost.jsonl"
    outcomes, left = _run(planted, tmp_path, "field", files=("day.jsonl", "lost.jsonl"))
    assert outcomes == ["OK", "FAILED"], left[-3000:]
    assert _leaked(planted, left) == []
    assert b"Connection refused" in left
    assert planted.sessions
    assert planted.assertions
    assert planted.asked(planted.executors, "POST")
    assert "timeline" in planted.asked(planted.token, "GET")
    for token in (planted.executors, planted.bearer):
        assert "timeline" not in planted.asked(token, "GET")


# Each of the others is a run in a process of its own: they are the long form.
@pytest.mark.soak
def test_a_green_run_leaves_no_password(planted: Planted, tmp_path: Path) -> None:
    """Of the emulator's address."""
    outcome, left = _run(planted, tmp_path, "emulator")
    assert outcome == ["OK"], left[-3000:]
    assert _leaked(planted, left) == []
    assert planted.sessions
    assert b"orders" in left
    assert not planted.assertions


FAILURES = [
    ("emulator", {"lost": ""}, b"Connection refused"),
    ("emulator", {"there": False}, b"Connection refused"),
    ("key", {"token_status": 503}, b"invalid_grant"),
    ("field", {"token_status": 400}, b"invalid_grant"),
]


@pytest.mark.soak
@pytest.mark.parametrize(("how", "fault", "said"), FAILURES)
def test_a_failed_run_leaves_none(
    planted: Planted, tmp_path: Path, how: str, fault: dict[str, object], said: bytes
) -> None:
    """An upload whose server is gone, a service that is away, and a refused token: each is said, cleaned."""
    vars(planted).update(fault)
    outcome, left = _run(planted, tmp_path, how)
    assert outcome == ["FAILED"], left[-3000:]
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
    assert outcome == ["FAILED"]
    assert _leaked(planted, left)
