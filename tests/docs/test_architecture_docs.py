"""`dstl_dagster/README.md` agrees with the imports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "dstl_dagster" / "README.md").read_text()
PACKAGE = ROOT / "dstl_dagster"


def _layers_of_the_contract() -> list[set[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["type"] == "layers")
    return [set(re.findall(r"dstl_dagster\.(\w+)", line)) for line in layers]


def _layers_of_the_page() -> list[set[str]]:
    picture = PAGE.split("```\n")[1]
    names = [re.split(r"\s{2,}", line)[0] for line in picture.splitlines()]
    return [set(re.split(r" [|:] ", name)) for name in names]


def test_the_picture_shows_the_layers_that_ci_holds() -> None:
    """The same packages on the same lines, in the same order; private modules are left out."""
    held = [{name for name in line if not name.startswith("_")} for line in _layers_of_the_contract()]
    assert _layers_of_the_page() == held


def test_every_folder_is_a_layer_or_testing() -> None:
    """A new package cannot be added beside the picture."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "_lazy"}
    assert folders | modules == set().union(*_layers_of_the_page()) | {"testing"}


def test_every_place_that_the_page_names_is_there() -> None:
    """`timeline/timeline.py` and the like exist."""
    places = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", PAGE))
    assert len(places) > 10
    assert [place for place in sorted(places) if not (PACKAGE / place).is_file()] == []


def test_the_checkpoint_package_stays_small() -> None:
    """At most sixteen modules: what is neither a step nor upkeep belongs in a lower layer."""
    assert len(list((PACKAGE / "checkpoint").glob("*.py"))) <= 17
