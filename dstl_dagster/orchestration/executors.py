"""How Dagster starts the processes of steps: forked from one that has their imports.

Owns the list of what is imported beforehand. Does not own what a step does (`ops`), or how many steps there
are (`assets`, `ops`).

A step in a process of its own imports Dagster, its storage, this package and the user's code: seconds of
processor time for a step whose own work is a few requests. Forked from a process with these imports it starts
in a fraction of a second. What is forked has imports and nothing else: no thread, no connection, no JVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import parse_names

_PRELOADED: Final = (
    "dagster",
    "dstl_dagster.orchestration.define.assets",
    "dstl_dagster.orchestration.define.checkpointed_asset",
    "dstl_dagster.spark",
    "alembic.context",
    "dagster._core.storage.event_log",
    "dagster._core.storage.runs",
    "dagster._core.storage.schedules",
    "dagster._core.storage.sqlite_storage",
)
"""A module that does not exist is passed over."""


def build_step_executor(
    preload: Sequence[str] = (), *, max_concurrent: int | None = None
) -> dg.ExecutorDefinition:
    """Each step in a process of its own, as Dagster's multiprocess executor, but quick to start.

    For `Definitions(executor=...)`, or `executor_def=` of one job. On Linux and macOS.

    Args:
        preload: modules of the user's, such as that of the definitions: what they import is imported once a
            run. They must not start threads or Spark when imported.
        max_concurrent: steps at a time, as in Dagster; `None`: as many as there are processors.

    Raises: InvalidInputError for a text where names are wanted.
    """
    modules = [*_PRELOADED, *parse_names("preload", preload)]
    if max_concurrent is not None and max_concurrent < 1:
        raise InvalidInputError(f"max_concurrent is 1 or more, not {max_concurrent}")
    config: dict[str, Any] = {"start_method": {"forkserver": {"preload_modules": modules}}}
    if max_concurrent is not None:
        config["max_concurrent"] = max_concurrent
    return dg.multiprocess_executor.configured(config, name="forked_steps")
