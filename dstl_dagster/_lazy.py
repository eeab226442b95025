"""Public names that are imported on first use (PEP 562), so that importing a package costs almost nothing.

A package lists its names once, as the imports of its stub, `__init__.pyi`: type checkers read them there, and
so does the package itself.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_face(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of `package`: of each name that its stub imports."""
    home_of = {
        each.name: statement.module or ""
        for statement in ast.parse(_stub(package)).body
        if isinstance(statement, ast.ImportFrom)
        for each in statement.names
    }

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # From the package itself a module is imported.
        return import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return load, names, sorted(home_of)


def _stub(package: str) -> bytes:
    """By the package's loader, which may read an archive."""
    spec = sys.modules[package].__spec__
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (folder,) = spec.submodule_search_locations
    content: bytes = spec.loader.get_data(f"{folder}/__init__.pyi")  # type: ignore[union-attr] # of files or an archive
    return content
