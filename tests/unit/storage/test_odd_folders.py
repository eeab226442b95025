"""Folders as people and machines leave them: links, foreign names, damaged records, disks gone read-only."""

from __future__ import annotations

import errno
import getpass
import os
from pathlib import Path

import google.auth.exceptions
import pytest

from dstl_dagster.cli import options
from dstl_dagster.errors import FormatError, InvalidInputError, UnavailableError
from dstl_dagster.storage import ABSENT, ANY, LocalObjectStore, Source
from dstl_dagster.storage.gcs.errors import with_translated_errors


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "root", durable=False)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[]",
        '{"version": 1, "name": "a", "generations": [[]]}',
        '{"version": 1, "name": "a", "generations": [{"generation": 1e999}]}',
        '{"version": 1, "name": "a", "generations": [{"generation": 1, "crc32c": 1, "updated": 7}]}',
        '{"version": 1, "name": "a", "generations": [{"generation": 1, "crc32c": 1, '
        '"updated": "2026-01-01T00:00:00+00:00", "metadata": [], "inode": 1, "size": 1, '
        '"modified_nanos": 1}]}',
    ],
)
def test_any_damage_of_a_record_is_a_format_error(store: LocalObjectStore, text: str) -> None:
    """Whatever the record file holds, only FormatError comes out."""
    store.put("a", b"x", precondition=ABSENT)
    (record,) = (store.root / ".dstl-store" / "records").rglob("*.json")
    record.write_text(text)
    with pytest.raises(FormatError):
        store.stat("a")


def test_a_listing_passes_over_names_that_no_object_has(store: LocalObjectStore) -> None:
    """A web server's `.well-known/acme-challenge/` under the root stops no listing."""
    store.put("a", b"x", precondition=ABSENT)
    folder = store.root / ".well-known" / "acme-challenge"
    folder.mkdir(parents=True)
    (folder / "token").write_text("by hand")
    (store.root / ".well-known" / "security.txt").write_text("by hand")
    assert [stat.name for stat in store.list()] == [".well-known/security.txt", "a"]


def test_nothing_is_changed_behind_a_link(store: LocalObjectStore, tmp_path: Path) -> None:
    """A symbolic link under the root leads no write and no delete out of it."""
    store.put("a", b"x", precondition=ABSENT)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs").write_text("theirs")
    (store.root / "linked").symlink_to(outside)
    (store.root / "a.d").mkdir()
    (store.root / "a.d" / "deep").symlink_to(outside)
    for name in ("linked/new", "a.d/deep/new", "linked/more/new"):
        with pytest.raises(InvalidInputError):
            store.put(name, b"x", precondition=ABSENT)
        with pytest.raises(InvalidInputError):
            store.copy(Source("a"), name, precondition=ANY)
    with pytest.raises(InvalidInputError):
        store.delete("linked/theirs", precondition=ANY)
    with pytest.raises(InvalidInputError):
        store.compose([Source("linked/theirs")], "b", precondition=ANY, delete_sources=True)
    assert [path.name for path in outside.rglob("*")] == ["theirs"]
    assert store.stat("b") is None


def test_nothing_is_read_behind_a_link(store: LocalObjectStore, tmp_path: Path) -> None:
    """Nor told of, whether it is there or not: a batch learns it before its commit point, not in step 6."""
    store.put("a", b"x", precondition=ABSENT)
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "theirs").write_text("theirs")
    (store.root / "linked").symlink_to(outside)
    for name in ("linked/deep/theirs", "linked/none"):
        for read in (store.stat, store.get, store.open_read, store.open_ranges):
            with pytest.raises(InvalidInputError, match="linked leads"):
                read(name)
        with pytest.raises(InvalidInputError):
            store.copy(Source(name), "b", precondition=ANY)
    for prefix in ("", "linked/", "linked/deep/", "linked/deep/th"):
        assert [stat.name for stat in store.list(prefix)] == ["a"][: not prefix]
    assert not list((store.root / ".dstl-store" / "records").rglob("*.json"))[1:]


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    """Only links below the root lead out of it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    LocalObjectStore(tmp_path / "root", durable=False).put("f/a", b"x", precondition=ABSENT)
    assert (tmp_path / "real" / "f" / "a").read_bytes() == b"x"


@pytest.mark.parametrize("name", [".DSTL-STORE/records/x", ".Dstl-Store/a"])
def test_the_hidden_folder_in_any_case(store: LocalObjectStore, name: str) -> None:
    """Where the file system does not tell cases apart, these are the store's own files."""
    with pytest.raises(InvalidInputError):
        store.put(name, b"x", precondition=ABSENT)
    path = store.root / name
    path.parent.mkdir(parents=True)
    path.write_text("by hand")
    assert list(store.list()) == list(store.list(name.partition("/")[0] + "/")) == []


def test_an_upload_is_given_up_on_a_disk_gone_read_only(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To abort never raises, whatever the disk says, and leaks no descriptor."""
    upload = store.open_write("a", precondition=ABSENT)
    upload.write(b"x")
    before = open_descriptors()

    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        upload.abort()
        upload.abort()
    assert open_descriptors() == before - 1


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 4711"), OSError("No username")])
def test_a_user_without_a_name(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command under a random uid, as containers have, runs."""

    def unknown() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert options.user_name() == f"uid-{os.getuid()}"


@pytest.mark.parametrize(("retryable", "kind"), [(True, UnavailableError), (False, InvalidInputError)])
def test_a_refresh_that_would_pass_later(retryable: bool, kind: type[Exception]) -> None:
    """Only credentials that the service refuses for good are the caller's to fix."""

    def refresh() -> None:
        raise google.auth.exceptions.RefreshError("no token", retryable=retryable)

    with pytest.raises(kind):
        with_translated_errors("gs://b/o", refresh)
