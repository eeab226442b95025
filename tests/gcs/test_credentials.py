"""Credentials, as docs/storage/gcs.md has them: a resource's in the control plane, a machine's in tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dstl_dagster.testing.gcs_server import GCSServer
from dstl_dagster.testing.gcs_server.handler import Handler

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
import sys

import dagster as dg
import dstl_dagster as dstl
from google.cloud import storage
from google.oauth2.credentials import Credentials

uri, endpoint, key_file = sys.argv[1:]


class OtherCredentials(dg.ConfigurableResource):
    endpoint: str

    def get_client(self):
        token = Credentials("of-the-resource")
        return storage.Client("shop", token, client_options={"api_endpoint": self.endpoint})


changelog = dstl.ChangelogStorageResource(
    uri=uri, gcs=OtherCredentials(endpoint=endpoint), options={"gs.storage.root.url": endpoint}
)
spark = dstl.SparkSessionResource(conf={"spark.executorEnv.GOOGLE_APPLICATION_CREDENTIALS": key_file})


@dstl.checkpointed_asset("orders", keys=["id"])
def totals(context, spark: dstl.SparkSessionResource):
    return spark.spark_session.range(0, 300_000, 1, 2)  # more than a task hands to the driver


assert dg.materialize([totals], resources={"changelog": changelog, "spark": spark}).success
"""


class Heard:
    """What the service was asked for, and with which token."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []

    def names(self, token: str, method: str) -> str:
        return " ".join(
            path for by, asked, path in self.requests if (by, asked) == (f"Bearer {token}", method)
        )


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """The strict server also gives tokens for keys, and writes down those that come with requests."""
    found, plain = Heard(), Handler._serve

    def serve(self: Handler) -> None:
        if self.path != "/token":
            found.requests.append((self.headers.get("Authorization", ""), self.command, self.path))
            plain(self)
            return
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = json.dumps({"access_token": "of-the-executors", "expires_in": 3600}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    monkeypatch.setattr(Handler, "_serve", serve)
    return found


def _key_file(folder: Path, service: str) -> Path:
    """Of a service account, whose tokens the service gives."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "executors.json"
    account = {
        "type": "service_account",
        "project_id": "shop",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": "executors@shop.iam.gserviceaccount.com",
        "token_uri": f"{service}/token",
    }
    file.write_text(json.dumps(account))
    return file


def test_a_resources_credentials_stay_in_the_control_plane(
    strict_gcs: GCSServer, heard: Heard, tmp_path: Path
) -> None:
    """It decides with them; tasks write the state with the key that their environment names."""
    strict_gcs.create_bucket("credentials")
    environment = {name: value for name, value in os.environ.items() if name != "STORAGE_EMULATOR_HOST"}
    key_file = _key_file(tmp_path, strict_gcs.url)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "gs://credentials/jobs", strict_gcs.url, str(key_file)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {by for by, _, _ in heard.requests} == {"Bearer of-the-resource", "Bearer of-the-executors"}
    assert heard.names("of-the-executors", "POST")
    assert "timeline" in heard.names("of-the-resource", "GET")
    assert "timeline" not in heard.names("of-the-executors", "GET")
    left = done.stdout + done.stderr
    assert "of-the-executors" not in left
    assert "PRIVATE KEY" not in left
