"""What is no object of a local store, at the name of a file that a checkpoint publishes."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dstl_dagster.storage import LocalObjectStore
from tests.unit.conftest import Job

NAME = "out/latest.csv"


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def link(path: Path) -> None:
    (path.parent / "target").write_text("another")
    path.symlink_to(path.parent / "target")


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            bound.bind(f"/proc/self/fd/{here}/{path.name}")  # the path of a socket has a hundred bytes
        finally:
            os.close(here)


def folder(path: Path) -> None:
    path.mkdir()
    (path / "x").write_text("another")


def folder_of_links(path: Path) -> None:
    path.mkdir()
    (path / "x").symlink_to("nothing")


def parent_is_a_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("another")


@pytest.mark.parametrize("put", [dangling, link, bound_socket, folder, folder_of_links, parent_is_a_file])
def test_it_blocks_that_file_and_nothing_else(tmp_path: Path, put: Callable[[Path], None]) -> None:
    """As a foreign object does: the next batch goes on, the audit and `resolve` know of it, and once it is
    gone the file is published.
    """
    job = Job(LocalObjectStore(tmp_path))
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, files=[job.file(attempt, NAME, b"line\n")])
    path = tmp_path / NAME
    path.parent.mkdir(exist_ok=True)
    put(path)
    coordinator.confirm(attempt)
    (done,) = coordinator.compose_commit()
    assert [each.name for each in done.blocked] == [NAME]
    assert coordinator.audit().blocked == {1: (NAME,)}
    assert [each.name for each in coordinator.resolve(1, NAME, "replace").blocked] == [NAME]
    in_the_way = path.parent if path.parent.is_file() else path
    assert os.path.lexists(in_the_way), "it was touched"
    following = coordinator.trigger()
    coordinator.record(following, files=[job.file(following, "other", b"line\n")])
    coordinator.confirm(following)
    assert [each.checkpoint_id for each in coordinator.compose_commit()] == [2]
    if in_the_way.is_dir():
        shutil.rmtree(in_the_way)
    else:
        in_the_way.unlink()
    assert job.coordinator().resolve(1, NAME, "replace").blocked == ()
    assert path.read_bytes() == b"line\n"
