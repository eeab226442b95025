"""HTTP to the model: routes, parameters, responses, and injected faults.

Owns the wire. Does not own what a request does (`model`, `uploads`), or the form of a batch (`batch`).
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from dstl_dagster.testing.gcs_server.batch import BatchPart, batch_answer, batch_parts
from dstl_dagster.testing.gcs_server.faults import FaultKind, FaultPlan, ServerFault
from dstl_dagster.testing.gcs_server.listing import bucket_list, object_list, rewrite
from dstl_dagster.testing.gcs_server.model import Model
from dstl_dagster.testing.gcs_server.objects import ApiError, Preconditions, StoredObject
from dstl_dagster.testing.gcs_server.refusals import check_built_settings
from dstl_dagster.testing.gcs_server.uploads import Sessions, parse_content_range
from dstl_dagster.testing.gcs_server.wire import (
    Answer,
    bucket_name,
    conditions,
    error_answer,
    hashes,
    json_object,
    multipart,
    number,
    object_answer,
    read_body,
    without_empty_sizes,
)

__all__ = ["Handler", "ServerState"]

_T = TypeVar("_T")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class ServerState:
    """Shared by all connections. `wait(seconds)` waits, or returns early when the server stops."""

    omit_empty_sizes: Callable[[], bool]
    model: Model
    sessions: Sessions
    faults: FaultPlan
    url: Callable[[], str]
    wait: Callable[[float], None]
    count: Callable[[str], None]
    count_answer: Callable[[int, int, int], None]  # status, bytes received, bytes sent: of bodies alone


@dataclass(frozen=True)
class _Call:
    method: str
    name: str
    perform: Callable[[], Answer]


class _Dropped(Exception):  # noqa: N818 (not an error: the connection is to be cut)
    pass


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # with it, each small answer waits 40 ms for an acknowledgement
    state: ClassVar[ServerState]
    _received = 0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Silent, to keep test output clean."""

    def do_GET(self) -> None:
        """All methods take the same path."""
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 (as above)

    def _serve(self) -> None:
        # Read the whole body first: unread bytes would corrupt the next request on the connection.
        try:
            body = read_body(self.headers, self.rfile)
        except ApiError as error:
            # Where the next request starts is unknown.
            self.close_connection = True
            self._send(error_answer(error), [])
            return
        if body is None:
            # The client died midway: the request never arrived.
            self.close_connection = True
            return
        self._received = len(body)
        try:
            call = _refusing_malformed(lambda: self._route(body))
            self.state.count(call.method)
            faults = self.state.faults.take(call.method, call.name)
            answer = self._perform(call, faults)
            self._send(answer, faults)
        except ApiError as error:
            self._send(error_answer(error), [])
        except _Dropped:
            self._reset()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _perform(self, call: _Call, faults: list[ServerFault]) -> Answer:
        for fault in faults:
            if fault.kind is FaultKind.LATENCY:
                self.state.wait(fault.seconds)
            elif fault.kind is FaultKind.STATUS:
                raise ApiError(fault.status, "backendError", f"Injected {fault.status}", fault.retry_after)
            elif fault.kind is FaultKind.MISMATCH:
                raise ApiError(400, "invalid", "Provided CRC32C 'AAAAAA==' doesn't match calculated CRC32C.")
            elif fault.kind is FaultKind.RESET:
                raise _Dropped
            elif fault.kind is FaultKind.STALL:
                self.state.wait(fault.seconds)
                raise _Dropped
        dropped = any(fault.kind is FaultKind.DROP_ANSWER for fault in faults)
        try:
            answer = _refusing_malformed(call.perform)
        except ApiError:
            if dropped:
                raise _Dropped from None
            raise
        if dropped:
            raise _Dropped
        return answer

    # -- routes

    def _route(self, body: bytes) -> _Call:
        split = urlsplit(self.path)
        # The path is split before it is unquoted: a name's own slashes are %2F.
        parts = [unquote(part) for part in split.path.split("/") if part]
        query = {key: values[-1] for key, values in parse_qs(split.query, keep_blank_values=True).items()}
        if parts[:1] == ["upload"]:
            return self._route_upload(parts[1:], query, body)
        if parts == ["batch", "storage", "v1"] and self.command == "POST":
            inner = batch_parts(self.headers.get("Content-Type", ""), body)
            return _Call("batch", "", lambda: batch_answer((part, self._part_answer(part)) for part in inner))
        media = parts[:1] == ["download"] or query.get("alt") == "media"
        parts = parts[1:] if parts[:1] == ["download"] else parts
        if parts[:3] != ["storage", "v1", "b"]:
            raise ApiError(404, "notFound", f"No such path: {split.path}")
        return self._route_bucket(self.command, parts[3:], query, body, media)

    def _part_answer(self, part: BatchPart) -> Answer:
        """The answer to one part of a batch. It is no HTTP request, so it is not counted as one."""
        try:
            if part.path[:3] != ["storage", "v1", "b"] or len(part.path) != 6:
                raise ApiError(400, "badRequest", "A batch takes calls on objects alone.")
            call = self._route_bucket(part.command, part.path[3:], part.query, part.body, media=False)
            hits = self.state.faults.take(call.method, call.name)
            # The way to the service is the batch's, once for all of its parts.
            answer = self._perform(call, [each for each in hits if each.kind is not FaultKind.LATENCY])
        except ApiError as error:
            answer = error_answer(error)
        except _Dropped:
            answer = error_answer(ApiError(503, "backendError", "The part has no answer."))
        self.state.count_answer(answer.status, 0, 0)
        return answer

    def _route_bucket(
        self, command: str, parts: list[str], query: dict[str, str], body: bytes, media: bool
    ) -> _Call:
        model = self.state.model
        match command, parts:
            case "POST", []:
                document = json_object(body)
                name = bucket_name(document)
                check_built_settings(document)
                return _Call("buckets.insert", "", lambda: Answer(200, model.create_bucket(name, document)))
            case "GET", []:
                return _Call("buckets.list", "", lambda: Answer(200, bucket_list(model)))
            case "GET", [bucket]:
                return _Call("buckets.get", "", lambda: Answer(200, model.bucket_resource(bucket)))
            case "DELETE", [bucket]:
                return _Call("buckets.delete", "", lambda: _after(lambda: model.delete_bucket(bucket)))
            case "GET", [bucket, "iam", "testPermissions"]:
                model.bucket_resource(bucket)
                wanted = parse_qs(urlsplit(self.path).query).get("permissions", [])
                answer = {"kind": "storage#testIamPermissionsResponse", "permissions": wanted}
                return _Call("buckets.testPermissions", "", lambda: Answer(200, answer))
            case "GET", [bucket, "o"]:
                return _Call("objects.list", "", lambda: Answer(200, object_list(model, bucket, query)))
            case _, [bucket, "o", name, *rest]:
                return self._route_object(command, (bucket, name), rest, query, body, media)
            case _:
                raise ApiError(404, "notFound", f"No such method: {command} {self.path}")

    def _route_object(
        self,
        command: str,
        place: tuple[str, str],
        rest: list[str],
        query: dict[str, str],
        body: bytes,
        media: bool,
    ) -> _Call:
        bucket, name = place
        model = self.state.model
        asked = conditions(query)
        generation = number(query, "generation")
        match command, rest:
            case "GET", [] if media:
                return _Call(
                    "objects.download",
                    name,
                    lambda: self._download(model.find(bucket, name, generation, asked)),
                )
            case "GET", []:
                return _Call(
                    "objects.get",
                    name,
                    lambda: object_answer(model.find(bucket, name, generation, asked)),
                )
            case "PATCH", []:
                return _Call(
                    "objects.patch",
                    name,
                    lambda: object_answer(model.patch(bucket, name, json_object(body), asked)),
                )
            case "DELETE", []:
                return _Call(
                    "objects.delete",
                    name,
                    lambda: _after(lambda: model.delete(bucket, name, generation, asked)),
                )
            case "POST", ["compose"]:
                return _Call(
                    "objects.compose",
                    name,
                    lambda: object_answer(model.compose(bucket, name, json_object(body), asked)),
                )
            case "POST", ["rewriteTo", "b", to_bucket, "o", to_name]:
                return _Call(
                    "objects.rewrite",
                    to_name,
                    lambda: rewrite(model, (bucket, name), (to_bucket, to_name), query, json_object(body)),
                )
            case _:
                raise ApiError(404, "notFound", f"No such method: {command} {self.path}")

    def _route_upload(self, parts: list[str], query: dict[str, str], body: bytes) -> _Call:
        if parts[:3] != ["storage", "v1", "b"] or parts[4:] != ["o"]:
            raise ApiError(404, "notFound", f"No such path: {self.path}")
        bucket, kind = parts[3], query.get("uploadType")
        if "upload_id" in query:
            return self._route_session(query["upload_id"], body)
        model, asked = self.state.model, conditions(query)
        declared = hashes(self.headers.get("X-Goog-Hash"))
        if kind == "media":
            resource: dict[str, Any] = {"contentType": self.headers.get("Content-Type"), **declared}
            payload = body
        elif kind == "multipart":
            resource, payload = multipart(self.headers.get("Content-Type", ""), body)
        elif kind == "resumable":
            document = json_object(body)
            name = str(document.get("name") or query.get("name", ""))
            return _Call("upload.start", name, lambda: self._start_session(bucket, name, document, asked))
        else:
            raise ApiError(400, "badRequest", f"uploadType {kind!r} is unknown")
        name = str(resource.get("name") or query.get("name", ""))
        return _Call(
            "objects.insert",
            name,
            lambda: object_answer(model.insert(bucket, name, payload, resource, asked)),
        )

    def _start_session(
        self, bucket: str, name: str, document: dict[str, Any], conditions: Preconditions
    ) -> Answer:
        session_id = self.state.sessions.start(bucket, name, document, conditions)
        location = (
            f"{self.state.url()}/upload/storage/v1/b/{quote(bucket, safe='')}/o"
            f"?uploadType=resumable&upload_id={session_id}"
        )
        return Answer(200, headers={"Location": location, "X-GUploader-UploadID": session_id})

    def _route_session(self, session_id: str, body: bytes) -> _Call:
        sessions = self.state.sessions
        if self.command == "DELETE":
            return _Call("upload.cancel", "", lambda: _after(lambda: sessions.cancel(session_id), 499))
        session = sessions.find(session_id)
        span = parse_content_range(self.headers.get("Content-Range"), len(body))
        ends = span.last is not None and span.last + 1 == span.total
        method = "upload.status" if span.first is None else "upload.finish" if ends else "upload.chunk"
        declared = hashes(self.headers.get("X-Goog-Hash"))

        def receive() -> Answer:
            made = sessions.receive(session, span, body, declared)
            if made is not None:
                return object_answer(made)
            received = len(session.received)
            return Answer(308, headers={"Range": f"bytes=0-{received - 1}"} if received else {})

        return _Call(method, session.name, receive)

    def _download(self, stored: StoredObject) -> Answer:
        headers = {
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Metageneration": str(stored.metageneration),
            "X-Goog-Stored-Content-Length": str(len(stored.payload)),
            "X-Goog-Stored-Content-Encoding": "identity",
            "X-Goog-Hash": f"crc32c={stored.crc32c}" + (f",md5={stored.md5}" if stored.md5 else ""),
            "Content-Type": stored.content_type,
        }
        wanted = self.headers.get("Range")
        match = _RANGE.fullmatch(wanted) if wanted else None
        if match is None or match.groups() == ("", ""):
            return Answer(200, body=stored.payload, headers=headers)
        size = len(stored.payload)
        if match.group(1):
            first = int(match.group(1))
            last = min(size - 1, int(match.group(2))) if match.group(2) else size - 1
        else:
            first, last = max(0, size - int(match.group(2))), size - 1
        if first >= size:
            raise ApiError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        return Answer(206, body=stored.payload[first : last + 1], headers=headers)

    # -- answers

    def _send(self, answer: Answer, faults: list[ServerFault]) -> None:
        body = answer.body
        if body is None:
            document = answer.document
            if self.state.omit_empty_sizes():
                document = without_empty_sizes(document)
            body = b"" if document is None else json.dumps(document).encode()
        headers = {"Content-Type": "application/json; charset=UTF-8", **(answer.headers or {})}
        kinds = {fault.kind for fault in faults}
        if FaultKind.GARBLE in kinds:
            body = b"<html>"
        sent = body
        if FaultKind.CORRUPT in kinds and body:
            middle = len(body) // 2
            sent = body[:middle] + bytes((body[middle] ^ 0x40,)) + body[middle + 1 :]
        if FaultKind.CUT in kinds:
            sent = body[: len(body) // 2]
        self.send_response(answer.status)
        for key, value in headers.items():
            self.send_header(key, value)
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.state.count_answer(answer.status, self._received, len(sent))
        self.wfile.write(sent)
        if len(sent) < len(body):
            self._reset()

    def _reset(self) -> None:
        # With a zero linger, closing sends a reset instead of an orderly end.
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


def _refusing_malformed(step: Callable[[], _T]) -> _T:
    """As the service does: 400 for a request that does not fit the API, 503 if the disk fails."""
    try:
        return step()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ApiError(400, "invalid", f"Malformed request: {error!r}") from error
    except OSError as error:
        raise ApiError(503, "backendError", f"The server's disk failed: {error}") from error


def _after(step: Callable[[], None], status: int = 204) -> Answer:
    step()
    return Answer(status)
