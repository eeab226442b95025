"""Dagster's page in a thread of the test: its own web server over a workspace that is loaded here.

Owns the server. Does not own the workspace, or who looks at the page. Nothing is started beside the test: no
web server and no server of the code, which cost more than a day that is looked at.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster_webserver.app import create_app_from_workspace_process_context

START_SECONDS = 60.0
POLL_SECONDS = 0.02


@contextmanager
def served(process: WorkspaceProcessContext) -> Iterator[str]:
    """The page's URL, as long as the block lasts."""
    app = create_app_from_workspace_process_context(process)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, name="page")
    thread.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            assert thread.is_alive(), "the page's server ended"
            assert time.monotonic() < deadline, "the page's server did not start"
            time.sleep(POLL_SECONDS)
        (port,) = {each.getsockname()[1] for socket in server.servers for each in socket.sockets}
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(START_SECONDS)
