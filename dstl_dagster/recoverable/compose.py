"""Which objects are composed into which, and under which names: the plan of a commit.

Owns the shape of the tree and the names of intermediates, pure. Does not own any request (`commit`).

A compose takes 32 sources, so n components need ceil((n-1)/31) composes. Of all trees with that few, this
one is the flattest, ceil(log32 n) waves, and rewrites the least: only the excess over the next power of 32
is folded in the first wave, and every later group is full. Names of intermediates follow from the
recoverable, so that whoever goes on with a commit finds what was made before.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dstl_dagster.recoverable.identifiers import new_component_id
from dstl_dagster.recoverable.recoverables import GSCommitRecoverable
from dstl_dagster.recoverable.serializers import GSCommitRecoverableSerializer
from dstl_dagster.storage import MAX_COMPOSE_SOURCES

__all__ = ["Node", "leaves", "plan_compose", "recoverable_hash", "waves"]


@dataclass(frozen=True)
class Node:
    """The components `[first, end)` as one object.

    `object_id` names the temporary object: a component's own id, or one that follows from the recoverable.
    `children` is empty for a component, and has 2 to 32 nodes (1 for the root of a single one) otherwise.
    """

    object_id: uuid.UUID
    first: int
    end: int
    children: tuple[Node, ...] = ()


def recoverable_hash(recoverable: GSCommitRecoverable) -> str:
    """What a commit is known by: SHA-256 of the commit bytes, in hex. A resume state hashes as its commit."""
    octets = GSCommitRecoverableSerializer.INSTANCE.serialize(recoverable)
    return hashlib.sha256(octets).hexdigest()


def plan_compose(recoverable: GSCommitRecoverable, *, max_sources: int = MAX_COMPOSE_SOURCES) -> Node | None:
    """The root of the tree, whose children are the sources of the last compose; None for no component."""
    object_ids = recoverable.component_object_ids
    if not object_ids:
        return None
    digest = recoverable_hash(recoverable)
    level = [Node(object_id, index, index + 1) for index, object_id in enumerate(object_ids)]
    width = 1
    while width * max_sources < len(level):
        width *= max_sources
    while width > 1:
        level = _fold(level, width, max_sources, digest)
        width //= max_sources
    return _parent(level, digest)


def waves(root: Node) -> list[list[Node]]:
    """The inner nodes below the root, in waves: all of a wave can be made at once, after the one before."""
    heights: dict[int, list[Node]] = {}

    def visit(node: Node) -> int:
        if not node.children:
            return 0
        height = 1 + max(visit(child) for child in node.children)
        heights.setdefault(height, []).append(node)
        return height

    top = visit(root)
    return [heights[height] for height in range(1, top)]


def leaves(root: Node) -> Iterator[Node]:
    """The components, in the order of their bytes."""
    if not root.children:
        yield root
    for child in root.children:
        yield from leaves(child)


def _fold(level: Sequence[Node], wanted: int, max_sources: int, digest: str) -> list[Node]:
    """Group the first nodes so that `wanted` remain. A group of k nodes takes k-1 away."""
    excess = len(level) - wanted
    folded: list[Node] = []
    position = 0
    while excess > 0:
        size = min(max_sources, excess + 1)
        folded.append(_parent(level[position : position + size], digest))
        position += size
        excess -= size - 1
    return [*folded, *level[position:]]


def _parent(children: Sequence[Node], digest: str) -> Node:
    first, end = children[0].first, children[-1].end
    named = hashlib.sha256(f"{digest}/{first}-{end}".encode()).digest()
    # The upper half is an attempt's, as in every temporary name, so that clean-up knows whose it is.
    object_id = new_component_id(children[-1].object_id, int.from_bytes(named[:8], "big"))
    return Node(object_id, first, end, tuple(children))
