"""Which objects are composed into which, and under which names: the plan of a commit.

Owns the shape of the tree, and the names of all temporary objects of one file, components and intermediates.
Does not own the pattern of a name (`recoverables`). Pure: sends no requests (`commit` does).

A compose takes at most 32 sources, so n components need ceil((n-1)/31) composes. Of all trees with that
few, this one is the flattest, ceil(log32 n) waves, and rewrites the fewest bytes: the first wave joins only
the excess over the next power of 32, and every later group is full. Intermediate names are derived from the
recoverable, so any process that resumes a commit finds the intermediates written before.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.recoverable.recoverables import (
    Component,
    GSBlobIdentifier,
    GSCommitRecoverable,
    new_component_id,
    temporary_bucket_name,
    temporary_object_name,
    temporary_object_name_with_entropy,
)
from dstl_dagster.recoverable.serializers import GSCommitRecoverableSerializer
from dstl_dagster.settings.gs import GSFileSystemOptions
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
        level = _with_groups(level, width, max_sources, digest)
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


def _with_groups(level: Sequence[Node], wanted: int, max_sources: int, digest: str) -> list[Node]:
    """Group the first nodes so that `wanted` remain. Grouping k nodes removes k-1."""
    excess = len(level) - wanted
    groups: list[Node] = []
    position = 0
    while excess > 0:
        size = min(max_sources, excess + 1)
        groups.append(_parent(level[position : position + size], digest))
        position += size
        excess -= size - 1
    return [*groups, *level[position:]]


def _parent(children: Sequence[Node], digest: str) -> Node:
    first, end = children[0].first, children[-1].end
    named = hashlib.sha256(f"{digest}/{first}-{end}".encode()).digest()
    # The upper half is the attempt's, as in every temporary name, so that clean-up knows the owner.
    object_id = new_component_id(children[-1].object_id, int.from_bytes(named[:8], "big"))
    return Node(object_id, first, end, tuple(children))


@dataclass(frozen=True)
class TemporaryNames:
    """One bucket, the components' names in it, and how an intermediate's id becomes a name."""

    bucket_name: str
    of_components: tuple[str, ...]
    of_id: Callable[[uuid.UUID], str]

    @classmethod
    def of(
        cls,
        recoverable: GSCommitRecoverable,
        components: Sequence[Component] | None,
        options: GSFileSystemOptions,
    ) -> TemporaryNames:
        """Names as the components were written, if these are known; otherwise as the options give them.

        So changing the temporary bucket or the entropy option strands nothing whose components are on record.

        Raises: InvalidInputError (components of another recoverable, or in several buckets).
        """
        final = recoverable.final_blob_identifier
        object_ids = recoverable.component_object_ids
        if components is None or not object_ids:
            if components:
                raise InvalidInputError(f"{final} has no components, not {len(components)}")
            bucket_name = temporary_bucket_name(final, options)
            name = _pattern(final, with_entropy=options.filesink_entropy_enabled)
            return cls(bucket_name, tuple(name(object_id) for object_id in object_ids), name)
        names = tuple(component.object_name for component in components)
        with_entropy = names[:1] == (temporary_object_name_with_entropy(final, object_ids[0]),)
        name = _pattern(final, with_entropy=with_entropy)
        if names != tuple(name(object_id) for object_id in object_ids):
            raise InvalidInputError(
                f"these components are not those of the recoverable of {final}, in its order"
            )
        buckets = {component.bucket_name for component in components}
        if len(buckets) != 1:
            raise InvalidInputError(f"the components of {final} are in several buckets: {sorted(buckets)}")
        return cls(buckets.pop(), names, name)


def temporary_names(
    recoverable: GSCommitRecoverable,
    components: Sequence[Component] | None = None,
    options: GSFileSystemOptions | None = None,
) -> list[GSBlobIdentifier]:
    """Every temporary object that may exist for the recoverable before it is published.

    Components, and the intermediates of a commit in progress: clean-up must leave all of them alone.
    """
    names = TemporaryNames.of(recoverable, components, options or GSFileSystemOptions())
    all_names = list(names.of_components)
    root = plan_compose(recoverable)
    if root is not None:
        inner = [node for wave in waves(root) for node in wave]
        all_names.extend(names.of_id(node.object_id) for node in [*inner, root])
    return [GSBlobIdentifier(names.bucket_name, name) for name in all_names]


def _pattern(final: GSBlobIdentifier, *, with_entropy: bool) -> Callable[[uuid.UUID], str]:
    name = temporary_object_name_with_entropy if with_entropy else temporary_object_name
    return lambda object_id: name(final, object_id)
