"""Whether the stores of an op's resources fit each other, asked while definitions load.

Owns of which resources it is asked. Does not own its callers (`ops`, `checkpointed_asset`), or the rule
(`resources`), which is asked in a run as well: then it is known what the environment gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource, require_files_inside


@dataclass(frozen=True)
class FilesInside:
    """That an op has no folder of files where its changelog's store cannot publish.

    A requirement, as Dagster asks a definition for it once resources are bound: when definitions, a job or an
    asset are loaded or validated. It raises InvalidInputError that names the op and the resource.
    """

    op: str
    keys: tuple[str, ...]

    @classmethod
    def of(cls, op: dg.OpDefinition) -> FilesInside:
        """Of the resources that the op takes."""
        return cls(op.name, tuple(sorted(op.required_resource_keys)))

    expected_type = dg.ResourceDefinition
    is_io_manager_requirement = False

    def is_satisfied(self, resource_defs: Mapping[str, dg.ResourceDefinition]) -> bool:  # noqa: ARG002 - Dagster's
        # Where one is missing Dagster binds others. None is: what does not fit is refused below.
        return True

    def ensure_satisfied(self, resource_defs: Mapping[str, dg.ResourceDefinition]) -> None:
        bound = {key: _resource_of(resource_defs[key]) for key in self.keys if key in resource_defs}
        stores = [each.uri for each in bound.values() if isinstance(each, ChangelogStorageResource)]
        # Which of two the op means is known in its run, and so is what the environment gives.
        if len(stores) != 1 or isinstance(stores[0], dg.EnvVar):
            return
        try:
            require_files_inside(stores[0], bound)
        except InvalidInputError as error:
            raise InvalidInputError(f"op {self.op!r}: {error}") from error


def _resource_of(definition: dg.ResourceDefinition) -> Any:
    """The resource behind a definition that Dagster made of it; `None` for one that is passed at launch."""
    return getattr(definition.resource_fn, "__self__", None)
