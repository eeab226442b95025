"""Frozen values that configure components. Owns the public names of the options, each loaded on first use.

Does not own what an option does, nor the components themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.settings.changelog import FsStateChangelogOptions, LocalRecoveryConfig
    from dstl_dagster.settings.checkpoint import CheckpointOptions
    from dstl_dagster.settings.gs import GSFileSystemOptions
    from dstl_dagster.settings.job import JobOptions, Options, parse_lines
    from dstl_dagster.settings.prices import CostBudget, StoragePrices
    from dstl_dagster.settings.ttl import StateTtlConfig
    from dstl_dagster.settings.units import (
        MemorySize,
        parse_bool,
        parse_duration,
        parse_int,
        parse_memory_size,
        parse_names,
    )

__all__ = [
    "CheckpointOptions",
    "CostBudget",
    "FsStateChangelogOptions",
    "GSFileSystemOptions",
    "JobOptions",
    "LocalRecoveryConfig",
    "MemorySize",
    "Options",
    "StateTtlConfig",
    "StoragePrices",
    "parse_bool",
    "parse_duration",
    "parse_int",
    "parse_lines",
    "parse_memory_size",
    "parse_names",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "changelog": ["FsStateChangelogOptions", "LocalRecoveryConfig"],
        "checkpoint": ["CheckpointOptions"],
        "gs": ["GSFileSystemOptions"],
        "job": ["JobOptions", "Options", "parse_lines"],
        "prices": ["CostBudget", "StoragePrices"],
        "ttl": ["StateTtlConfig"],
        "units": [
            "MemorySize",
            "parse_bool",
            "parse_duration",
            "parse_int",
            "parse_memory_size",
            "parse_names",
        ],
    },
)
