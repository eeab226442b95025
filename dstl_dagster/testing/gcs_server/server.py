"""Starting and stopping the strict server. Owns the socket and the threads."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from dstl_dagster.testing.gcs_server.faults import FaultPlan
from dstl_dagster.testing.gcs_server.handler import Handler, ServerState
from dstl_dagster.testing.gcs_server.model import Model
from dstl_dagster.testing.gcs_server.objects import Preconditions
from dstl_dagster.testing.gcs_server.uploads import Sessions

__all__ = ["GCSServer"]


class GCSServer:
    """A server on loopback, from `start` (or `with`) to `stop`.

    Args:
        folder: persists objects there, across kills; None: in memory, gone with the server.
        port: 0 picks a free one.
        one_update_a_second: limit each object to one change per second (429 beyond).
        omit_empty_sizes: omit `size` from the resources of empty objects, as the service may. The attribute
            of this name changes it while the server runs.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int = 0,
        one_update_a_second: bool = False,
        omit_empty_sizes: bool = False,
    ) -> None:
        self._model = Model(folder, one_update_a_second=one_update_a_second)
        self._stopping = threading.Event()
        self._counts: collections.Counter[str] = collections.Counter()
        self._statuses: collections.Counter[int] = collections.Counter()
        self._body_bytes = (0, 0)
        self._count_lock = threading.Lock()
        self.faults = FaultPlan()
        self.omit_empty_sizes = omit_empty_sizes
        state = ServerState(
            omit_empty_sizes=lambda: self.omit_empty_sizes,
            model=self._model,
            sessions=Sessions(self._model),
            faults=self.faults,
            url=lambda: self.url,
            wait=lambda seconds: _ignore(self._stopping.wait(seconds)),
            count=self._count,
            count_answer=self._count_answer,
        )
        handler = type("BoundHandler", (Handler,), {"state": state})
        self._http = _HTTPServer(("127.0.0.1", port), handler)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port`, for `STORAGE_EMULATOR_HOST` or a client's endpoint."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def counts(self) -> dict[str, int]:
        """Requests so far by API method, including failed ones."""
        with self._count_lock:
            return dict(self._counts)

    @property
    def statuses(self) -> dict[int, int]:
        """Answers so far by HTTP status, those to the parts of a batch included."""
        with self._count_lock:
            return dict(self._statuses)

    @property
    def body_bytes(self) -> tuple[int, int]:
        """Bytes of bodies so far: (received, sent)."""
        with self._count_lock:
            return self._body_bytes

    def reset_counts(self) -> None:
        """Reset all counts to zero."""
        with self._count_lock:
            self._counts.clear()
            self._statuses.clear()
            self._body_bytes = (0, 0)

    def create_bucket(self, name: str, **resource: Any) -> None:
        """Create a bucket without HTTP. Does nothing if it exists.

        With `encryption={"defaultKmsKeyName": ...}`, listings omit the checksums of its objects.
        """
        if name not in self._model.bucket_names():
            self._model.create_bucket(name, resource)

    def raw_write(self, bucket: str, name: str, payload: bytes) -> None:
        """Create an object, or a new generation of it, without HTTP."""
        self._model.insert(bucket, name, payload, {}, Preconditions())

    def raw_read(self, bucket: str, name: str) -> bytes | None:
        """An object's bytes without HTTP; None if it does not exist."""
        with self._model.lock:
            stored = next(iter(self._model.names_from(bucket, name.encode(), 1)), None)
        return stored.payload if stored is not None and stored.name == name else None

    def start(self) -> GCSServer:
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, name="gcs-server", daemon=True
        )
        self._thread.start()
        return self

    def serve_forever(self) -> None:
        """Serve in this thread, until interrupted."""
        self._http.serve_forever()

    def stop(self) -> None:
        """End all connections and free the port. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._http.shutdown()
            self._thread.join()
            self._thread = None
        self._http.end_connections()
        self._http.server_close()
        self._model.close()

    def __enter__(self) -> GCSServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _count(self, method: str) -> None:
        with self._count_lock:
            self._counts[method] += 1

    def _count_answer(self, status: int, received: int, sent: int) -> None:
        with self._count_lock:
            self._statuses[status] += 1
            self._body_bytes = (self._body_bytes[0] + received, self._body_bytes[1] + sent)


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type) -> None:
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection cut by its client or by a fault; print anything else."""
        import sys

        if not isinstance(sys.exception(), ConnectionError | OSError):
            super().handle_error(request, client_address)

    def end_connections(self) -> None:
        with self._open_lock:
            still_open = list(self._open)
        for connection in still_open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _ignore(_: object) -> None: ...
