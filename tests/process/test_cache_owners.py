"""Processes that share a directory for the changelog cache (see the scenarios)."""

from __future__ import annotations

import os

import cache_owners
import pytest
from forks import run_scenario

_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.mark.parametrize(
    "scenario",
    [
        "killed_reader",
        pytest.param("second_user", marks=_root),
        pytest.param("planted_folder", marks=_root),
        "forked_child",
    ],
)
def test_a_shared_directory(scenario: str) -> None:
    """Every process has its own files, no user those of another, and dead ones leave nothing."""
    run_scenario(cache_owners.__file__, scenario, "")
