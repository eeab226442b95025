"""How the suite runs: Hypothesis's profiles, processes side by side that end at the same time, and whose
warnings are errors.

Owns what all folders share: that, and one Spark a process (`sessions`). Does not own what the tests of a
folder share: its own conftest does.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sysconfig
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from zlib import crc32

import pytest
import xdist

from tests import profiles
from tests.sessions import spark, strict_gcs  # noqa: F401 - fixtures

profiles.register()
# Else the client asks for a bucket in a thread of its own, and again long after the test and its server end:
# beside later tests, and with the random numbers that Hypothesis keeps to itself.
os.environ["DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"] = "true"

_PROCESSES = 4
"""On two cores too: tests wait, for daemons, browsers and buckets far away. Four leave 7 % idle. Not more:
each imports and collects all tests, for 9 s of CPU, and JVMs and Dagster's daemons want cores beside them."""

_LONGEST_FIRST = ("spark", "process", "gcs", "ui", "dagster", "simulation", "docs", "property", "contract")
"""Folders by the longest of their tests; a group of tests is one, and Spark's two are the longest of all. The
last tests are short, so that no process waits for the other."""

_COSTLY_FIXTURES = ("spark", "site", "baseline", "wheel")
"""A JVM, Dagster's webserver with its daemon, the demo run without a kill, a built wheel: all tests that use
one of them go to one process, and those of Spark to two, by their files: one would be busy to the end."""


_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 << 30


def pytest_configure(config: pytest.Config) -> None:
    """What tests and their processes put into the folder for temporary files goes with the run; what pytest
    keeps of the last runs stays where it is. Workers inherit both. Side by side, both are in memory, if there
    is enough (they take half a gigabyte): no test cuts the power, and the wait for a disk is long.
    """
    if hasattr(config, "workerinput"):
        return
    in_memory = (
        config.getoption("numprocesses", None) and "TMPDIR" not in os.environ and _has_room(_IN_MEMORY)
    )
    folder = tempfile.mkdtemp(prefix="dstl-tests-", dir=_IN_MEMORY if in_memory else None)
    Path(folder).chmod(0o1777)  # as the folder for temporary files: tests work as other users, too
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder if in_memory else tempfile.gettempdir())
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _has_room(folder: Path) -> bool:
    """Containers often have little of it, in which no program may run."""
    return (
        folder.is_dir()
        and shutil.disk_usage(folder).free >= _ROOM_BYTES
        and not os.statvfs(folder).f_flag & os.ST_NOEXEC
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` of pyproject.toml means: several processes for the suite or a folder, none but this one
    for somebody who chose tests and looks at them. xdist itself sees to `--pdb`.
    """
    looking = any(config.getoption(name, None) for name in ("keyword", "lf", "failedfirst", "stepwise"))
    files = any("::" in each or Path(each).suffix == ".py" for each in config.args)
    return 0 if looking or files else _PROCESSES if (os.cpu_count() or 1) > 1 else 1


@pytest.hookimpl(tryfirst=True)  # before xdist writes the groups into the tests' names
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Side by side, tests go out in this order, a group whole."""
    if not hasattr(config, "workerinput"):
        return
    folders = {name: rank for rank, name in enumerate(_LONGEST_FIRST)}
    tests = Path(__file__).parent
    for item in items:
        for name in _COSTLY_FIXTURES:
            if name in getattr(item, "fixturenames", ()):
                half = f"{crc32(item.path.name.encode()) % 2}" if name == "spark" else ""
                item.add_marker(pytest.mark.xdist_group(name + half))
    items.sort(key=lambda item: folders.get(item.path.relative_to(tests).parts[0], len(folders)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Some releases of pytest and xdist do not know each other's names: then each process would start all."""
    if hasattr(session.config, "workerinput"):
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError(
                    f"xdist {xdist.__version__} does not group tests under pytest {pytest.__version__}; "
                    "install the releases of constraints.txt"
                )


_JUDGES = re.compile(r"_?pytest|_?hypothesis|xdist|dstl_dagster")
"""Installed too, and their warnings are about our code."""

_ABOUT_ITSELF = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, SyntaxWarning, ResourceWarning)


def _libraries() -> str:
    """A pattern of the modules that stand in site-packages, by their names, or by their files where one is
    compiled.
    """
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    names = {each.name.partition(".")[0] for folder in folders for each in Path(folder).iterdir()}
    theirs = "|".join(re.escape(name) for name in sorted(names) if not _JUDGES.match(name))
    return rf"(?:{theirs})(?:\.|\Z)|.*/site-packages/"


_LIBRARIES = _libraries()
_PYSPARK = version("pyspark")


def _pass_over_libraries() -> None:
    """Every warning is an error (pyproject.toml), unless a library warns of itself: of a call that it makes,
    not of one of ours, which is attributed to us. The filters of an ini file take no pattern of modules.
    """
    for category in _ABOUT_ITSELF:
        warnings.filterwarnings("ignore", category=category, module=_LIBRARIES)
    if _PYSPARK.startswith("4.1."):
        # It closes the file of a result's socket, and leaves the socket to the collector.
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning, r"socket\Z")


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """What is imported then, within pytest's own filters."""
    _pass_over_libraries()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A test with its fixtures, within pytest's own filters."""
    _pass_over_libraries()
