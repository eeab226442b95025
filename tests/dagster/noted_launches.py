"""A run launcher that notes what it is asked to launch, and starts nothing.

Owns the notes. What is asked for, and how often, is `test_daemon`'s. The launch that `hold_at` counts is
noted and never returns, once: whoever kills the daemon then does it between a request and the sensor's
cursor.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagster._core.launcher import LaunchRunContext, RunLauncher
from dagster._serdes import ConfigurableClass, ConfigurableClassData

_PATIENCE_SECONDS = 300.0


class NotedLaunches(RunLauncher, ConfigurableClass):
    """In `folder`: `launched` has a line for each; `held` is there while one is, and `was_held` after it."""

    def __init__(self, folder: str, hold_at: int, inst_data: ConfigurableClassData | None = None) -> None:
        self._folder = Path(folder)
        self._hold_at = hold_at
        self._inst_data = inst_data
        super().__init__()

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> Mapping[str, Any]:
        return {"folder": str, "hold_at": int}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> NotedLaunches:
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        run = context.dagster_run
        launched = self._folder / "launched"
        with launched.open("a") as notes:
            notes.write(f"{run.tags['dstl/checkpoint_id']} {run.tags['dagster/partition']}\n")
        held = self._folder / "held"
        was_held = (self._folder / "was_held").exists()
        if not was_held and len(launched.read_text().splitlines()) == self._hold_at:
            held.touch()
            threading.Event().wait(_PATIENCE_SECONDS)

    def terminate(self, run_id: str) -> bool:
        return False
