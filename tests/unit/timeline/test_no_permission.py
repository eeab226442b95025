"""A store that this process may not write to: the error says so, and Dagster does not try again in vain."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ErrorKind, UnavailableError
from dstl_dagster.orchestration.failures import without_useless_retries
from dstl_dagster.storage import LocalObjectStore


@pytest.fixture(params=[errno.EACCES, errno.EPERM, errno.EROFS], ids=errno.errorcode.get)
def read_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system takes nothing new. (A folder without rights would not stop root.)"""
    opened: Callable[..., int] = os.open

    def refuse(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise OSError(request.param, os.strerror(request.param), str(path))
        return opened(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)


def test_the_first_record_says_what_is_wrong(tmp_path: Path, read_only: None) -> None:
    """Not that the outcome is unknown; and with the way out."""
    coordinator = CheckpointCoordinator("orders", LocalObjectStore(tmp_path))
    with pytest.raises(UnavailableError) as raised:
        coordinator.trigger()
    assert raised.value.kind == ErrorKind.NO_PERMISSION
    assert str(raised.value).startswith("'opened' in slot 1 of job 'orders' cannot be written: ")
    assert "grant this user the rights to the store's folder, or mount it for writing" in str(raised.value)
    assert "run the step again" not in str(raised.value)


@pytest.mark.dagster
def test_a_step_is_not_retried(tmp_path: Path, read_only: None) -> None:
    """A retry a second later finds the same folder; so does every other step."""
    coordinator = CheckpointCoordinator("orders", LocalObjectStore(tmp_path))
    with pytest.raises(dg.Failure) as failure, without_useless_retries("step 1"):
        coordinator.trigger()
    assert failure.value.allow_retries is False
    assert failure.value.metadata["kind"].value == "no_permission"
