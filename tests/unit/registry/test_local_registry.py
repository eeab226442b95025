"""Local copies live as long as a checkpoint that may be restored uses them."""

from __future__ import annotations

import threading

import pytest

from dstl_dagster.errors import InternalError
from dstl_dagster.format import StreamStateHandle
from dstl_dagster.format.handles import LocalStateHandle
from dstl_dagster.registry import LocalChangelogRegistry, TaskChangelogRegistry
from tests.doubles.uploads import CallerExecutor, ManualExecutor

COPY = LocalStateHandle("/copies/a", 3)


def test_the_last_use_counts() -> None:
    """A copy goes when the last checkpoint that used it is below the confirmed one, which is exclusive."""
    deleted: list[StreamStateHandle] = []
    registry = LocalChangelogRegistry(deleted.append, CallerExecutor())
    registry.register(COPY, 5)
    registry.register(COPY, 3)
    registry.discard_up_to_checkpoint(5)
    assert deleted == []
    registry.discard_up_to_checkpoint(6)
    registry.discard_up_to_checkpoint(7)
    assert deleted == [COPY]


def test_a_path_stands_for_one_file() -> None:
    """Another file under a path in use is an InternalError."""
    registry = LocalChangelogRegistry.no_op()
    registry.register(COPY, 1)
    with pytest.raises(InternalError, match="/copies/a"):
        registry.register(LocalStateHandle(COPY.name, 4), 1)
    registry.close()


def test_a_full_executor_does_not_keep_a_file() -> None:
    """Once the executor is shut down, the caller deletes."""
    deleted: list[StreamStateHandle] = []
    executor = ManualExecutor()
    registry = LocalChangelogRegistry(deleted.append, executor)
    registry.register(COPY, 1)
    executor.shutdown()
    registry.discard_up_to_checkpoint(2)
    assert deleted == [COPY]


def test_close_keeps_the_copies(caplog: pytest.LogCaptureFixture) -> None:
    """Closing deletes no copy, ends the thread, and an error while deleting is only logged."""
    before = set(threading.enumerate())

    def fails(_: StreamStateHandle) -> None:
        raise OSError("busy")

    registry = LocalChangelogRegistry.with_threads(fails)
    registry.register(COPY, 1)
    registry.discard_up_to_checkpoint(2)
    registry.register(COPY, 3)
    registry.close()
    registry.close()
    assert set(threading.enumerate()) <= before
    assert caplog.text.count("could not delete") == 1


def test_counts_of_files_are_exact_under_threads() -> None:
    """Releases from many threads delete once, at the last."""
    deleted: list[StreamStateHandle] = []
    registry = TaskChangelogRegistry.with_threads(deleted.append, 2)
    file = StreamStateHandle("file", 1)
    registry.start_tracking(file, 400)
    threads = [
        threading.Thread(target=lambda: [registry.release(file) for _ in range(100)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    registry.release(file)
    registry.close()
    assert deleted == [file]
    assert registry.tracked_count(file) is None
