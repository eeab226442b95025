"""How a checkpoint looks in Dagster: a pure translation of a checkpoint into metadata and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, FileReport
from dstl_dagster.format.readable import readable_bytes
from dstl_dagster.orchestration.keys import TAG_ATTEMPT, TAG_CHECKPOINT, TAG_PARENT, JobAssets

__all__ = ["checkpoint_materialization", "files_materialization", "state_metadata"]

_KIB = 1024
_TABLE_ROWS = 50


def checkpoint_materialization(
    assets: JobAssets, checkpoint: Checkpoint, store_uri: str
) -> dg.AssetMaterialization:
    """The event that says, once, that a checkpoint completed."""
    parent = "none (the first)" if checkpoint.parent is None else f"checkpoint {checkpoint.parent}"
    manifest = checkpoint.manifest
    return dg.AssetMaterialization(
        asset_key=assets.checkpoints_key,
        partition=assets.partition_key(checkpoint.checkpoint_id),
        description=f"checkpoint {checkpoint.checkpoint_id} of {assets.job}, on {parent}",
        tags=_tags(checkpoint),
        metadata={
            # Numbers become plots, so only measures are numbers; ids are text.
            "changes": manifest.changes,
            "changelog KiB": round(manifest.state_bytes / _KIB, 2),
            "files": len(manifest.files),
            "file KiB": round(manifest.file_bytes / _KIB, 2),
            "persist seconds": round(manifest.persist_seconds, 3),
            "confirm seconds": round(checkpoint.entry.completed.seconds, 3),
            "checkpoint": str(checkpoint.checkpoint_id),
            "parent": parent,
            "positions": dg.MetadataValue.json(dict(checkpoint.positions)),
            "manifest": _location(store_uri, checkpoint.entry.completed.manifest),
            "operators": _operator_table(checkpoint),
        },
    )


def files_materialization(
    assets: JobAssets, checkpoint: Checkpoint, store_uri: str, partition: str | None
) -> dg.AssetMaterialization:
    """The event that says that the files of a checkpoint are published."""
    files = checkpoint.manifest.files
    blocked = {file.name for file in checkpoint.blocked}
    commit = checkpoint.entry.committed
    metadata: dict[str, Any] = {
        "files": len(files) - len(blocked),
        "rows": sum(file.rows or 0 for file in files),
        "file KiB": round(checkpoint.manifest.file_bytes / _KIB, 2),
        "components": sum(len(file.components) for file in files),
        "compose-commit seconds": round(commit.seconds, 3) if commit is not None else 0.0,
        "checkpoint": str(checkpoint.checkpoint_id),
        "published": _file_table(files, blocked),
        "folder": _location(store_uri, ""),
    }
    if blocked:
        metadata["blocked"] = dg.MetadataValue.md(
            "\n".join(f"* `{file.name}`: {file.reason}" for file in checkpoint.blocked)
        )
    return dg.AssetMaterialization(
        asset_key=assets.files_key,
        partition=partition,
        description=f"files of checkpoint {checkpoint.checkpoint_id}",
        tags=_tags(checkpoint),
        metadata=metadata,
    )


def state_metadata(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the materialisation of the state itself shows."""
    return {
        "checkpoint": str(checkpoint.checkpoint_id),
        "changed rows": checkpoint.manifest.changes,
        "changelog KiB": round(checkpoint.manifest.state_bytes / _KIB, 2),
        "operators": _operator_table(checkpoint),
    }


def _tags(checkpoint: Checkpoint) -> Mapping[str, str]:
    tags = {TAG_CHECKPOINT: str(checkpoint.checkpoint_id), TAG_ATTEMPT: str(checkpoint.attempt)}
    if checkpoint.parent is not None:
        tags[TAG_PARENT] = str(checkpoint.parent)
    return tags


def _location(store_uri: str, name: str) -> dg.MetadataValue:
    """A path for a local store, the console's page for a bucket, the URI for anything else."""
    place = f"{store_uri.rstrip('/')}/{name}"
    if place.startswith("file://"):
        return dg.MetadataValue.path(place.removeprefix("file://"))
    if place.startswith("gs://"):
        return dg.MetadataValue.url(f"https://console.cloud.google.com/storage/browser/{place[5:]}")
    return dg.MetadataValue.text(place)


def _operator_table(checkpoint: Checkpoint) -> dg.MetadataValue:
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "operator": name,
                    "keys": ", ".join(entry.report.key_columns),
                    "upserts": entry.report.upserts,
                    "deletes": entry.report.deletes,
                    "changelog": readable_bytes(entry.report.stored_bytes),
                    "tasks": len(entry.report.handles),
                }
            )
            for name, entry in sorted(checkpoint.manifest.operators.items())
        ]
        or [dg.TableRecord({"operator": "none"})]
    )


def _file_table(files: tuple[FileReport, ...], blocked: set[str]) -> dg.MetadataValue:
    shown = [
        dg.TableRecord(
            {
                "file": file.object_name,
                "rows": "" if file.rows is None else str(file.rows),
                "size": readable_bytes(file.size),
                "components": len(file.components),
                "state": "blocked" if file.object_name in blocked else "published",
            }
        )
        for file in files[:_TABLE_ROWS]
    ]
    return dg.MetadataValue.table(shown or [dg.TableRecord({"file": "none"})])
