"""The declarations of an IO manager's assets, checked while definitions load.

Owns when that is asked, and that two assets share no job by accident. Does not own what each says
(`targets`).

An IO manager learns of its assets only in a run. But Dagster asks a resource for its requirements on behalf
of each asset that has it, and then the asset is the caller. Where a release of Dagster asks otherwise,
nothing is checked here, and a run is refused with the same sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.define.targets import Target

_OTHERS = frozenset({"dstl/job", "dstl/operator"})
"""Metadata that an asset has as well which writes its state itself, and hands no rows to an IO manager."""


class OutputChecks:
    """Of one IO manager: what its assets have said so far."""

    def __init__(self) -> None:
        self._targets: dict[str, dict[dg.AssetKey, Target]] = {}

    def attached(self, definition: dg.IOManagerDefinition) -> dg.IOManagerDefinition:
        """The same definition, which from now on checks the assets that it is asked for."""
        requirements: Callable[..., Iterator[Any]] = definition.get_resource_requirements

        def checked(source_key: str) -> Iterator[Any]:
            asker = sys._getframe(1).f_locals.get("self")
            if isinstance(asker, dg.AssetsDefinition):
                self._check(asker, source_key)
            return requirements(source_key)

        definition.get_resource_requirements = checked  # type: ignore[method-assign, assignment]
        return definition

    def _check(self, assets: dg.AssetsDefinition, source_key: str) -> None:
        for spec in assets.specs if assets.is_executable else ():
            if spec.key not in assets.keys:
                continue  # in a run of a part of what the op makes
            names_columns = any(each not in _OTHERS for each in Target.named(spec.metadata))
            if names_columns and assets.get_io_manager_key_for_asset_key(spec.key) == source_key:
                target = Target.of_asset(spec.key, spec.metadata, spec.partitions_def)
                self._require_own(spec.key, target)

    def _require_own(self, key: dg.AssetKey, target: Target) -> None:
        known = self._targets.setdefault(target.job, {})
        for other_key, other in known.items():
            if other_key == key:
                continue
            if not (target.names_job and other.names_job):
                raise InvalidInputError(
                    f"{target.where} and {other.where} would share the job {target.job!r}: name by dstl/job "
                    "a job of its own for one of them; or this one for both, if it is meant"
                )
            is_meant = target.names_operator and other.names_operator
            is_meant = is_meant and not (target.replaces or other.replaces)
            if other.rule.operator == target.rule.operator and not is_meant:
                raise InvalidInputError(
                    f"{target.where} and {other.where} would both write {target.rule.operator!r} of job "
                    f"{target.job!r}: give one of them another dstl/operator"
                )
        known[key] = target
