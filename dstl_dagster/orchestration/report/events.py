"""What an event of a job says in Dagster: a pure translation of its checkpoints and restores.

Owns the words and the numbers of an event. Does not own which events are reported (`reconcile`), how the
chain is drawn (`chain`), or where objects are (`links`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import dagster as dg
import pyarrow as pa

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator
from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import JobNames, counted, readable_bytes
from dstl_dagster.keyed import OperatorEntry
from dstl_dagster.orchestration.keys import (
    TAG_ATTEMPT,
    TAG_CHECKPOINT,
    TAG_JOB,
    TAG_PARENT,
    TAG_REPORTER,
    TAG_RESTORED,
    TAG_SLOT,
    TAG_STEP,
    TAG_TIMELINE,
    TAG_VERSION,
    JobAssets,
)
from dstl_dagster.orchestration.owners import in_words, owner_link
from dstl_dagster.orchestration.partitions import next_partition
from dstl_dagster.orchestration.report.chain import chain_metadata, partition_link
from dstl_dagster.orchestration.report.links import (
    blocked_list,
    bucket_of,
    file_links,
    file_table,
    folder_of,
    published,
    store_location,
)
from dstl_dagster.orchestration.report.measures import (
    cost_measures,
    cost_table,
    is_counted,
    measure,
    mebibytes,
    row_measures,
)
from dstl_dagster.settings import StoragePrices
from dstl_dagster.timeline import Committed, Completed, Restored, TimelineView

__all__ = [
    "Event",
    "Reporter",
    "attempt_of",
    "checkpoint_materialization",
    "child_observation",
    "files_event",
    "files_version",
    "left_behind",
    "operator_materialization",
    "output_of_state",
    "published_observation",
    "rolled_back",
    "state_materialization",
    "state_metadata",
    "state_version",
    "subsumed_materialization",
]

Event = dg.AssetMaterialization | dg.AssetObservation

_FILES_SHOWN = 50
_UUID_LENGTH = 36
_COLUMN_SCHEMA = "dagster/column_schema"
_ROWS, _PARTITION_ROWS, _URI = "dagster/row_count", "dagster/partition_row_count", "dagster/uri"
"""The keys that Dagster shows in places of their own."""
_UPDATED = "dagster/last_updated_timestamp"


@dataclass(frozen=True)
class Reporter:
    """Who reports a checkpoint: `run` or `sensor`, the URI of the store it reads, the timeline's id, and the
    prices there.

    `owner` is whose attempt made the checkpoint; `None` where that is not known. `restored_in` is the slot of
    the restore that the event tells of, if it tells of one. `view` is of the timeline, for the picture of the
    chain; without it there is none. `partitions_def` is of the state, for the next one. `now` is by the
    reporter.
    """

    kind: str
    store_uri: str
    timeline: str
    prices: StoragePrices = field(default_factory=StoragePrices)
    owner: str | None = None
    restored_in: int | None = None
    view: TimelineView | None = None
    partitions_def: dg.PartitionsDefinition[Any] | None = None
    now: datetime = field(default_factory=lambda: SystemClock().now())


def checkpoint_materialization(
    assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter
) -> dg.AssetMaterialization:
    """The event of a completed checkpoint."""
    manifest, completed, rows = checkpoint.manifest, checkpoint.entry.completed, checkpoint.manifest.rows
    metadata: dict[str, Any] = {
        **_at_a_glance(checkpoint, reporter),
        "parent": _parent(assets, checkpoint.parent),
        **({} if reporter.view is None else chain_metadata(assets, reporter.view, reporter.now)),
        **({"file names": file_links(checkpoint, reporter.store_uri)} if manifest.files else {}),
        **published(checkpoint),
        **({"look at": "; ".join(noted)} if (noted := manifest.begun_beside_idle) else {}),
        **_when_and_who(completed, reporter),
        "checkpoint": str(checkpoint.checkpoint_id),
        "sources": _source_table(checkpoint),
        "operators": _operator_table(checkpoint),
        **({} if manifest.cost is None else {"cost": cost_table(manifest.cost, reporter.prices)}),
        "manifest": store_location(reporter.store_uri, completed.manifest),
        # Numbers become plots, so only measures are numbers; ids are text.
        "changes": manifest.changes,
        **({"rows at most": rows.most} if rows is not None and rows.most is not None else {}),
        "changelog MiB": mebibytes(manifest.state_bytes),
        **_state_mebibytes(checkpoint),
        "files": len(manifest.files),
        "file MiB": mebibytes(manifest.file_bytes),
        "batch seconds": measure(manifest.persist_seconds),
        **cost_measures(checkpoint, reporter.prices, reporter.store_uri),
    }
    on = "the first" if checkpoint.parent is None else f"on checkpoint {checkpoint.parent}"
    return dg.AssetMaterialization(
        asset_key=assets.checkpoints_key,
        partition=assets.partition_key(checkpoint.checkpoint_id),
        description=f"checkpoint {checkpoint.checkpoint_id} of {assets.job}, {on}",
        tags=_tags(completed, reporter),
        metadata=metadata,
    )


def _at_a_glance(checkpoint: Checkpoint, reporter: Reporter) -> dict[str, str]:
    """The first lines of a checkpoint's page."""
    manifest = checkpoint.manifest
    stands = [
        f"{name}: {each.position if isinstance(each.position, str) else json.dumps(each.position)}"
        for name, each in sorted(manifest.sources.items())
    ]
    glance = {"resumes at": "; ".join(stands) or "no source has a position"}
    following = _next_partition(checkpoint, reporter)
    if following is not None:
        glance["next partition"] = following
    whole = manifest.rows
    known = whole is not None and whole.most is not None
    all_rows = f", {whole.in_words()} in all" if whole is not None and known else ""
    glance["rows"] = f"{manifest.changes} changed{all_rows}"
    sizes = [f"{readable_bytes(manifest.state_bytes)} of changelog", *_state_size(checkpoint)]
    if manifest.files:
        sizes.append(f"{readable_bytes(manifest.file_bytes)} of files")
    glance["size"] = "; ".join(sizes)
    cost = manifest.cost
    spent = counted(cost.total.requests, "request") if cost is not None and is_counted(cost) else ""
    glance["took"] = ", ".join(filter(None, [f"{manifest.persist_seconds:.1f} s", spent]))
    return glance


def _next_partition(checkpoint: Checkpoint, reporter: Reporter) -> str | None:
    """The one that begins where the source of the checkpoint's batch stands."""
    definition, batch = reporter.partitions_def, checkpoint.entry.completed.batch
    source = None if batch is None else checkpoint.manifest.sources.get(batch.source)
    if source is None or not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return None
    with suppress(InvalidInputError):
        return next_partition(definition, source.position)
    return None


def child_observation(assets: JobAssets, completed: Completed) -> dg.AssetObservation:
    """On the page of its parent, whose event is older: the checkpoint that follows."""
    number = completed.checkpoint_id
    return dg.AssetObservation(
        asset_key=assets.checkpoints_key,
        partition=None if completed.parent is None else assets.partition_key(completed.parent),
        description=f"checkpoint {number} follows",
        tags={TAG_CHECKPOINT: str(completed.parent), TAG_VERSION: f"{completed.attempt}-child"},
        metadata={"child checkpoint": _page(assets, number)},
    )


def published_observation(
    assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter
) -> dg.AssetObservation:
    """On the checkpoint's own page, whose event is older: whether its files have their final names, and the
    chain anew where some are blocked.
    """
    chain = (
        {}
        if reporter.view is None or not checkpoint.blocked
        else chain_metadata(assets, reporter.view, reporter.now)
    )
    number = checkpoint.checkpoint_id
    version = files_version(checkpoint.attempt, checkpoint.entry.committed)
    return dg.AssetObservation(
        asset_key=assets.checkpoints_key,
        partition=assets.partition_key(number),
        description=f"what step 6 made of the files of checkpoint {number}",
        tags={TAG_CHECKPOINT: str(number), TAG_VERSION: f"{version}-files"},
        metadata={**published(checkpoint), **chain},
    )


def left_behind(
    assets: JobAssets,
    restored: Restored,
    completed: Completed,
    still: Mapping[dg.AssetKey, tuple[str, ...]],
) -> list[dg.AssetObservation]:
    """Of a checkpoint that a restore abandoned, at each place that shows it.

    `still`: the partitions of state and files that show such a checkpoint, by asset.
    """
    number, batch = completed.checkpoint_id, completed.idempotency_key
    said: dict[str, Any] = {
        "checkpoint": str(number),
        "rolled back at": in_words(restored.recorded_at),
        "rolled back by": owner_link(restored.by),
    }
    if batch is not None:
        said["run again"] = batch

    def observed(key: dg.AssetKey, partition: str | None, what: str, **more: Any) -> dg.AssetObservation:
        return dg.AssetObservation(
            asset_key=key,
            partition=partition,
            description=f"{assets.job} was rolled back to checkpoint {restored.checkpoint_id}: {what}",
            tags={
                TAG_CHECKPOINT: str(number),
                TAG_ATTEMPT: str(completed.attempt),
                TAG_RESTORED: str(restored.slot),
                TAG_VERSION: f"{completed.attempt}-left-behind",
            },
            metadata={**said, **more},
        )

    events = [
        observed(key, batch, f"{batch} is no longer in the state: run it again")
        for key in assets.state_keys
        if batch in still.get(key, ())
    ]
    if completed.files:
        names = dg.MetadataValue.md("\n".join(f"* `{file.name}`" for file in completed.files[:_FILES_SHOWN]))
        where = batch if batch in still.get(assets.files_key, ()) else None
        what, count = f"the files of checkpoint {number} are gone", len(completed.files)
        events.append(observed(assets.files_key, where, what, files=count, retracted=names))
    page = assets.partition_key(number)
    return [*events, observed(assets.checkpoints_key, page, f"checkpoint {number} cannot be restored")]


def rolled_back(
    event: dg.AssetMaterialization, assets: JobAssets, restored: Restored, left: Iterable[Completed]
) -> dg.AssetMaterialization:
    """The event of a checkpoint that a restore went back to: it says so first, and what it abandoned."""
    days = [each.idempotency_key or f"checkpoint {each.checkpoint_id}" for each in left]
    said: dict[str, Any] = {
        "rolled back at": in_words(restored.recorded_at),
        "rolled back by": owner_link(restored.by),
        "left behind": ", ".join(assets.partition_key(each.checkpoint_id) for each in left) or "nothing",
        "run again": dg.MetadataValue.md("\n".join(f"* {day}" for day in days) or "nothing"),
    }
    return dg.AssetMaterialization(
        asset_key=event.asset_key,
        partition=event.partition,
        description=f"{assets.job} was rolled back to checkpoint {restored.checkpoint_id}",
        tags=event.tags,
        metadata={**said, **event.metadata},
    )


def subsumed_materialization(
    assets: JobAssets, completed: Completed, reporter: Reporter
) -> dg.AssetMaterialization:
    """The event of a checkpoint whose manifest was deleted before it was reported: its record is left."""
    return dg.AssetMaterialization(
        asset_key=assets.checkpoints_key,
        partition=assets.partition_key(completed.checkpoint_id),
        description=f"checkpoint {completed.checkpoint_id} of {assets.job}, subsumed since",
        tags=_tags(completed, reporter),
        metadata={
            "files": len(completed.files),
            "checkpoint": str(completed.checkpoint_id),
            "parent": _parent(assets, completed.parent),
            **_when_and_who(completed, reporter),
            "state": "subsumed, and its manifest is deleted: it cannot be restored",
        },
    )


def operator_materialization(
    assets: JobAssets, checkpoint: Checkpoint, operator: str, reporter: Reporter
) -> dg.AssetMaterialization:
    """The event of the changes that a checkpoint made to the state of one operator."""
    entry = checkpoint.manifest.operators[operator]
    report = entry.report
    names = JobNames(assets.job)
    metadata: dict[str, Any] = {
        "upserts": report.upserts,
        "deletes": report.deletes,
        "changelog MiB": mebibytes(report.stored_bytes),
        "checkpoint": str(checkpoint.checkpoint_id),
        "size": readable_bytes(report.stored_bytes),
        "keys": ", ".join(report.key_columns),
        "key groups": str(report.max_parallelism),
        "changelog": store_location(reporter.store_uri, f"{names.changelog_base_path(checkpoint.attempt)}/"),
        _UPDATED: dg.MetadataValue.timestamp(checkpoint.entry.completed.recorded_at),
        _URI: f"{reporter.store_uri.rstrip('/')}/{names.changelog_base_path(checkpoint.attempt)}/",
    }
    return dg.AssetMaterialization(
        asset_key=assets.operator_key(operator),
        description=f"state of {operator} at checkpoint {checkpoint.checkpoint_id}",
        tags=_tags(checkpoint.entry.completed, reporter),
        metadata={**metadata, **_table(entry)},
    )


def files_event(
    assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter, partition: str | None
) -> dg.AssetMaterialization | dg.AssetObservation:
    """The event of the files that a checkpoint published: a materialization once none is blocked any more."""
    files = checkpoint.manifest.files
    blocked = {file.name for file in checkpoint.blocked}
    commit = checkpoint.entry.committed
    home = bucket_of(reporter.store_uri, files[0]) if files else reporter.store_uri
    metadata: dict[str, Any] = {
        "files": len(files) - len(blocked),
        "file MiB": mebibytes(checkpoint.manifest.file_bytes),
        "components": sum(len(file.components) for file in files),
        "checkpoint": str(checkpoint.checkpoint_id),
        "checkpoint page": _page(assets, checkpoint.checkpoint_id),
        "size": readable_bytes(checkpoint.manifest.file_bytes),
        "published": file_table(files, blocked),
        "folder": store_location(home, folder_of(files)),
        _URI: f"{home.rstrip('/')}/{folder_of(files)}",
        "file names": file_links(checkpoint, reporter.store_uri),
        **_when_and_who(checkpoint.entry.completed, reporter),
    }
    if commit is not None:
        metadata["compose-commit seconds"] = measure(commit.seconds)
    rows = [file.rows for file in files if file.object_name not in blocked]
    if None not in rows:  # else nobody knows: a number would be plotted, and checks go by it
        metadata[_ROWS if partition is None else _PARTITION_ROWS] = sum(filter(None, rows))
    if blocked:
        metadata["blocked"] = blocked_list(checkpoint.blocked)
    event = dg.AssetObservation if blocked else dg.AssetMaterialization
    which = f"{len(blocked)} of {len(files)} files are blocked" if blocked else "files"
    return event(
        asset_key=assets.files_key,
        partition=partition,
        description=f"{which} of checkpoint {checkpoint.checkpoint_id}",
        tags={
            **_tags(checkpoint.entry.completed, reporter, step="6"),
            TAG_VERSION: files_version(checkpoint.attempt, commit),
        },
        metadata=metadata,
    )


def _state_size(checkpoint: Checkpoint) -> list[str]:
    """The whole state, as against what this checkpoint added, in words; empty without any."""
    sizes = [entry.sizes for entry in checkpoint.manifest.operators.values()]
    if not sizes:
        return []
    whole_bytes, log_bytes = sum(each.whole_bytes for each in sizes), sum(each.log_bytes for each in sizes)
    runs = max(each.log_runs for each in sizes)
    return [
        f"{readable_bytes(whole_bytes + log_bytes)} of state, of which a restore reads "
        f"{readable_bytes(whole_bytes)} and {readable_bytes(log_bytes)} of changes in "
        f"{counted(runs, 'run')} above"
    ]


def _state_mebibytes(checkpoint: Checkpoint) -> dict[str, float]:
    sizes = [entry.sizes for entry in checkpoint.manifest.operators.values()]
    whole = sum(each.whole_bytes + each.log_bytes for each in sizes)
    return {"state MiB": mebibytes(whole)} if sizes else {}


def _page(assets: JobAssets, checkpoint_id: int) -> dg.MetadataValue:
    return dg.MetadataValue.md(partition_link(assets.checkpoints_key, assets.partition_key(checkpoint_id)))


def state_materialization(
    assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter, partition: str | None
) -> dg.AssetMaterialization:
    """The event of the whole state, where no run of the state's own asset reports it."""
    return dg.AssetMaterialization(
        asset_key=assets.state_key,
        partition=partition,
        description=f"state at checkpoint {checkpoint.checkpoint_id}",
        tags=_tags(checkpoint.entry.completed, reporter),
        metadata={
            **state_metadata(checkpoint, reporter.prices, reporter.store_uri),
            **_when_and_who(checkpoint.entry.completed, reporter),
        },
    )


def state_version(attempt: uuid.UUID) -> str:
    """What the state is made of, as Dagster's data version: the attempt that completed its checkpoint."""
    return str(attempt)


def attempt_of(event: Event) -> str:
    """The attempt whose checkpoint an event is about, by its data version: every version begins with it."""
    return (event.tags or {}).get(TAG_VERSION, "")[:_UUID_LENGTH]


def files_version(attempt: uuid.UUID, committed: Committed | None) -> str:
    """What is published of a checkpoint's files: another outcome after a person resolved a blocked one."""
    return f"{attempt}-{0 if committed is None else committed.slot}"


def _when_and_who(completed: Completed, reporter: Reporter) -> dict[str, Any]:
    """An event's own time and reporter are those of the report, which may be days later.

    By `_UPDATED` Dagster's freshness checks go by the checkpoint's time; its freshness policies never do.
    """
    said: dict[str, Any] = {"completed at": in_words(completed.recorded_at)}
    if reporter.owner is not None:
        said["made by"] = owner_link(reporter.owner)
    if completed.idempotency_key is not None:
        said["batch"] = completed.idempotency_key
    return {**said, _UPDATED: dg.MetadataValue.timestamp(completed.recorded_at)}


def state_metadata(checkpoint: Checkpoint, prices: StoragePrices, store_uri: str) -> dict[str, Any]:
    """The metadata of the materialization of the state itself: a table, where it is of one operator."""
    operators = list(checkpoint.manifest.operators.values())
    return {
        **(_table(operators[0]) if len(operators) == 1 else {}),
        "checkpoint": str(checkpoint.checkpoint_id),
        "changed rows": checkpoint.manifest.changes,
        "changelog MiB": mebibytes(checkpoint.manifest.state_bytes),
        "operators": _operator_table(checkpoint),
        **cost_measures(checkpoint, prices, store_uri),
    }


@dataclass(frozen=True)
class StateOutput:
    """What an event says of the state that a run of its own asset reports as its output."""

    metadata: Mapping[str, Any]
    tags: Mapping[str, str]
    version: dg.DataVersion


def output_of_state(coordinator: CheckpointCoordinator, attempt: Attempt, step: str = "1-7") -> StateOutput:
    """Of the checkpoint that this attempt completed. `step`: as its op is tagged."""
    checkpoint = coordinator.get(attempt.checkpoint_id)
    timeline = coordinator.timeline.seen().timeline_id
    reporter = Reporter("run", coordinator.store.uri, timeline, coordinator.prices)
    tags = {TAG_JOB: coordinator.job, **_tags(checkpoint.entry.completed, reporter, step)}
    version = dg.DataVersion(tags.pop(TAG_VERSION))  # a tag that Dagster sets
    return StateOutput(state_metadata(checkpoint, coordinator.prices, coordinator.store.uri), tags, version)


def _source_table(checkpoint: Checkpoint) -> dg.MetadataValue:
    """What feeds the job, how far each source is, and what it writes."""
    rows = [
        dg.TableRecord(
            {
                "source": name,
                "stands at": each.position if isinstance(each.position, str) else json.dumps(each.position),
                "by": str(each.measure),
                "written last by": each.by,
                "operators": ", ".join(each.operators),
            }
        )
        for name, each in sorted(checkpoint.manifest.sources.items())
    ]
    return dg.MetadataValue.table(rows or [dg.TableRecord({"source": "none"})])


def _parent(assets: JobAssets, checkpoint_id: int | None) -> dg.MetadataValue:
    if checkpoint_id is None:
        return dg.MetadataValue.text("none (the first)")
    return _page(assets, checkpoint_id)


def _tags(completed: Completed, reporter: Reporter, step: str = "5") -> Mapping[str, str]:
    tags = {
        TAG_CHECKPOINT: str(completed.checkpoint_id),
        TAG_STEP: step,
        TAG_ATTEMPT: str(completed.attempt),
        TAG_SLOT: str(completed.slot),
        TAG_TIMELINE: reporter.timeline,
        TAG_REPORTER: reporter.kind,
        TAG_VERSION: state_version(completed.attempt),
    }
    if reporter.restored_in is not None:
        tags[TAG_RESTORED] = str(reporter.restored_in)
    if completed.parent is not None:
        tags[TAG_PARENT] = str(completed.parent)
    return tags


def _table(entry: OperatorEntry) -> dict[str, Any]:
    """The rows and columns of an operator's state; no columns where its report has no Arrow schema."""
    report, rows = entry.report, row_measures(entry.rows, _ROWS)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(report.schema))
    except (pa.ArrowException, OSError):
        return rows
    columns = dg.TableSchema(
        columns=[
            dg.TableColumn(
                field.name,
                str(field.type),
                description="key" if field.name in report.key_columns else None,
                # A key may be null as well: null is a value like any other there.
                constraints=dg.TableColumnConstraints(nullable=field.nullable),
            )
            for field in schema
        ]
    )
    return {**rows, _COLUMN_SCHEMA: dg.MetadataValue.table_schema(columns)}


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
                    "state": readable_bytes(entry.sizes.whole_bytes + entry.sizes.log_bytes),
                    "runs": str(len(entry.runs)),
                }
            )
            for name, entry in sorted(checkpoint.manifest.operators.items())
        ]
        or [dg.TableRecord({"operator": "none"})]
    )
