"""What a manifest leads to, found a second time, from the bare JSON of the documents.

Owns the walk as the simulation states it: the state of a key group is its newest base and the changes since,
less those that a compaction holds.
Shares no code with the protocol. Does not own when this must hold (`oracle`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.simulated.batches import KEY_GROUPS, group_of
from tests.simulated.ledger import document
from tests.simulated.world import World

__all__ = ["needed_by", "state_in"]


def state_in(world: World, manifest_name: str, operator: str) -> dict[str, int] | None:
    """An operator's state, folded from the objects that the manifests name; `None` if one is missing."""
    state: dict[str, int] = {}
    for _manifest, found in _needed_reports(world, manifest_name, operator):
        if found is None:
            return None
        for handle, needed in reversed(_needed_handles(*found)):
            for file in handle["files"]:
                body = world.payload(file["name"])
                if body is None:
                    return None
                for key, value in json.loads(body).items():
                    if group_of(key) in needed:
                        state.setdefault(key, value)  # newest first
    return state


def _needed_reports(
    world: World, manifest_name: str, operator: str
) -> Iterator[tuple[str, tuple[dict[str, Any], set[int], set[int]] | None]]:
    """Newest first, each with its manifest, the key groups that no newer base holds, and those of them whose
    changes no newer compaction holds; last None if one of the manifests is missing.
    """
    name: str | None = manifest_name
    bare = set(range(KEY_GROUPS))
    changed = set(bare)
    while name is not None and bare:
        payload = world.payload(name)
        if payload is None:
            yield name, None
            return
        entry = document(payload)["operators"].get(operator)
        if entry is None:
            return
        reports = [entry["report"], *(each["report"] for each in entry.get("carried", ()))]
        for number, report in enumerate(reports, 1):
            # An operator's first changes are no part of any compaction.
            is_first = number == len(reports) and entry["previous"] is None
            if bare:
                yield name, (report, set(bare), set(bare if is_first else changed & bare))
            if report.get("base"):
                bare.clear()
            if "base_range" in report:
                bare -= _range(report["base_range"])
            for handle in report["handles"][: report.get("compaction", {}).get("handles", 0)]:
                changed -= _range(handle["key_groups"])
        name = entry["previous"]


def _needed_handles(
    report: dict[str, Any], bare: set[int], changed: set[int]
) -> list[tuple[dict[str, Any], set[int]]]:
    """In log order, each with the key groups that are needed of it."""
    handles = report["handles"]
    before = report.get("compaction", {}).get("handles", 0)
    if report.get("base") or "base_range" in report:
        end = report.get("base_range", [0, KEY_GROUPS - 1])[1]
        before = next(number for number, each in enumerate(handles, 1) if each["key_groups"][1] == end)
    held = [
        (handle, _range(handle["key_groups"]) & (bare if number < before else changed))
        for number, handle in enumerate(handles)
    ]
    return [(handle, needed) for handle, needed in held if needed]


def _range(key_groups: list[int]) -> set[int]:
    first, last = key_groups
    return set(range(first, last + 1))


def needed_by(world: World, manifest_name: str) -> Iterator[str]:
    """Every object that a checkpoint's state needs, its manifest first, whether it exists or not."""
    yield manifest_name
    payload = world.payload(manifest_name)
    if payload is None:
        return
    for operator in document(payload)["operators"]:
        for name, found in _needed_reports(world, manifest_name, operator):
            yield name
            for handle, _needed in () if found is None else _needed_handles(*found):
                yield from (file["name"] for file in handle["files"])
