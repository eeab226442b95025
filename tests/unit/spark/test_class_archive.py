"""Java's own archive of Spark's classes: which options, and only where no other user can put one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dstl_dagster.spark.local import session
from dstl_dagster.spark.local.java import JavaRuntime

RUNTIME = JavaRuntime(Path("/usr/lib/jvm/some"), "25", "PATH")


def archive(version: str) -> Path | None:
    return session._class_archive(replace(RUNTIME, version=version))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder below folders that only this user and the system can change."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_each_java_and_spark_has_its_own(cache: Path) -> None:
    """Of a version and a place: Java passes over an archive of other jars, and would never make it anew."""
    elsewhere = replace(RUNTIME, home=Path("/opt/java"))
    found = {archive("17"), archive("25"), session._class_archive(elsewhere)}
    assert len(found) == 3
    assert all(each is not None and each.is_relative_to(cache) for each in found)


def test_the_oldest_of_too_many_are_removed(cache: Path) -> None:
    """Before another one is made, so that three are there at most: each takes 200 MB."""
    made = archive("17")
    assert made is not None
    for age, name in enumerate(["d", "c", "b", "a"]):
        (made.parent / f"{name}.jsa").touch()
        os.utime(made.parent / f"{name}.jsa", (age, age))
    assert archive("17") == made
    assert {each.name for each in made.parent.iterdir()} == {"a.jsa", "b.jsa"}
    made.touch()
    (made.parent / "c.jsa").touch()
    assert archive("17") == made
    assert len(list(made.parent.iterdir())) == 4, "nothing is removed where none is made"


def test_a_java_from_19_on_makes_the_archive_by_itself(cache: Path) -> None:
    """The file is there or not; the setting names it."""
    options = session._archive_options(RUNTIME)
    assert "-XX:+AutoCreateSharedArchive" in options
    assert f"-XX:SharedArchiveFile={archive('25')}" in options
    assert set(options) <= set(session.local_conf(2, cache, options)["spark.driver.extraJavaOptions"].split())


def test_an_older_java_gets_no_archive(cache: Path) -> None:
    """It makes none of itself, and would not start where it cannot map one."""
    assert session._archive_options(replace(RUNTIME, version="17.0.15")) == []


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
