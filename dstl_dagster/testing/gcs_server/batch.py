"""Batches: several calls in one `multipart/mixed` request, each with an answer of its own.

Owns the form of a batch and of its answer. Does not own what a call does (`handler`), nor its faults. As on
the service, a batch is no transaction, takes at most 100 calls, and neither uploads nor downloads.
"""

from __future__ import annotations

import email.message
import email.parser
import email.policy
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from dstl_dagster.testing.gcs_server.objects import ApiError
from dstl_dagster.testing.gcs_server.wire import Answer

__all__ = ["BatchPart", "batch_answer", "batch_parts"]

_MAX_CALLS = 100
_CALL = re.compile(rb"(DELETE|GET|PATCH) (\S+) HTTP/1\.1\r?\n(.*?)\r?\n\r?\n(.*)", re.DOTALL)
_BOUNDARY = "batch_answer"
_REASONS = {200: "OK", 204: "No Content", 404: "Not Found", 412: "Precondition Failed"}


@dataclass(frozen=True)
class BatchPart:
    """One call. `path`: its segments, unquoted one by one, since a name's own slashes are %2F."""

    content_id: str
    command: str
    path: list[str]
    query: dict[str, str]
    body: bytes


def batch_parts(content_type: str, body: bytes) -> list[BatchPart]:
    """The calls of a batch, in order. Raises: ApiError 400 for a malformed or oversized one."""
    head = f"Content-Type: {content_type}\r\nMIME-Version: 1.0\r\n\r\n".encode()
    document = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(head + body)
    if document.get_content_type() != "multipart/mixed" or not document.is_multipart():
        raise ApiError(400, "badRequest", "A batch is a multipart/mixed request.")
    sections = list(document.get_payload())
    if not 1 <= len(sections) <= _MAX_CALLS:
        raise ApiError(400, "badRequest", f"A batch takes 1 to {_MAX_CALLS} calls, not {len(sections)}.")
    return [_part(section) for section in sections]


def _part(section: email.message.Message) -> BatchPart:
    content_id = str(section.get("Content-ID", ""))
    match = _CALL.fullmatch(str(section.get_payload()).encode())
    if section.get_content_type() != "application/http" or match is None or not content_id:
        raise ApiError(400, "badRequest", f"Part {content_id!r} is not a call that a batch takes.")
    command, target, _headers, body = match.groups()
    split = urlsplit(target.decode())
    query = {key: values[-1] for key, values in parse_qs(split.query, keep_blank_values=True).items()}
    path = [unquote(part) for part in split.path.split("/") if part]
    return BatchPart(content_id, command.decode(), path, query, body)


def batch_answer(answers: Iterable[tuple[BatchPart, Answer]]) -> Answer:
    """The answer to the whole batch. Each part is performed as it is consumed."""
    lines: list[str] = []
    for part, answer in answers:
        body = "" if answer.document is None else json.dumps(answer.document)
        lines += [
            f"--{_BOUNDARY}",
            "Content-Type: application/http",
            f"Content-ID: <response-{part.content_id.strip('<>')}>",
            "",
            f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Other')}",
            "Content-Type: application/json; charset=UTF-8",
            f"Content-Length: {len(body)}",
            "",
            body,
        ]
    lines += [f"--{_BOUNDARY}--", ""]
    return Answer(
        200,
        body="\r\n".join(lines).encode(),
        headers={"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"},
    )
