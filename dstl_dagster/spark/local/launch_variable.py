"""A variable that the launched JVM is to see, and nobody later.

Owns setting and restoring it. Does not own which variables there are (`home`, `class_archive`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping

__all__ = ["launch_variable"]


@contextlib.contextmanager
def launch_variable(environ: MutableMapping[str, str], name: str, value: str) -> Iterator[None]:
    """Set in the block, and as it was afterwards: other processes that this one starts find their own."""
    before = environ.get(name)
    environ[name] = value
    try:
        yield
    finally:
        if before is None:
            environ.pop(name, None)
        else:
            environ[name] = before
