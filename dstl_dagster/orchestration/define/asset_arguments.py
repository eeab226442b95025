"""The arguments of an asset that holds a job's state: Dagster's words, of which some mean nothing here.

Owns which are taken, and the key, tags and dependencies that follow from them. Does not own what is made of
them (`checkpointed_asset`, `assets`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import TAG_ASSET, TAG_JOB, AssetRole, JobAssets


@contextmanager
def argument(name: str) -> Iterator[None]:
    """Refusals inside begin with the name of the argument, or of the field, that they are about."""
    try:
        yield
    except (InvalidInputError, dg.DagsterInvalidDefinitionError) as error:
        said, kind = str(error), getattr(error, "kind", ErrorKind.INVALID_INPUT)
        if said.startswith(f"{name}: "):
            raise
        raise InvalidInputError(f"{name}: {said}", kind=ErrorKind(kind)) from error


def require_known(
    by: str, arguments: Mapping[str, Any], taken: Collection[str], refused: Mapping[str, str], own: str
) -> None:
    """Raises: InvalidInputError for an argument of the definition `by` that is refused, for its reason, or is
    not taken. `own`: those that are not Dagster's, in words.
    """
    for name in arguments:
        if name in refused:
            raise InvalidInputError(f"{by} takes no {name!r}: {refused[name]}")
        if name not in taken:
            raise InvalidInputError(f"{by} takes no {name!r}: it takes {own}, and {', '.join(sorted(taken))}")
    partitions, policy = arguments.get("partitions_def"), arguments.get("backfill_policy")
    if partitions is not None and policy is not None and policy != dg.BackfillPolicy.multi_run(1):
        raise InvalidInputError(
            "backfill_policy: a checkpoint holds one partition, so a run is for one: leave it out, or write "
            "dagster.BackfillPolicy.multi_run(1)"
        )


def require_changelog(changelog: Any) -> None:
    """Raises: InvalidInputError for anything but a resource that names a store."""
    if changelog is None:
        return
    if not isinstance(changelog, ChangelogStorageResource):
        raise InvalidInputError(f"changelog is a ChangelogStorageResource(uri=...), not {changelog!r}")
    changelog.require_valid()


def state_key(assets: JobAssets, default: str, arguments: Mapping[str, Any]) -> dg.AssetKey:
    """`<job>/<name>`, where no argument says otherwise. `default`: the name where none is chosen."""
    key, prefix = arguments.get("key"), arguments.get("key_prefix") or [assets.group_name]
    if key is not None:
        if arguments.get("name") is not None or arguments.get("key_prefix") is not None:
            raise InvalidInputError("`key` is the whole key: leave out `name` and `key_prefix`, or `key`")
        return dg.AssetKey.from_coercible(key)
    name = arguments.get("name") or assets.state or default
    found = dg.AssetKey([*([prefix] if isinstance(prefix, str) else prefix), name])
    if found in (assets.files_key, assets.checkpoints_key):
        raise InvalidInputError(
            f"{found.to_user_string()} is the asset of the job's {name}: give this one another `name`"
        )
    return found


def for_dagster(
    assets: JobAssets, key: dg.AssetKey, arguments: Mapping[str, Any], **defaults: Any
) -> dict[str, Any]:
    """Dagster's arguments: the caller's, ours where they are left out, and the tags by which it is found."""
    chosen = {
        name: value
        for name, value in arguments.items()
        if value is not None and name not in ("name", "key_prefix")
    }
    tags = {**chosen.get("tags", {}), TAG_JOB: assets.job, TAG_ASSET: AssetRole.STATE.value}
    return {"group_name": assets.group_name, **defaults, **chosen, "key": key, "tags": tags}


def deps_in(deps: Iterable[Any] | None, ordered: dg.AssetKey | None = None) -> list[Any]:
    """Raises: InvalidInputError for a single one, of which Dagster would take the parts; and for `ordered`,
    the asset's own key, if its partitions have an order.
    """
    if isinstance(deps, str | dg.AssetKey | dg.AssetDep | dg.AssetSpec | dg.AssetsDefinition):
        raise InvalidInputError(f"deps: expected assets in a list, such as [{deps!r}]")
    found = list(deps or ())
    if ordered is not None and ordered in [getattr(each, "asset_key", each) for each in found]:
        raise InvalidInputError(
            f"deps: {ordered.to_user_string()} depends on its own previous partition already: leave it out"
        )
    return found
