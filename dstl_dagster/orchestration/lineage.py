"""How a checkpoint looks in Dagster: a pure translation of a checkpoint into events and their metadata."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import dagster as dg
import pyarrow as pa

from dstl_dagster.checkpoint import Checkpoint, FileReport, OperatorReport
from dstl_dagster.format import JobNames, readable_bytes
from dstl_dagster.keyed import CheckpointCost, list_price_usd
from dstl_dagster.orchestration.keys import (
    TAG_ATTEMPT,
    TAG_CHECKPOINT,
    TAG_PARENT,
    TAG_REPORTER,
    TAG_RESTORED,
    TAG_SLOT,
    TAG_STEP,
    TAG_TIMELINE,
    TAG_VERSION,
    JobAssets,
)
from dstl_dagster.settings import StoragePrices
from dstl_dagster.timeline import Committed, Completed

__all__ = [
    "Reporter",
    "checkpoint_materialization",
    "files_event",
    "files_version",
    "operator_materialization",
    "state_materialization",
    "state_metadata",
    "state_version",
    "store_location",
    "subsumed_materialization",
    "timeline_mark",
]

_KIB = 1024
_MICRO = 1_000_000
_TABLE_ROWS = 50
_COLUMN_SCHEMA = "dagster/column_schema"
_CONSOLE = "https://console.cloud.google.com/storage/browser"


@dataclass(frozen=True)
class Reporter:
    """Who reports a checkpoint: `run` or `sensor`, the URI of the store it reads, and the prices there.

    `owner` is whose attempt made the checkpoint; `None` where that is not known. `restored_in` is the slot of
    the restore that the event tells of, if it tells of one.
    """

    kind: str
    store_uri: str
    prices: StoragePrices = field(default_factory=StoragePrices)
    owner: str | None = None
    restored_in: int | None = None


def checkpoint_materialization(
    assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter
) -> dg.AssetMaterialization:
    """The event of a completed checkpoint."""
    parent = _parent(checkpoint.parent)
    manifest = checkpoint.manifest
    metadata: dict[str, Any] = {
        "checkpoint": str(checkpoint.checkpoint_id),
        "parent": parent,
        "size": f"{readable_bytes(manifest.state_bytes)} of changelog, "
        f"{readable_bytes(manifest.file_bytes)} of files",
        "positions": dg.MetadataValue.json(dict(checkpoint.positions)),
        "operators": _operator_table(checkpoint),
        # Numbers become plots, so only measures are numbers; ids are text.
        "changes": manifest.changes,
        "changelog KiB": _measure(manifest.state_bytes / _KIB),
        "files": len(manifest.files),
        "file KiB": _measure(manifest.file_bytes / _KIB),
        "persist seconds": _measure(manifest.persist_seconds),
        "confirm seconds": _measure(checkpoint.entry.completed.seconds),
        "manifest": store_location(reporter.store_uri, checkpoint.entry.completed.manifest),
        **_when_and_who(checkpoint.entry.completed, reporter),
        **_cost_measures(checkpoint, reporter.prices),
    }
    if manifest.cost is not None:
        metadata["cost"] = _cost_table(manifest.cost, reporter.prices)
    if checkpoint.parent is not None:
        metadata["lineage"] = dg.MetadataValue.md(
            f"`{assets.partition_key(checkpoint.checkpoint_id)}` builds on "
            f"`{assets.partition_key(checkpoint.parent)}`"
        )
        metadata["parent checkpoint"] = dg.MetadataValue.asset(assets.checkpoints_key)
    return dg.AssetMaterialization(
        asset_key=assets.checkpoints_key,
        partition=assets.partition_key(checkpoint.checkpoint_id),
        description=f"checkpoint {checkpoint.checkpoint_id} of {assets.job}, on {parent}",
        tags=_tags(assets, checkpoint.entry.completed, reporter),
        metadata=metadata,
    )


def subsumed_materialization(
    assets: JobAssets, completed: Completed, reporter: Reporter
) -> dg.AssetMaterialization:
    """The event of a checkpoint whose manifest was deleted before it was reported: its record is left."""
    parent = _parent(completed.parent)
    return dg.AssetMaterialization(
        asset_key=assets.checkpoints_key,
        partition=assets.partition_key(completed.checkpoint_id),
        description=f"checkpoint {completed.checkpoint_id} of {assets.job}, on {parent}; subsumed since",
        tags=_tags(assets, completed, reporter),
        metadata={
            "files": len(completed.files),
            "confirm seconds": _measure(completed.seconds),
            "checkpoint": str(completed.checkpoint_id),
            "parent": parent,
            **_when_and_who(completed, reporter),
            "state": "subsumed, and its manifest is deleted: it cannot be restored",
        },
    )


def operator_materialization(
    assets: JobAssets, checkpoint: Checkpoint, operator: str, reporter: Reporter
) -> dg.AssetMaterialization:
    """The event of the changes that a checkpoint made to the state of one operator."""
    report = checkpoint.manifest.operators[operator].report
    names = JobNames(assets.job)
    metadata: dict[str, Any] = {
        "upserts": report.upserts,
        "deletes": report.deletes,
        "changelog KiB": _measure(report.stored_bytes / _KIB),
        "checkpoint": str(checkpoint.checkpoint_id),
        "size": readable_bytes(report.stored_bytes),
        "keys": ", ".join(report.key_columns),
        "key groups": str(report.max_parallelism),
        "changelog": store_location(reporter.store_uri, f"{names.changelog_base_path(checkpoint.attempt)}/"),
    }
    columns = _state_columns(report)
    if columns is not None:
        metadata[_COLUMN_SCHEMA] = dg.MetadataValue.table_schema(columns)
    return dg.AssetMaterialization(
        asset_key=assets.operator_key(operator),
        description=f"state of {operator} at checkpoint {checkpoint.checkpoint_id}",
        tags=_tags(assets, checkpoint.entry.completed, reporter),
        metadata=metadata,
    )


def files_event(
    assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter, partition: str | None
) -> dg.AssetMaterialization | dg.AssetObservation:
    """The event of the files that a checkpoint published: a materialization once none is blocked any more."""
    files = checkpoint.manifest.files
    blocked = {file.name for file in checkpoint.blocked}
    commit = checkpoint.entry.committed
    metadata: dict[str, Any] = {
        "files": len(files) - len(blocked),
        "rows": sum(file.rows or 0 for file in files),
        "file KiB": _measure(checkpoint.manifest.file_bytes / _KIB),
        "components": sum(len(file.components) for file in files),
        "compose-commit seconds": 0.0 if commit is None else _measure(commit.seconds),
        "checkpoint": str(checkpoint.checkpoint_id),
        "size": readable_bytes(checkpoint.manifest.file_bytes),
        "published": _file_table(files, blocked),
        "folder": store_location(reporter.store_uri, _folder_of(files)),
        **_when_and_who(checkpoint.entry.completed, reporter),
    }
    if blocked:
        metadata["blocked"] = dg.MetadataValue.md(
            "\n".join(f"* `{file.name}`: {file.reason}" for file in checkpoint.blocked)
        )
    event = dg.AssetObservation if blocked else dg.AssetMaterialization
    which = f"{len(blocked)} of {len(files)} files are blocked" if blocked else "files"
    return event(
        asset_key=assets.files_key,
        partition=partition,
        description=f"{which} of checkpoint {checkpoint.checkpoint_id}",
        tags={
            **_tags(assets, checkpoint.entry.completed, reporter, step="6"),
            TAG_VERSION: files_version(checkpoint.attempt, commit),
        },
        metadata=metadata,
    )


def state_materialization(
    assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter, partition: str | None
) -> dg.AssetMaterialization:
    """The event of the whole state, where no run of the state's own asset reports it."""
    return dg.AssetMaterialization(
        asset_key=assets.state_key,
        partition=partition,
        description=f"state at checkpoint {checkpoint.checkpoint_id}",
        tags=_tags(assets, checkpoint.entry.completed, reporter),
        metadata={
            **state_metadata(checkpoint, reporter.prices),
            **_when_and_who(checkpoint.entry.completed, reporter),
        },
    )


def state_version(attempt: uuid.UUID) -> str:
    """What the state is made of, as Dagster's data version: the attempt that completed its checkpoint."""
    return str(attempt)


def files_version(attempt: uuid.UUID, committed: Committed | None) -> str:
    """What is published of a checkpoint's files: another outcome after a person resolved a blocked one."""
    return f"{attempt}-{0 if committed is None else committed.slot}"


def _when_and_who(completed: Completed, reporter: Reporter) -> dict[str, Any]:
    """An event's own time and reporter are those of the report, which may be days later."""
    who: dict[str, Any] = {}
    if reporter.owner is not None:
        who["made by"] = reporter.owner
    if completed.idempotency_key is not None:
        who["batch"] = completed.idempotency_key
    # Text: Dagster takes a timestamp for a measure.
    return {"completed at": f"{completed.recorded_at:%Y-%m-%d %H:%M:%S} UTC", **who}


def _cost_measures(checkpoint: Checkpoint, prices: StoragePrices) -> dict[str, Any]:
    """Of steps 1 to 4; nothing where an earlier release wrote the checkpoint."""
    cost = checkpoint.manifest.cost
    if cost is None:
        return {}
    return {
        "requests": cost.total.requests,
        # Dollars would be too small for the axis of a plot.
        "cost micro-USD": _measure(list_price_usd(cost.total, prices) * _MICRO),
    }


def _cost_table(cost: CheckpointCost, prices: StoragePrices) -> dg.MetadataValue:
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "step": name,
                    "class A": step.traffic.class_a,
                    "class B": step.traffic.class_b,
                    "free": step.traffic.free,
                    "retries": step.traffic.retries,
                    "uploads": step.traffic.uploads,
                    "composes": step.traffic.composes,
                    "up": readable_bytes(step.traffic.bytes_up),
                    "down": readable_bytes(step.traffic.bytes_down),
                    "seconds": _measure(step.seconds),
                    "USD": f"{list_price_usd(step.traffic, prices):.6f}",
                }
            )
            for name, step in cost.steps.items()
        ]
    )


def state_metadata(checkpoint: Checkpoint, prices: StoragePrices) -> dict[str, Any]:
    """The metadata of the materialization of the state itself."""
    return {
        "checkpoint": str(checkpoint.checkpoint_id),
        "changed rows": checkpoint.manifest.changes,
        "changelog KiB": _measure(checkpoint.manifest.state_bytes / _KIB),
        "operators": _operator_table(checkpoint),
        **_cost_measures(checkpoint, prices),
    }


def store_location(store_uri: str, name: str) -> dg.MetadataValue:
    """A path for a local store, the console's page for a bucket, the URI for anything else."""
    place = f"{store_uri.rstrip('/')}/{name}"
    if place.startswith("file://"):
        return dg.MetadataValue.path(place.removeprefix("file://"))
    if place.startswith("gs://"):
        # The console shows a folder and an object on different pages.
        page = _CONSOLE if not name or name.endswith("/") else f"{_CONSOLE}/_details"
        return dg.MetadataValue.url(f"{page}/{quote(place[5:])}")
    return dg.MetadataValue.text(place)


def _parent(checkpoint_id: int | None) -> str:
    return "none (the first)" if checkpoint_id is None else f"checkpoint {checkpoint_id}"


def _measure(value: float) -> float:
    """Three significant digits: enough for a plot, down to milliseconds."""
    return float(f"{value:.3g}")


def timeline_mark(assets: JobAssets, store_uri: str) -> str:
    """Names a timeline where Dagster allows only letters and digits: a digest of its store and job."""
    return hashlib.sha256(f"{store_uri.rstrip('/')}\n{assets.job}".encode()).hexdigest()[:16]


def _tags(assets: JobAssets, completed: Completed, reporter: Reporter, step: str = "5") -> Mapping[str, str]:
    tags = {
        TAG_CHECKPOINT: str(completed.checkpoint_id),
        TAG_STEP: step,
        TAG_ATTEMPT: str(completed.attempt),
        TAG_SLOT: str(completed.slot),
        TAG_TIMELINE: timeline_mark(assets, reporter.store_uri),
        TAG_REPORTER: reporter.kind,
        TAG_VERSION: state_version(completed.attempt),
    }
    if reporter.restored_in is not None:
        tags[TAG_RESTORED] = str(reporter.restored_in)
    if completed.parent is not None:
        tags[TAG_PARENT] = str(completed.parent)
    return tags


def _state_columns(report: OperatorReport) -> dg.TableSchema | None:
    """The columns of an operator's state; `None` where its report has no Arrow schema."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(report.schema))
    except (pa.ArrowException, OSError):
        return None
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                field.name,
                str(field.type),
                description="key" if field.name in report.key_columns else None,
                constraints=dg.TableColumnConstraints(nullable=field.name not in report.key_columns),
            )
            for field in schema
        ]
    )


def _folder_of(files: tuple[FileReport, ...]) -> str:
    """The deepest folder that holds all files, with a trailing slash; empty for the store itself."""
    folders = [file.object_name.split("/")[:-1] for file in files]
    shared = []
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "".join(f"{part}/" for part in shared)


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
