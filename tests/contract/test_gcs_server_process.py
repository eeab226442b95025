"""`dstl gcs-server` as a separate process, killed and restarted on its folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import GCSObjectStore
from dstl_dagster.storage.base import ABSENT
from dstl_dagster.storage.gcs.store import open_gcs

# A suite started in the background of a script ignores SIGINT, and its children would inherit that.
SERVE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from dstl_dagster.cli.gcs_server import gcs_server_command
gcs_server_command(sys.argv[1:])
"""


@contextmanager
def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "--port", "0", "--folder", str(folder), "--bucket", "bucket"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    try:
        key, _, url = process.stdout.readline().strip().partition("=")
        assert key == "STORAGE_EMULATOR_HOST"
        monkeypatch.setenv(key, url)
        yield process
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


def store() -> GCSObjectStore:
    return open_gcs("gs://bucket", GSFileSystemOptions(retry_max_attempt=2))


@pytest.mark.kill
def test_killed_server_has_what_it_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After SIGKILL the server has every object that it acknowledged, and writes continue."""
    with served(tmp_path / "objects", monkeypatch) as process:
        made = [store().put(f"a/{number}", b"x" * number, precondition=ABSENT) for number in range(20)]
        stream = GSRecoverableWriter(store()).open("gs://bucket/out")
        stream.write(b"first;")
        state = stream.persist()
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    with served(tmp_path / "objects", monkeypatch):
        assert list(store().list("a/")) == sorted(made, key=lambda stat: stat.name)
        resumed = GSRecoverableWriter(store()).recover(state)
        resumed.write(b"second")
        resumed.close_for_commit().commit()
        assert store().get("out") == b"first;second"
        assert [stat.name for stat in store().list(".inprogress")] == []


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_it_in_order(
    end: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, and a service manager, stop the server with a message and status 0."""
    with served(tmp_path / "objects", monkeypatch) as process:
        process.send_signal(end)
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert "stopped" in process.stdout.read()
