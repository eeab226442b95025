"""Public names that are imported on first use (PEP 562), so that importing a package costs almost nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_face"]


def lazy_face(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of `package`.

    Args:
        homes: the public names of each module of the package, by the module's name; a module that is public
            itself has its own. `.other` is the package beside this one, for what this one gives as well.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f".{home}", package)
        return module if name == home else getattr(module, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return load, names
