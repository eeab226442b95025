"""Which JVM gets the archive of Spark's classes, and how one is written: with a Java of a few lines."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dstl_dagster.errors import ErrorKind, UnavailableError
from dstl_dagster.spark.local.class_archive import ArchiveWriter, archive_folders, class_archive_set
from dstl_dagster.spark.local.java import JavaRuntime

SPARK = "a Spark"
DUMPS = 'for each do case $each in -XX:SharedArchiveFile=*) echo java > "${each#*=}";; esac; done'


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path / "home")}


def java_that(does: str, folder: Path) -> JavaRuntime:
    """A Java that runs this line of shell."""
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f"#!/bin/sh\n{does}\n")
    java.chmod(0o755)
    return JavaRuntime(folder / "java", "17.0.1", "JAVA_HOME")


def spark_file(options: str) -> Path:
    """Where the JVM with these options writes the archive at its exit."""
    (found,) = (each for each in shlex.split(options) if each.startswith("-XX:ArchiveClassesAtExit="))
    return Path(found.partition("=")[2])


def written(environ: dict[str, str], java: JavaRuntime, content: str = "spark") -> Path:
    with ArchiveWriter(environ, java, SPARK) as archive:
        spark_file(archive.java_options).write_text(content)
        return archive.publish()


def test_a_launch_maps_the_archive_once_there_is_one(environ: dict[str, str], tmp_path: Path) -> None:
    """For the launch alone, ahead of what was given, and for this Java and Spark only."""
    java = java_that(DUMPS, tmp_path)
    environ["SPARK_SUBMIT_OPTS"] = "-Dgiven=1"
    with class_archive_set(environ, {}, java, SPARK):
        assert environ["SPARK_SUBMIT_OPTS"] == "-Dgiven=1"
    folder = written(environ, java)
    assert folder == next(archive_folders(environ, java, SPARK))
    with class_archive_set(environ, {}, java, SPARK):
        options = shlex.split(environ["SPARK_SUBMIT_OPTS"])
    assert options[0] == f"-XX:SharedArchiveFile={folder / 'java.jsa'}:{folder / 'spark.jsa'}"
    assert (options[1], options[-1]) == ("-Xshare:auto", "-Dgiven=1")
    assert environ["SPARK_SUBMIT_OPTS"] == "-Dgiven=1"
    newer = JavaRuntime(java.home, "17.0.2", java.source)
    for other_java, other_spark in ((newer, SPARK), (java, "another Spark")):
        with class_archive_set(environ, {}, other_java, other_spark):
            assert environ["SPARK_SUBMIT_OPTS"] == "-Dgiven=1"


def test_a_variable_that_was_not_set_is_gone_after_a_failed_launch(
    environ: dict[str, str], tmp_path: Path
) -> None:
    java = java_that(DUMPS, tmp_path)
    written(environ, java)

    def launch() -> None:
        with class_archive_set(environ, {}, java, SPARK):
            assert "SPARK_SUBMIT_OPTS" in environ
            raise RuntimeError("no port")

    with pytest.raises(RuntimeError, match="no port"):
        launch()
    assert "SPARK_SUBMIT_OPTS" not in environ


@pytest.mark.parametrize(
    ("variables", "settings"),
    [
        ({"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/mine.jsa"}, {}),
        ({"JDK_JAVA_OPTIONS": "-Xshare:off"}, {}),
        ({"JAVA_TOOL_OPTIONS": "-XX:+AutoCreateSharedArchive"}, {}),
        ({}, {"spark.driver.defaultJavaOptions": "-XX:ArchiveClassesAtExit=/mine.jsa"}),
        ({}, {"spark.driver.extraJavaOptions": "-Xshare:off"}),
    ],
)
def test_who_chose_an_archive_gets_no_other(
    environ: dict[str, str], tmp_path: Path, variables: dict[str, str], settings: dict[str, str]
) -> None:
    """Java refuses to start with two of them."""
    java = java_that(DUMPS, tmp_path)
    written(environ, java)
    environ |= variables
    before = dict(environ)
    with class_archive_set(environ, settings, java, SPARK):
        assert environ == before


def test_a_path_may_have_spaces_but_no_colon(tmp_path: Path) -> None:
    """Spark splits options as a shell does, and Java a list of archives at colons."""
    java = java_that(DUMPS, tmp_path)
    environ = {"XDG_CACHE_HOME": str(tmp_path / "my cache")}
    folder = written(environ, java)
    with class_archive_set(environ, {}, java, SPARK):
        archives = shlex.split(environ["SPARK_SUBMIT_OPTS"])[0].partition("=")[2]
    assert archives.split(":") == [str(folder / "java.jsa"), str(folder / "spark.jsa")]
    assert all(":" not in str(each) for each in archive_folders({"XDG_CACHE_HOME": "/a:b"}, java, SPARK))


def test_a_new_archive_replaces_the_old_one_at_its_end(environ: dict[str, str], tmp_path: Path) -> None:
    """Until then, and if its writer is killed, the old one stays; the next writer removes what was left."""
    java = java_that(DUMPS, tmp_path)
    folder = written(environ, java, "old")
    left = folder / ".writing-killed"
    left.mkdir()
    (left / "spark.jsa").write_text("half")
    with ArchiveWriter(environ, java, SPARK) as archive:
        assert not left.exists()
        spark_file(archive.java_options).write_text("new")
        assert (folder / "spark.jsa").read_text() == "old"
        archive.publish()
    assert (folder / "spark.jsa").read_text() == "new"
    assert sorted(each.name for each in folder.iterdir()) == ["crc32c", "java.jsa", "lock", "spark.jsa"]


def test_one_process_writes_at_a_time(environ: dict[str, str], tmp_path: Path) -> None:
    java = java_that(DUMPS, tmp_path)
    with (
        ArchiveWriter(environ, java, SPARK),
        pytest.raises(UnavailableError, match="another process") as told,
        ArchiveWriter(environ, java, SPARK),
    ):
        pass
    assert told.value.kind == ErrorKind.BUSY
    written(environ, java)


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("echo no such option >&2; exit 1", "exited with 1: no such option"),
        ("exit 0", "exited with 0"),
    ],
)
def test_a_java_that_dumps_nothing_is_told(
    environ: dict[str, str], tmp_path: Path, does: str, why: str
) -> None:
    java = java_that(does, tmp_path)
    with pytest.raises(UnavailableError, match=why), ArchiveWriter(environ, java, SPARK):
        pass
    (folder,) = (tmp_path / "cache" / "dstl-dagster" / "class-archive").iterdir()
    assert [each.name for each in folder.iterdir()] == ["lock"]


def test_a_jvm_that_wrote_nothing_at_its_exit_is_told(environ: dict[str, str], tmp_path: Path) -> None:
    """Java's own archive is dumped once; but anew if a JVM could do nothing with it."""
    java = java_that(f"echo >> {tmp_path / 'dumps'}\n{DUMPS}", tmp_path)
    written(environ, java)
    written(environ, java)
    assert (tmp_path / "dumps").read_text() == "\n"
    with (
        ArchiveWriter(environ, java, SPARK) as archive,
        pytest.raises(UnavailableError, match="wrote none at its exit"),
    ):
        archive.publish()
    with class_archive_set(environ, {}, java, SPARK):
        assert "SPARK_SUBMIT_OPTS" not in environ
    written(environ, java)
    assert (tmp_path / "dumps").read_text() == "\n\n"


def test_without_a_writable_folder_it_says_what_to_set(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "cache"))
    writer = ArchiveWriter(environ, java_that(DUMPS, tmp_path), SPARK)
    with pytest.raises(UnavailableError, match="Set XDG_CACHE_HOME") as told, writer:
        pass
    assert told.value.kind == ErrorKind.NO_CACHE_FOLDER


@pytest.mark.parametrize("name", ["java.jsa", "spark.jsa", "crc32c"])
@pytest.mark.parametrize("content", ["", "x", None])
def test_a_damaged_archive_is_passed_over_and_written_anew(
    environ: dict[str, str], tmp_path: Path, name: str, content: str | None
) -> None:
    """A JVM that was given one might not start."""
    java = java_that(DUMPS, tmp_path)
    folder = written(environ, java)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with class_archive_set(environ, {}, java, SPARK):
        assert "SPARK_SUBMIT_OPTS" not in environ
    written(environ, java)
    assert (folder / "java.jsa").read_text() == "java\n"
    with class_archive_set(environ, {}, java, SPARK):
        assert "SPARK_SUBMIT_OPTS" in environ
