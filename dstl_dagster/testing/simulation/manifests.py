"""What a manifest leads to, found a second time, from the bare JSON of the documents.

Owns the walk as the simulation states it: the state of a key group is its newest base and the changes since.
Shares no code with the protocol. Does not own when this must hold (`oracle`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dstl_dagster.testing.simulation.batches import KEY_GROUPS, group_of
from dstl_dagster.testing.simulation.ledger import document
from dstl_dagster.testing.simulation.world import World

__all__ = ["needed_by", "state_in"]


def state_in(world: World, manifest_name: str, operator: str) -> dict[str, int] | None:
    """An operator's state, folded from the objects that the manifests name; `None` if one is missing."""
    state: dict[str, int] = {}
    for _manifest, found in _needed_reports(world, manifest_name, operator):
        if found is None:
            return None
        report, bare = found
        for handle in reversed(report["handles"]):
            for file in handle["files"]:
                body = world.payload(file["name"])
                if body is None:
                    return None
                first, last = handle["key_groups"]
                for key, value in json.loads(body).items():
                    if group_of(key) in bare and first <= group_of(key) <= last:
                        state.setdefault(key, value)  # newest first
    return state


def _needed_reports(
    world: World, manifest_name: str, operator: str
) -> Iterator[tuple[str, tuple[dict[str, Any], set[int]] | None]]:
    """Newest first, each with its manifest and the key groups that no newer base holds; last None if one of
    the manifests is missing.
    """
    name: str | None = manifest_name
    bare = set(range(KEY_GROUPS))
    while name is not None and bare:
        payload = world.payload(name)
        if payload is None:
            yield name, None
            return
        entry = document(payload)["operators"].get(operator)
        if entry is None:
            return
        for report in [entry["report"], *(each["report"] for each in entry.get("carried", ()))]:
            if bare:
                yield name, (report, set(bare))
            if report.get("base"):
                bare.clear()
            if "base_range" in report:
                first, last = report["base_range"]
                bare -= set(range(first, last + 1))
        name = entry["previous"]


def needed_by(world: World, manifest_name: str) -> Iterator[str]:
    """Every object that a checkpoint's state needs, its manifest first, whether it exists or not."""
    yield manifest_name
    payload = world.payload(manifest_name)
    if payload is None:
        return
    for operator in document(payload)["operators"]:
        for name, found in _needed_reports(world, manifest_name, operator):
            yield name
            for handle in () if found is None else found[0]["handles"]:
                first, last = handle["key_groups"]
                if found is not None and found[1] & set(range(first, last + 1)):
                    yield from (file["name"] for file in handle["files"])
