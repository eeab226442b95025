"""Java's own archive of Spark's classes: with which Java, and only where no other user can put one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dstl_dagster.spark.local import session
from dstl_dagster.spark.local.java import JavaRuntime


def archive(version: str) -> Path | None:
    return session._class_archive(JavaRuntime(Path("/usr/lib/jvm/some"), version, "PATH"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder below folders that only this user and the system can change."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(("version", "has_one"), [("17.0.15", False), ("19", True), ("25.0.1", True)])
def test_only_a_java_that_archives_by_itself_gets_a_file(cache: Path, version: str, has_one: bool) -> None:
    """Each Java and Spark has its own; the setting names it."""
    found = archive(version)
    assert (found is not None) == has_one
    options = session.local_conf(2, cache, found)["spark.driver.extraJavaOptions"]
    assert ("-XX:+AutoCreateSharedArchive" in options) == has_one
    if found is not None:
        assert found.is_relative_to(cache)
        assert f"-XX:SharedArchiveFile={found}" in options


@pytest.mark.parametrize("which", ["dstl-dagster", "."])
def test_a_folder_that_others_can_write_is_not_trusted(cache: Path, which: str) -> None:
    """A shared HOME or XDG folder: what a JVM maps must be this user's alone, and its path too."""
    (cache / "dstl-dagster").mkdir(parents=True)
    (cache / which).chmod(0o777)
    assert archive("25") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_trusted(cache: Path) -> None:
    """Whoever owns it can change it."""
    (cache / "dstl-dagster").mkdir(parents=True)
    os.chown(cache / "dstl-dagster", 65534, 65534)
    assert archive("25") is None


def test_a_path_that_java_cannot_take_or_nobody_can_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark splits options at spaces, Java at colons; a file is no folder."""
    (tmp_path / "file").write_text("")
    for name in ("a b", "a:b", "file"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        assert archive("25") is None
