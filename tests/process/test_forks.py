"""Processes that are forked without exec, and processes that are frozen, beside others on one store."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
import pytest

from dstl_dagster.errors import UnavailableError
from dstl_dagster.storage import ABSENT, LocalObjectStore
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault

HOLDER = """
import sys
from dstl_dagster.storage import LocalObjectStore
store = LocalObjectStore(sys.argv[1])
with store._writing.hidden.locked([f"{number}" for number in range(200)]):
    print("inside", flush=True)
    sys.stdin.readline()
"""


def run(scenario: str, place: object) -> None:
    forks.run_scenario(forks.__file__, scenario, place)


@pytest.mark.parametrize("scenario", ["inherited_locks", "inherited_upload", "inherited_cache"])
def test_a_fork_beside_local_files(scenario: str, tmp_path: Path) -> None:
    """A child inherits no lock, no upload, no cached file and no lock of a thread (see the scenarios)."""
    run(scenario, tmp_path)


def test_a_fork_shares_a_local_store(tmp_path: Path) -> None:
    """A store that was opened before the fork works on both sides."""
    run("shared_store", tmp_path.as_uri())


def test_a_fork_shares_a_gcs_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of before the fork are the parent's alone: every answer belongs to its question."""
    with GCSServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.create_bucket("b")
        # So that one side's question is under way when the other asks.
        server.faults.add(ServerFault(FaultKind.LATENCY, seconds=0.02, times=None))
        run("shared_store", "gs://b")


def test_a_frozen_process_holds_up_others_for_a_limited_time(tmp_path: Path) -> None:
    """Who waits for its lock is told which file, which process, and that it is stopped; then all goes on."""
    store = LocalObjectStore(tmp_path, lock_wait_seconds=0.3)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"inside\n"
        holder.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(UnavailableError) as caught:
            store.put("a", b"x", precondition=ABSENT)
        assert 0.3 <= time.monotonic() - began < 20
        assert str(tmp_path / ".dstl-store" / "locks") in caught.value.message
        assert f"process {holder.pid}" in caught.value.message
        assert "stopped" in caught.value.message
        assert store.stat("a") is None
    finally:
        holder.send_signal(signal.SIGCONT)
        holder.communicate(b"\n", timeout=20)
    store.put("a", b"x", precondition=ABSENT)
    assert not list((tmp_path / ".dstl-store" / "temporary").iterdir())
