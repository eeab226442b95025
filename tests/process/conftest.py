"""Scenarios by name, as when they run by their path: beside their own modules, which are no package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario's module, and the way to kill its lives."""

    module: ModuleType

    def kills_of(self, kind: str, root: Path) -> AbstractContextManager[Any]:
        return self.module.deaths.kills_of(self.module, kind, root)


@pytest.fixture
def scenario() -> Callable[[str], LoadedScenario]:
    def load(name: str) -> LoadedScenario:
        folder = str(Path(__file__).parent)
        sys.path.insert(0, folder)
        try:
            return LoadedScenario(importlib.import_module(name))
        finally:
            sys.path.remove(folder)

    return load
