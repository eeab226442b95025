"""Many deletions in one request: the JSON API's batches (`multipart/mixed`, one HTTP request in each part).

Owns the bytes of a batch and of its answer, and which parts are sent again. Does not own how the request is
made (`gcs.transport`), or what a status means (`gcs.errors`).

A batch is no transaction: each part has a status of its own. A part that the service was too busy for is sent
again, with the others that need it; an answered part is not.
"""

from __future__ import annotations

import email.message
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from dstl_dagster.errors import ConflictError, DstlError, NotFoundError, UnavailableError
from dstl_dagster.storage.accounting.cost import Cost, Operation
from dstl_dagster.storage.base import Precondition
from dstl_dagster.storage.gcs.errors import refusal, with_translated_errors
from dstl_dagster.storage.gcs.json_api import GCSNames, generation_match
from dstl_dagster.storage.gcs.transport import GCSTransport
from dstl_dagster.storage.policy.retry import RetryAttempt

_PATH = "/batch/storage/v1"
_CONTENT_ID = re.compile(r"^Content-ID:[^+\n]*\+([0-9]+)>?[ \t]*$", re.IGNORECASE | re.MULTILINE)
_NO_SUCH_METHOD = (404, 405, 501)
"""Of a batch as a whole: what is missing inside one is the answer to a part."""
Answer = bool | DstlError


class BatchesRefusedError(DstlError):
    """The service has no batches. Nothing was deleted."""


def batch_delete(
    transport: GCSTransport, names: GCSNames, objects: Sequence[tuple[str, Precondition]]
) -> Sequence[bool | ConflictError]:
    """Delete each object; one answer each, in their order. A missing object is False, as is a missing bucket.

    Of a part whose answer was lost, "not there" means that it is deleted now.

    Raises: BatchesRefusedError, or the first error of another kind, once all parts are answered or no try is
    left.
    """
    url = f"{transport.client._connection.API_BASE_URL}{_PATH}"
    answers: dict[int, Answer] = {}
    in_doubt: set[int] = set()

    def send(attempt: RetryAttempt) -> None:
        waiting = [at for at in range(len(objects)) if _is_open(answers.get(at))]
        boundary = f"batch-{uuid.uuid4()}"
        body = encoded_batch(boundary, {at: _delete_path(names, *objects[at]) for at in waiting})
        headers = {"Content-Type": f'multipart/mixed; boundary="{boundary}"'}
        # Billed by its parts, all of which are free, whether or not they succeed.
        transport.count(Cost.of(Operation.DELETE, number=len(waiting), again=attempt.in_doubt))
        lost_before = frozenset(in_doubt)
        in_doubt.update(waiting)
        reply = transport.send_uncounted(names.uri, "POST", url, headers, body, attempt)
        if reply.status in _NO_SUCH_METHOD:
            raise BatchesRefusedError(f"the service of {names.uri!r} takes no batches: {reply.status}")
        if reply.status != 200:
            raise refusal(reply.status, reply.text, names.uri)
        found = dict(decoded_batch(reply.headers.get("Content-Type", ""), reply.text))
        for at in waiting:
            uri = names.uri_of(objects[at][0])
            if at not in found:
                answers[at] = UnavailableError(f"no answer for {uri!r}")
                continue
            in_doubt.discard(at)
            answers[at] = _answer(uri, *found[at]) or at in lost_before
        lost = next((answers[at] for at in waiting if _is_open(answers[at])), None)
        if isinstance(lost, UnavailableError):
            raise lost

    if objects:
        # Not `ask`: that a batch was answered does not prove that the bucket exists.
        transport.retries.run(lambda attempt: with_translated_errors(names.uri, lambda: send(attempt)))
    ended = []
    for at in range(len(objects)):
        answer = answers[at]
        if isinstance(answer, DstlError) and not isinstance(answer, ConflictError):
            raise answer
        ended.append(answer)
    return ended


def _is_open(answer: Answer | None) -> bool:
    return answer is None or isinstance(answer, UnavailableError)


def _delete_path(names: GCSNames, name: str, precondition: Precondition) -> str:
    wanted = generation_match(precondition)
    query = "" if wanted is None else f"?ifGenerationMatch={wanted}"
    return f"/storage/v1/b/{names.bucket.name}/o/{quote(names.full_name(name), safe='')}{query}"


def _answer(uri: str, status: int, message: str) -> Answer:
    if 200 <= status < 300:
        return True
    error = refusal(status, message, uri)
    if isinstance(error, NotFoundError):
        return False
    assert isinstance(error, DstlError)
    return error


def encoded_batch(boundary: str, paths: Mapping[int, str]) -> bytes:
    """The body of a batch that deletes the resource at each path. The keys number the parts."""
    lines = []
    for number, path in paths.items():
        lines += [
            f"--{boundary}",
            "Content-Type: application/http",
            "Content-Transfer-Encoding: binary",
            f"Content-ID: <part+{number}>",
            "",
            f"DELETE {path} HTTP/1.1",
            "Content-Length: 0",
            "",
            "",
        ]
    return "\r\n".join([*lines, f"--{boundary}--", ""]).encode()


def decoded_batch(content_type: str, body: str) -> Iterator[tuple[int, tuple[int, str]]]:
    """(part, (status, message)) of each answer that can be read; a part that was cut off is left out."""
    # Not by the email package: of ten thousand deletions it took half the processor time.
    header = email.message.Message()
    header["Content-Type"] = content_type
    boundary = header.get_boundary()
    if not boundary:
        return
    _, *parts = re.split(rf"(?:\A|\r?\n)--{re.escape(boundary)}(?:--)?[ \t]*(?=\r?\n|\r?\Z)", body)
    for part in parts[:-1]:  # the last one is what follows the end, or was cut off
        head, _, payload = part.replace("\r\n", "\n").lstrip("\n").partition("\n\n")
        found = _CONTENT_ID.search(head)
        status_line, _, rest = payload.lstrip().partition("\n")
        words = status_line.split()
        if found and len(words) > 1 and words[1].isdigit():
            yield int(found[1]), (int(words[1]), _message(rest))


def _message(rest: str) -> str:
    """`error.message` of the JSON document behind the part's own headers, or the text as it is."""
    document = f"\n{rest}".partition("\n\n")[2].strip()
    if not document:
        return ""
    try:
        return str(json.loads(document)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return document
