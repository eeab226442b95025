"""The names of all temporary objects of one file: components and intermediates.

Owns the step from a recoverable (and what is known of its components) to names. Does not own the pattern
of a name (`blob_names`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.recoverable.blob_names import (
    GSBlobIdentifier,
    temporary_bucket_name,
    temporary_object_name,
    temporary_object_name_with_entropy,
)
from dstl_dagster.recoverable.compose import plan_compose, waves
from dstl_dagster.recoverable.recoverables import Component, GSCommitRecoverable
from dstl_dagster.settings.gs import GSFileSystemOptions


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
                raise InvalidInputError(f"{final} has no components, but {len(components)} were given")
            bucket_name = temporary_bucket_name(final, options)
            name = _pattern(final, with_entropy=options.filesink_entropy_enabled)
            return cls(bucket_name, tuple(name(object_id) for object_id in object_ids), name)
        names = tuple(component.object_name for component in components)
        with_entropy = names[:1] == (temporary_object_name_with_entropy(final, object_ids[0]),)
        name = _pattern(final, with_entropy=with_entropy)
        if names != tuple(name(object_id) for object_id in object_ids):
            raise InvalidInputError(
                f"the components given are not those of the recoverable of {final}, in its order"
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
