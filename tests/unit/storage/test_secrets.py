"""No secret of a request is in what a failure leaves: messages, chained exceptions, logs, stderr."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import google.api_core.exceptions
import google.auth.exceptions
import pytest
import requests
import urllib3.exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.errors import DstlError, InvalidInputError
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import ABSENT, ANY, GCSObjectStore, RetryPolicy
from dstl_dagster.storage.gcs.client import shared_client
from dstl_dagster.storage.gcs.errors import cleaned, with_translated_errors
from dstl_dagster.storage.policy.retry import Retries
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.testing.virtual_clock import VirtualClock

SECRET = "s3cr3t-0f-th3-r3qu3st"
KEY = f"-----BEGIN PRIVATE KEY-----\\nMIIE{SECRET}\\n-----END PRIVATE KEY-----\\n"
TEXTS = [
    f"Max retries exceeded with url: /upload/b/b/o?uploadType=resumable&upload_id={SECRET} (Caused by x)",
    f"GET https://storage.googleapis.com/b/o?X-Goog-Signature={SECRET}&X-Goog-Expires=5: refused",
    f"Failed to parse: http://user:{SECRET}@127.0.0.1:4443/storage",
    f"Failed to parse: http://user:pa/ss#{SECRET}@127.0.0.1:4443/storage",
    f"headers {{'Authorization': 'Bearer {SECRET}', 'Accept': '*'}}",
    f"authorization: Bearer {SECRET}",
    json.dumps({"access_token": SECRET, "expires_in": 3599}),
    json.dumps({"private_key_id": SECRET, "private_key": KEY, "client_email": "a@b"}),
    repr({"refresh_token": SECRET, "client_secret": SECRET}),
    json.dumps(json.dumps({"private_key": KEY})),
    f"grant_type=refresh_token&refresh_token={SECRET}&client_secret={SECRET}",
    f'(\'invalid_grant\', b\'{{"error": "x", "assertion": "{SECRET}\')',
    f"could not load {KEY[:40]}",
    f"upload_id={SECRET}",
    f"token ya29.{SECRET} of eyJhbGciOi.{SECRET}.{SECRET}",
]


def left(error: BaseException) -> str:
    """All that can be made of an exception: texts, attributes, and the same of those before it."""
    seen: list[str] = []
    waiting: list[BaseException] = [error]
    while waiting:
        each = waiting.pop()
        seen += [str(each), repr(each), repr(each.args), repr(vars(each))]
        seen.append("".join(traceback.format_exception(each)))
        with contextlib.suppress(Exception):
            seen.append(repr(pickle.dumps(each)))
        waiting += [before for before in (each.__cause__, each.__context__) if before is not None]
    return "\n".join(seen)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_cleaned(text: str) -> None:
    """Whatever holds the secret, and wherever it stands in it."""
    for shown in (text, f"before {text} after", f"{'x ' * 30}{text}", f"({text})"):
        assert SECRET not in cleaned(shown)


@pytest.mark.parametrize(
    "text",
    [
        "[Errno 111] Connection refused",
        "HTTPConnectionPool(host='127.0.0.1', port=4443): Read timed out. (read timeout=60)",
        "The object b/dstl/orders/timeline/00000000000000000007 exceeded the rate limit for object mutation",
        "Is it there? key: value, token expired",
    ],
)
def test_what_helps_stays(text: str) -> None:
    """A text without secrets is as it was; a long one is cut."""
    assert cleaned(text) == text
    assert len(cleaned(text * 1000)) <= 300


RAISED: list[Callable[[str], Exception]] = [
    requests.exceptions.ConnectionError,
    requests.exceptions.InvalidURL,
    requests.exceptions.ReadTimeout,
    urllib3.exceptions.ProtocolError,
    ConnectionResetError,
    TimeoutError,
    google.api_core.exceptions.ServiceUnavailable,
    google.api_core.exceptions.Forbidden,
    google.api_core.exceptions.BadRequest,
    lambda text: google.api_core.exceptions.RetryError(text, ConnectionError(text)),
    google.auth.exceptions.TransportError,
    lambda text: google.auth.exceptions.RefreshError(text, {"body": text}),
    lambda text: google.auth.exceptions.RefreshError(text, retryable=True),
    google.auth.exceptions.DefaultCredentialsError,
    google.auth.exceptions.MalformedError,
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("made", RAISED)
def test_an_exception_of_a_library_does_not_leave(made: Callable[[str], Exception], text: str) -> None:
    """Ours takes its place, without it as cause or context, and says which one it was."""
    raised = made(text)

    def request() -> None:
        try:
            raise urllib3.exceptions.HTTPError(text)
        except urllib3.exceptions.HTTPError as before:
            raise raised from before

    with pytest.raises(DstlError) as caught:
        with_translated_errors("gs://b/o", request)
    assert SECRET not in left(caught.value)
    assert type(raised).__name__ in left(caught.value)


@pytest.mark.parametrize("content", ["{", KEY, json.dumps({"type": "service_account", "private_key": KEY})])
def test_a_key_file_that_is_none(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, and nothing of the file."""
    path = tmp_path / "key.json"
    path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    with pytest.raises(InvalidInputError, match="no Google credentials") as caught:
        shared_client.__wrapped__(0, None, None)
    assert SECRET not in left(caught.value)


@pytest.fixture
def server() -> Iterator[GCSServer]:
    with GCSServer() as server:
        server.create_bucket("b")
        yield server


@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.STATUS, FaultKind.GARBLE, FaultKind.DROP_ANSWER])
@pytest.mark.parametrize("method", ["upload.*", "objects.*", "*"])
def test_what_a_faulted_run_leaves(
    server: GCSServer, kind: FaultKind, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every request of a store whose address holds a password, with sessions whose ids are noted."""
    split = urlsplit(server.url)
    client = storage.Client(
        project="test",
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": f"http://user:{SECRET}@{split.netloc}"},
    )
    secrets = {SECRET}
    send = client._http.request

    def noted(method: str, url: str, *rest: object, **how: object) -> requests.Response:
        secrets.update(parse_qs(urlsplit(url).query).get("upload_id", []))
        return send(method, url, *rest, **how)

    client._http.request = noted  # type: ignore[method-assign]
    retries = Retries(RetryPolicy(max_attempts=2), clock=VirtualClock())
    store = GCSObjectStore(client, "b", options=GSFileSystemOptions(), retries=retries)
    errors, messages, stderr = [], [], io.StringIO()
    with contextlib.redirect_stderr(stderr), caplog.at_level(logging.INFO):
        store.put("there", b"x", precondition=ANY)
        for skip in range(4):
            server.faults.clear()
            server.faults.add(ServerFault(kind, method, times=None, skip=skip))
            for step in (
                lambda: store.put("a", b"x" * 10, precondition=ABSENT),
                lambda: stream(store),
                lambda: store.get("there"),
                lambda: store.get_range("there", 0, 1),
                lambda: store.stat("there"),
                lambda: list(store.list()),
                lambda: store.delete_all([("c", ANY)]),
                lambda: store.delete("c", precondition=ANY),
            ):
                try:
                    step()
                except DstlError as error:
                    errors.append(left(error))
                    messages.append(error.message)
    client.close()
    assert errors
    shown = "\n".join([*errors, caplog.text, stderr.getvalue(), repr(store), store.uri])
    assert [secret for secret in secrets if secret in shown] == []
    assert len(secrets) > 1
    if kind is FaultKind.STATUS:  # the object and the service's sentence, not a URL and a document
        assert [each for each in messages if "'gs://b" not in each or "{" in each or "http" in each] == []


def stream(store: GCSObjectStore) -> None:
    writer = store.open_write("streamed", precondition=ANY, chunk_size=256 * 1024)
    try:
        writer.write(b"x" * 600 * 1024)
        writer.close()
    finally:
        writer.abort()
