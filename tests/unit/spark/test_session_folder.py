"""The folder of a local session is removed with its process."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from dstl_dagster.spark.local import scratch, session

KILLED = """
import sys
from dstl_dagster.spark.local.scratch import ScratchFolder
folder = ScratchFolder()
(folder.path / "blocks").write_bytes(b"x" * 100)
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    # Stopping removes the folders of all this process's sessions, and other tests may have one running.
    monkeypatch.setattr(session, "_scratch_folders", [])


def _new_scratch_folder_below(folder: str) -> Path:
    tempfile.tempdir = folder  # the server that forks may have been started by another test
    return session._new_scratch_folder()


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_child_process_removes_its_folder(
    start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that an orchestrator runs in its own process leaves no folder behind."""
    monkeypatch.setenv("TMPDIR", "/tmp")  # of the sockets, whose paths may be 107 characters long
    context = multiprocessing.get_context(start_method)
    with ProcessPoolExecutor(1, mp_context=context) as child:
        folder = child.submit(_new_scratch_folder_below, str(tmp_path)).result(60)
    assert folder.parent == tmp_path
    assert folder.name.startswith("dstl-spark-")
    assert not folder.exists()


def test_stopping_the_session_removes_its_folder() -> None:
    """Stopping a session removes its folder at once, and may be repeated."""

    class Stopped:
        def stop(self) -> None:
            pass

    folder = session._new_scratch_folder()
    assert (folder / "log4j2.properties").exists()
    for _ in range(2):
        session.stop_session(Stopped())  # type: ignore[arg-type] # only `stop` matters here
    assert not folder.exists()


def test_a_session_whose_jvm_died_still_loses_its_folder() -> None:
    """Stopping fails if the JVM was killed; the folder is still removed."""

    class Dead:
        def stop(self) -> None:
            raise ConnectionRefusedError("no JVM")

    folder = session._new_scratch_folder()
    with pytest.raises(ConnectionRefusedError):
        session.stop_session(Dead())  # type: ignore[arg-type] # only `stop` matters here
    assert not folder.exists()


@pytest.mark.kill
def test_the_folder_of_a_killed_process_is_removed_by_a_later_session(tmp_path: Path) -> None:
    """A later session removes the folder of a killed process, and not that of a live one."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    left = Path(process.stdout.readline().strip())
    assert scratch.remove_left_behind() == []
    assert (left / "blocks").exists()
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    process.stdin.close()
    own = session._new_scratch_folder()
    assert not left.exists()
    assert own.exists()
    assert list(tmp_path.iterdir()) == [own]
    session._scratch_folders.pop().remove()


def test_a_folder_that_nobody_locked_yet_is_left_alone(tmp_path: Path) -> None:
    """Between creating the folder and locking it, a session is not mistaken for a dead one."""
    begun = tmp_path / "dstl-spark-begun"
    begun.mkdir()
    assert scratch.remove_left_behind() == []
    (begun / "owner.lock").touch()
    assert scratch.remove_left_behind() == []
    assert begun.exists()
