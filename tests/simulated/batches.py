"""What a numbered batch of the simulated job contains: the model that every run is compared with.

Owns the contents of batches. Pure: does no I/O. Each batch changes a few keys of the operator `totals`, the
first one also writes the operator `rare`, and each writes two files. A file's bytes name the attempt that
wrote them, so the file of an abandoned checkpoint cannot be mistaken for the one that replaced it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

FILES = {"a": 2, "b": 1}
"""The files of each batch, and how many components each has."""
OPERATORS = ("rare", "totals")
KEY_GROUPS = 4
LAST = 99
"""The last batch of every run."""


def key_of(batch: int) -> str:
    """The idempotency key."""
    return f"batch-{batch}"


def number_of(key: str) -> int:
    """The batch of a key."""
    return int(key.removeprefix("batch-"))


def changes_of(batch: int, operator: str) -> dict[str, int]:
    """What the batch upserts; empty if it does not touch the operator."""
    if operator == "rare":
        return {"first": batch} if batch == 1 else {}
    return {f"key-{batch % 3}": batch, "newest": batch}


def group_of(key: str) -> int:
    """The key group of a key of the state."""
    return int(key[-1]) if key.startswith("key-") else KEY_GROUPS - 1


def state_of(batches: Iterable[int], operator: str) -> dict[str, int]:
    """The operator's state after these batches, in order."""
    state: dict[str, int] = {}
    for batch in batches:
        state.update(changes_of(batch, operator))
    return state


def file_name(batch: int, file: str) -> str:
    """The final name."""
    return f"out/{batch}/{file}"


def file_parts(attempt: str, batch: int, file: str) -> list[bytes]:
    """The bytes of each component."""
    return [f"{attempt}/{batch}/{file}/{part};".encode() for part in range(FILES[file])]


def file_bytes(attempt: str, batch: int, file: str) -> bytes:
    """The bytes of the final object."""
    return b"".join(file_parts(attempt, batch, file))


def encoded(state: dict[str, int]) -> bytes:
    """The bytes of a changelog file of the simulation."""
    return json.dumps(state, sort_keys=True).encode()
