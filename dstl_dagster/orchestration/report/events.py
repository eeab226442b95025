"""The content of a job's events in Dagster: a pure translation of its checkpoints and restores.

Owns the words and the numbers of an event. Does not own which events are reported (`reconcile`), the entries
of a checkpoint's own page (`checkpoint_page`), or where objects are (`links`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pyarrow as pa

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator
from dstl_dagster.format import (
    JobNames,
    breakable,
    measure,
    mebibytes,
    readable_time,
)
from dstl_dagster.keyed import OperatorEntry
from dstl_dagster.orchestration.code_location import definition_of
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
from dstl_dagster.orchestration.report.checkpoint_page import (
    PageEntries,
    batch_name,
    cost_numbers,
    operator_details,
    published_entries,
    rows_number,
)
from dstl_dagster.orchestration.report.links import (
    blocked_lines,
    folder_uri,
    owner_link,
    shown_lines,
)
from dstl_dagster.orchestration.report.shown import Page, attempt_in
from dstl_dagster.orchestration.timeline_check import shown_in
from dstl_dagster.settings import StoragePrices
from dstl_dagster.timeline import Committed, Completed, Restored

Event = dg.AssetMaterialization | dg.AssetObservation

_COLUMN_SCHEMA = "dagster/column_schema"
_ROWS, _PARTITION_ROWS, _URI = "dagster/row_count", "dagster/partition_row_count", "dagster/uri"
"""The keys that Dagster shows in places of their own."""


@dataclass(frozen=True, kw_only=True)
class Reporter(PageEntries):
    """Makes the events of a job's assets.

    Attributes:
        kind: `run` or `sensor`.
        restored_in: the slot of the restore that an event reports, if it reports one.
    """

    kind: str
    restored_in: int | None = None

    # ---- materializations ----

    def checkpoint(self, checkpoint: Checkpoint) -> dg.AssetMaterialization:
        """The event of a completed checkpoint: of its page."""
        completed, assets = checkpoint.entry.completed, self.assets
        on = "the first" if checkpoint.parent is None else f"on checkpoint {checkpoint.parent}"
        about = f"checkpoint {checkpoint.checkpoint_id} of {assets.job}, {on}"
        page = assets.partition_key(checkpoint.checkpoint_id)
        return self._made(assets.checkpoints_key, page, completed, about, self.entries(checkpoint))

    def subsumed(self, completed: Completed) -> dg.AssetMaterialization:
        """The event of a checkpoint whose manifest was gone before it was reported: its record is left."""
        assets, number = self.assets, completed.checkpoint_id
        metadata = {
            "files": len(completed.files),
            "checkpoint": self.about(completed, parent=True),
            "state": "its manifest is deleted or damaged: it cannot be restored",
        }
        about = f"checkpoint {number} of {assets.job}, gone since"
        return self._made(assets.checkpoints_key, assets.partition_key(number), completed, about, metadata)

    def operator(
        self, checkpoint: Checkpoint, operator: str, sample: Mapping[str, dg.MetadataValue]
    ) -> dg.AssetMaterialization:
        """The event of the changes that a checkpoint made to the state of one operator."""
        entry, completed = checkpoint.manifest.operators[operator], checkpoint.entry.completed
        report = entry.report
        base_path = JobNames(self.assets.job).changelog_base_path(checkpoint.attempt)
        by = f" by {breakable(', '.join(report.partition_columns))}" if report.partition_columns else ""
        metadata: dict[str, Any] = {
            "checkpoint": self.about(completed),
            **sample,
            "keys": breakable(", ".join(report.key_columns)),
            "key groups": f"{report.max_parallelism}{by}",
            "upserts": report.upserts,
            "deletes": report.deletes,
            "changelog MiB": mebibytes(report.stored_bytes),
            _URI: f"{self.coordinator.store.uri.rstrip('/')}/{base_path}/",
            **_table(entry),
        }
        about = f"state of {operator} at checkpoint {checkpoint.checkpoint_id}"
        return self._made(self.assets.operator_key(operator), None, completed, about, metadata)

    def state(
        self, key: dg.AssetKey, checkpoint: Checkpoint, partition: str | None, step: str = "5"
    ) -> dg.AssetMaterialization:
        completed = checkpoint.entry.completed
        metadata = {
            **self.next_partition_of(checkpoint),
            "checkpoint": self.about(completed),
            **state_metadata(checkpoint, self.coordinator.prices),
        }
        about = f"state at checkpoint {checkpoint.checkpoint_id}"
        made = self._made(key, partition, completed, about, metadata, step)
        return made._replace(tags={TAG_JOB: self.assets.job, **(made.tags or {})})

    def files(
        self, checkpoint: Checkpoint, partition: str | None
    ) -> dg.AssetMaterialization | dg.AssetObservation:
        """The event of the files that a checkpoint published: a materialization once none is blocked."""
        files, completed = checkpoint.manifest.files, checkpoint.entry.completed
        blocked = {file.name for file in checkpoint.blocked}
        commit = checkpoint.entry.committed
        metadata: dict[str, Any] = {
            "checkpoint": self.about(completed),
            "file names": self.file_names(checkpoint),
            _URI: folder_uri(self.coordinator.store.uri, files),
            "files": len(files) - len(blocked),
            "file MiB": mebibytes(checkpoint.manifest.file_bytes),
            "components": sum(len(file.components) for file in files),
        }
        if commit is not None:
            metadata["compose-commit seconds"] = measure(commit.seconds)
        rows = [file.rows for file in files if file.object_name not in blocked]
        if None not in rows:  # else a number would be plotted that is not known, and checks go by it
            metadata[_ROWS if partition is None else _PARTITION_ROWS] = sum(filter(None, rows))
        if blocked:
            metadata["blocked"] = dg.MetadataValue.md(blocked_lines(checkpoint))
        which = f"{len(blocked)} of {len(files)} files are blocked" if blocked else "files"
        about = f"{which} of checkpoint {checkpoint.checkpoint_id}"
        made = self._made(self.assets.files_key, partition, completed, about, metadata, "6")
        tags = {**(made.tags or {}), TAG_VERSION: files_version(checkpoint.attempt, commit)}
        of = dg.AssetObservation if blocked else dg.AssetMaterialization
        return of(**{**made._asdict(), "tags": tags})

    def rolled_back(
        self, event: dg.AssetMaterialization, restored: Restored, left: Iterable[Completed]
    ) -> dg.AssetMaterialization:
        """The event of a checkpoint that a restore went back to: it says so first, and what that undid."""
        left = [*left]
        days = [
            f"checkpoint {each.checkpoint_id}"
            if each.batch is None
            else breakable(batch_name(each)) or owner_link(each.owner)
            for each in left
        ]
        named = ", ".join(self.assets.partition_key(each.checkpoint_id) for each in left)
        said: dict[str, Any] = {
            "rolled back at": readable_time(restored.recorded_at),
            "rolled back by": dg.MetadataValue.md(owner_link(restored.by)),
            "left behind": named or "nothing",
            "run again": dg.MetadataValue.md(shown_lines(days) or "nothing"),
        }
        about = f"{self.assets.job} was rolled back to {restored.where}"
        return event.with_metadata({**said, **event.metadata})._replace(description=about)

    # ---- an observation, on a page whose event is older ----

    def published(self, checkpoint: Checkpoint) -> dg.AssetObservation:
        """On the checkpoint's own page: whether its files have their final names, and the chain anew where
        some are blocked.
        """
        number = checkpoint.checkpoint_id
        version = files_version(checkpoint.attempt, checkpoint.entry.committed)
        return dg.AssetObservation(
            asset_key=self.assets.checkpoints_key,
            partition=self.assets.partition_key(number),
            description=f"what step 6 made of the files of checkpoint {number}",
            tags={TAG_CHECKPOINT: str(number), TAG_VERSION: f"{version}-files"},
            metadata={**published_entries(checkpoint), **(self.chain() if checkpoint.blocked else {})},
        )

    # ---- what they have in common ----

    def _made(
        self,
        key: dg.AssetKey,
        partition: str | None,
        completed: Completed,
        about: str,
        metadata: Mapping[str, Any],
        step: str = "5",
    ) -> dg.AssetMaterialization:
        # An event's own time is that of the report, which may be days later. By this Dagster's freshness
        # checks go by the checkpoint's time; its freshness policies never do.
        when = {"dagster/last_updated_timestamp": dg.MetadataValue.timestamp(completed.recorded_at)}
        return dg.AssetMaterialization(
            asset_key=key,
            partition=partition,
            description=about,
            tags=self._tags(completed, step),
            metadata={**metadata, **when},
        )

    def _tags(self, completed: Completed, step: str) -> dict[str, str]:
        """`step`: the last one, as its op is tagged."""
        tags = {
            TAG_CHECKPOINT: str(completed.checkpoint_id),
            TAG_STEP: step,
            TAG_ATTEMPT: str(completed.attempt),
            TAG_SLOT: str(completed.slot),
            TAG_TIMELINE: self.view.timeline_id,
            TAG_REPORTER: self.kind,
            TAG_VERSION: state_version(completed.attempt),
        }
        if self.restored_in is not None:
            tags[TAG_RESTORED] = str(self.restored_in)
        if completed.parent is not None:
            tags[TAG_PARENT] = str(completed.parent)
        return tags


def state_version(attempt: uuid.UUID) -> str:
    """What the state is made of, as Dagster's data version: the attempt that completed its checkpoint."""
    return str(attempt)


def attempt_of(event: Event) -> str:
    """The attempt whose checkpoint an event is about; or by its data version, which begins with it."""
    shown = shown_in(event)
    return shown[-1].attempt if shown else attempt_in((event.tags or {}).get(TAG_VERSION, ""))


def files_version(attempt: uuid.UUID, committed: Committed | None) -> str:
    """What is published of a checkpoint's files: another outcome after a person resolved a blocked one."""
    return f"{attempt}-{0 if committed is None else committed.slot}"


def state_metadata(checkpoint: Checkpoint, prices: StoragePrices) -> dict[str, Any]:
    """What an event of the state says of its checkpoint: a table, where it is of one operator."""
    manifest = checkpoint.manifest
    operators = list(manifest.operators.values())
    return {
        **(_table(operators[0]) if len(operators) == 1 else {}),
        "details": operator_details(checkpoint),
        "changed rows": manifest.changes,
        "changelog MiB": mebibytes(manifest.state_bytes),
        **cost_numbers(checkpoint, prices),
    }


def output_of_state(
    context: dg.OpExecutionContext,
    assets: JobAssets,
    coordinator: CheckpointCoordinator,
    attempt: Attempt,
    step: str = "1-7",
) -> dg.MaterializeResult[Any]:
    """What a run of the state's own asset reports of the checkpoint that its attempt completed. `step`: as
    its op is tagged.
    """
    checkpoint = coordinator.get(attempt.checkpoint_id)
    page = Page(assets, context.instance, definition_of(context))
    reporter = Reporter(page, coordinator, coordinator.timeline.seen(), kind="run")
    event = reporter.state(assets.state_key, checkpoint, None, step)
    tags = {**(event.tags or {})}
    version = dg.DataVersion(tags.pop(TAG_VERSION))  # a tag that Dagster sets
    return dg.MaterializeResult(metadata=event.metadata, tags=tags, data_version=version)


def _table(entry: OperatorEntry) -> dict[str, Any]:
    """The rows and columns of an operator's state; no columns where its report has no Arrow schema."""
    report, rows = entry.report, rows_number(entry.rows)
    if entry.rows is not None and entry.rows.exact is not None:
        rows = {_ROWS: entry.rows.exact}
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
