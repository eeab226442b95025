"""What a manifest leads to, found a second time, from the bare JSON of the documents.

Owns the reading as the simulation states it: an operator's runs are those that its list names, then those
that the manifest names itself; a later one replaces what an earlier one says of a key.
Shares no code with the protocol. Does not own when this must hold (`oracle`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.simulated.batches import group_of
from tests.simulated.ledger import document
from tests.simulated.world import World

_Handle = tuple[list[str], int, int]
"""The names of its files, and its key groups, both inclusive."""


def state_in(world: World, manifest_name: str, operator: str) -> dict[str, int] | None:
    """An operator's state, from the objects that the manifest names; `None` if one is missing."""
    payload = world.payload(manifest_name)
    if payload is None:
        return None
    fields = document(payload)
    if operator not in fields["operators"]:
        return {}
    handles = _handles(world, manifest_name, fields["operators"][operator], operator)
    if handles is None:
        return None
    state: dict[str, int] = {}
    for files, first, last in handles:
        for name in files:
            body = world.payload(name)
            if body is None:
                return None
            rows = json.loads(body).items()
            state.update({key: value for key, value in rows if first <= group_of(key) <= last})
    return state


def needed_by(world: World, manifest_name: str) -> Iterator[str]:
    """Every object that a checkpoint's state needs, its manifest first, whether it exists or not."""
    yield manifest_name
    payload = world.payload(manifest_name)
    if payload is None:
        return
    for operator, entry in document(payload)["operators"].items():
        if "list" in entry:
            yield _list_name(manifest_name, entry)
        for files, _first, _last in _handles(world, manifest_name, entry, operator) or ():
            yield from files


def _list_name(manifest_name: str, entry: dict[str, Any]) -> str:
    job = manifest_name.partition("/manifests/")[0]
    return f"{job}/attempts/{entry['list'][0]}/runs"


def _handles(world: World, manifest_name: str, entry: dict[str, Any], operator: str) -> list[_Handle] | None:
    """Of all runs, oldest first; `None` if the list is missing."""
    found: list[_Handle] = []
    if "list" in entry:
        payload = world.payload(_list_name(manifest_name, entry))
        if payload is None:
            return None
        listed = document(payload)["operators"][entry.get("listed_as", operator)]
        found += _of_runs(listed)
    return found + _of_runs(entry)


def _of_runs(entry: dict[str, Any]) -> list[_Handle]:
    runs = entry.get("runs", {"files": (), "runs": ()})
    files = [runs["folders"][folder] + name for folder, name, *_ in runs["files"]]
    return [
        ([files[index] for index, _offset in entries], first, last)
        for *_, handles in runs["runs"]
        for (first, last), _sizes, entries, *_ in handles
    ]
