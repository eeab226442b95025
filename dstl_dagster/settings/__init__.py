"""Frozen values that configure components. Owns the public names of the options, each loaded on first use.

Does not own what an option does, nor the components themselves.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dstl_dagster.settings.changelog import FsStateChangelogOptions, LocalRecoveryConfig
    from dstl_dagster.settings.checkpoint import CheckpointOptions
    from dstl_dagster.settings.gs import GSFileSystemOptions

__all__ = ["CheckpointOptions", "FsStateChangelogOptions", "GSFileSystemOptions", "LocalRecoveryConfig"]

_HOME = {
    "CheckpointOptions": "dstl_dagster.settings.checkpoint",
    "FsStateChangelogOptions": "dstl_dagster.settings.changelog",
    "LocalRecoveryConfig": "dstl_dagster.settings.changelog",
    "GSFileSystemOptions": "dstl_dagster.settings.gs",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
