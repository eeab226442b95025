"""Which objects are composed into which, and under which names: the plan of a commit.

Owns the shape of the tree and the names of intermediates. Pure: sends no requests (`commit` does).

A compose takes at most 32 sources, so n components need ceil((n-1)/31) composes. Of all trees with that
few, this one is the flattest, ceil(log32 n) waves, and rewrites the fewest bytes: the first wave folds only
the excess over the next power of 32, and every later group is full. Intermediate names are derived from the
recoverable, so any process that resumes a commit finds the intermediates written before.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dstl_dagster.recoverable.blob_names import new_component_id
from dstl_dagster.recoverable.recoverables import GSCommitRecoverable
from dstl_dagster.recoverable.serializers import GSCommitRecoverableSerializer
from dstl_dagster.storage import MAX_COMPOSE_SOURCES


@dataclass(frozen=True)
class Node:
    """The components `[first, end)` as one object.

    `object_id` names the temporary object: a component's own id, or one derived from the recoverable.
    `children` is empty for a component; any other node has 2 to 32 (the root over a single component has 1).
    """

    object_id: uuid.UUID
    first: int
    end: int
    children: tuple[Node, ...] = ()


def recoverable_hash(recoverable: GSCommitRecoverable) -> str:
    """The identity of a commit: SHA-256 of its bytes, in hex. A resume state hashes as its commit part."""
    octets = GSCommitRecoverableSerializer.INSTANCE.serialize(recoverable)
    return hashlib.sha256(octets).hexdigest()


def plan_compose(recoverable: GSCommitRecoverable, *, max_sources: int = MAX_COMPOSE_SOURCES) -> Node | None:
    """The root of the tree, whose children are the sources of the last compose; None without components."""
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
    """The inner nodes below the root, in waves: the nodes of a wave need only those of earlier waves."""
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
    """Group the first nodes so that `wanted` remain. Grouping k nodes removes k-1."""
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
    # The upper half is the attempt's, as in every temporary name, so that clean-up knows the owner.
    object_id = new_component_id(children[-1].object_id, int.from_bytes(named[:8], "big"))
    return Node(object_id, first, end, tuple(children))
