"""A process that stops at a chosen storage request until it is killed.

Where the variable `DSTL_STOP_AT` is a request (`{"method": "put", "name": "manifests/", "nth": 1}`), the
process that is about to make it writes its id into the file `DSTL_STOPPED` and blocks.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore, open_store
from dstl_dagster.testing.fault_schedules import Fault, Request
from dstl_dagster.testing.fault_store import FaultStore

STOP_AT, STOPPED = "DSTL_STOP_AT", "DSTL_STOPPED"


class StopAt:
    """A schedule without faults: the nth request that fits never returns."""

    def __init__(self, method: str, name: str, nth: int) -> None:
        self._method, self._name, self._left = method, name, nth

    def decide(self, request: Request) -> Fault | None:
        if self._method in ("", request.method) and self._name in request.name:
            self._left -= 1
            if self._left == 0:
                Path(os.environ[STOPPED]).write_text(str(os.getpid()))
                threading.Event().wait()
        return None

    def deliver_late_effect(self) -> bool:
        return False


def stop_where_asked(module: Any, opener: str = "open_store") -> None:
    """Have `module` open stores that stop, by its function `opener`, if the environment asks for it."""
    asked = os.environ.get(STOP_AT)
    if asked:
        schedule = StopAt(**json.loads(asked))

        def opened(uri: str, options: GSFileSystemOptions) -> ObjectStore:
            return FaultStore(open_store(uri, options), schedule)

        setattr(module, opener, opened)
