"""The content of a job's events in Dagster: a pure translation of its checkpoints and restores.

Owns the words and the numbers of an event. Does not own which events are reported (`reconcile`), how the
chain is drawn (`chain`), or where objects are (`links`).
"""

from __future__ import annotations

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
from dstl_dagster.format import (
    JobNames,
    breakable,
    counted,
    measure,
    mebibytes,
    readable_bytes,
    readable_duration,
)
from dstl_dagster.keyed import OperatorEntry, StateRows
from dstl_dagster.orchestration.code_location import definition_of, maintenance_job
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
from dstl_dagster.orchestration.partition_order import next_partition
from dstl_dagster.orchestration.report.chain import (
    batch_name,
    chain_metadata,
    positions_in_words,
    savepoints_of,
)
from dstl_dagster.orchestration.report.details import checkpoint_details, operator_details, state_bytes
from dstl_dagster.orchestration.report.links import (
    blocked_lines,
    checkpoint_link,
    file_lines,
    folder_uri,
    launchpad_link,
    owner_link,
    shown_lines,
)
from dstl_dagster.settings import CheckpointOptions, StoragePrices
from dstl_dagster.timeline import Committed, Completed, Restored, TimelineView

Event = dg.AssetMaterialization | dg.AssetObservation

_UUID_LENGTH = 36
_COLUMN_SCHEMA = "dagster/column_schema"
_ROWS, _PARTITION_ROWS, _URI = "dagster/row_count", "dagster/partition_row_count", "dagster/uri"
"""The keys that Dagster shows in places of their own."""


@dataclass(frozen=True)
class Reporter:
    """Makes the events of a job's assets.

    Attributes:
        kind: `run` or `sensor`.
        store_uri, options, view: of the store that is read, and of its timeline.
        restored_in: the slot of the restore that an event reports, if it reports one.
        partitions_def: of the state, for the next one.
        repository: has the jobs that links lead to.
    """

    assets: JobAssets
    kind: str
    store_uri: str
    view: TimelineView
    options: CheckpointOptions = field(default_factory=CheckpointOptions)
    restored_in: int | None = None
    partitions_def: dg.PartitionsDefinition[Any] | None = None
    repository: dg.RepositoryDefinition | None = None
    now: datetime = field(default_factory=lambda: SystemClock().now())

    @classmethod
    def of(
        cls, assets: JobAssets, coordinator: CheckpointCoordinator, view: TimelineView, kind: str, **more: Any
    ) -> Reporter:
        """For the job's store, as of this view. `more`: the other fields."""
        return cls(assets, kind, coordinator.store.uri, view, coordinator.options, **more)

    @property
    def prices(self) -> StoragePrices:
        """A folder has none."""
        return self.options.prices if self.store_uri.startswith("gs://") else StoragePrices.free()

    # ---- materializations ----

    def checkpoint(self, checkpoint: Checkpoint) -> dg.AssetMaterialization:
        """The event of a completed checkpoint: five lines, the chain, the files; all else behind a click, and
        the numbers to plot: Dagster plots the state over the newest days of its definition, run or not.
        """
        manifest, completed, assets = checkpoint.manifest, checkpoint.entry.completed, self.assets
        metadata: dict[str, Any] = {
            **self._at_a_glance(checkpoint),
            "checkpoint": self._about(completed, parent=True),
            **self._chain(),
            "retention": self._retention(checkpoint),
            **({"user metadata": manifest.user_metadata} if manifest.user_metadata else {}),
            **({"file names": self._file_names(checkpoint)} if manifest.files else {}),
            **_published(checkpoint),
            **({"look at": "; ".join(noted)} if (noted := manifest.begun_beside_idle) else {}),
            "details": checkpoint_details(checkpoint, self.store_uri, self.prices),
            # Numbers become plots, so only measures are numbers; ids are text.
            "changes": manifest.changes,
            **_rows(manifest.rows),
            "changelog MiB": mebibytes(manifest.state_bytes),
            **({"state MiB": mebibytes(state_bytes(checkpoint))} if manifest.operators else {}),
            "files": len(manifest.files),
            "file MiB": mebibytes(manifest.file_bytes),
            "batch seconds": measure(manifest.persist_seconds),
            **_cost(checkpoint, self.prices),
        }
        on = "the first" if checkpoint.parent is None else f"on checkpoint {checkpoint.parent}"
        about = f"checkpoint {checkpoint.checkpoint_id} of {assets.job}, {on}"
        page = assets.partition_key(checkpoint.checkpoint_id)
        return self._made(assets.checkpoints_key, page, completed, about, metadata)

    def subsumed(self, completed: Completed) -> dg.AssetMaterialization:
        """The event of a checkpoint whose manifest was deleted before it was reported: its record is left."""
        assets, number = self.assets, completed.checkpoint_id
        metadata = {
            "files": len(completed.files),
            "checkpoint": self._about(completed, parent=True),
            "state": "subsumed, and its manifest is deleted: it cannot be restored",
        }
        about = f"checkpoint {number} of {assets.job}, subsumed since"
        return self._made(assets.checkpoints_key, assets.partition_key(number), completed, about, metadata)

    def operator(
        self, checkpoint: Checkpoint, operator: str, sample: Mapping[str, dg.MetadataValue]
    ) -> dg.AssetMaterialization:
        """The event of the changes that a checkpoint made to the state of one operator."""
        entry, completed = checkpoint.manifest.operators[operator], checkpoint.entry.completed
        report = entry.report
        base_path = JobNames(self.assets.job).changelog_base_path(checkpoint.attempt)
        metadata: dict[str, Any] = {
            "checkpoint": self._about(completed),
            **sample,
            "keys": breakable(", ".join(report.key_columns)),
            "key groups": str(report.max_parallelism),
            "upserts": report.upserts,
            "deletes": report.deletes,
            "changelog MiB": mebibytes(report.stored_bytes),
            _URI: f"{self.store_uri.rstrip('/')}/{base_path}/",
            **_table(entry),
        }
        about = f"state of {operator} at checkpoint {checkpoint.checkpoint_id}"
        return self._made(self.assets.operator_key(operator), None, completed, about, metadata)

    def state(
        self, key: dg.AssetKey, checkpoint: Checkpoint, partition: str | None, step: str = "5"
    ) -> dg.AssetMaterialization:
        """The event of the whole state."""
        completed = checkpoint.entry.completed
        metadata = {
            **self._next_partition(checkpoint),
            "checkpoint": self._about(completed),
            **state_metadata(checkpoint, self.prices),
        }
        about = f"state at checkpoint {checkpoint.checkpoint_id}"
        return self._made(key, partition, completed, about, metadata, step)

    def files(
        self, checkpoint: Checkpoint, partition: str | None
    ) -> dg.AssetMaterialization | dg.AssetObservation:
        """The event of the files that a checkpoint published: a materialization once none is blocked."""
        files, completed = checkpoint.manifest.files, checkpoint.entry.completed
        blocked = {file.name for file in checkpoint.blocked}
        commit = checkpoint.entry.committed
        metadata: dict[str, Any] = {
            "checkpoint": self._about(completed),
            "file names": self._file_names(checkpoint),
            _URI: folder_uri(self.store_uri, files),
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
            "rolled back at": f"{restored.recorded_at:%Y-%m-%d %H:%M:%S} UTC",
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
            metadata={**_published(checkpoint), **(self._chain() if checkpoint.blocked else {})},
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

    def _about(self, completed: Completed, *, parent: bool = False) -> dg.MetadataValue:
        """Which checkpoint an event is of, which one and which batch that is on and of, and its owner."""
        said = [checkpoint_link(self.assets, completed.checkpoint_id)]
        if parent:
            on = completed.parent
            said.append("the first" if on is None else f"on {checkpoint_link(self.assets, on)}")
        if batch := batch_name(completed):
            correct = maintenance_job(self.repository, self.assets.job, "correct")
            shown = breakable(batch)
            said.append(f"of {shown if correct is None else launchpad_link(shown, correct, batch)}")
        said.append(f"by {owner_link(completed.owner)}")
        return dg.MetadataValue.md(", ".join(said))

    def _at_a_glance(self, checkpoint: Checkpoint) -> dict[str, str]:
        """The first lines of a checkpoint's page."""
        manifest = checkpoint.manifest
        stands = positions_in_words(manifest.positions)
        glance = {"resumes at": breakable(stands) or "no source has a position"}
        glance |= self._next_partition(checkpoint)
        whole = manifest.rows
        known = whole is not None and whole.most is not None
        all_rows = f", {whole.in_words()} in all" if whole is not None and known else ""
        glance["rows"] = f"{manifest.changes} changed{all_rows}"
        sizes = [f"{readable_bytes(manifest.state_bytes)} of changes"]
        if manifest.operators:
            sizes.append(f"{readable_bytes(state_bytes(checkpoint))} of state")
        if manifest.files:
            sizes.append(f"{readable_bytes(manifest.file_bytes)} of files")
        glance["size"] = ", ".join(sizes)
        cost = checkpoint.manifest.counted_cost
        spent = "" if cost is None else f", {counted(cost.requests, 'request')}"
        glance["took"] = f"{manifest.persist_seconds:.1f} s{spent}"
        return glance

    def _next_partition(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Of a source whose partitions follow each other; nothing behind the last."""
        definition, source = self.partitions_def, checkpoint.source
        following = None
        if source is not None and isinstance(definition, dg.TimeWindowPartitionsDefinition):
            with suppress(InvalidInputError):
                following = next_partition(definition, source.position)
        return {} if following is None else {"next partition": following}

    def _chain(self) -> dict[str, dg.MetadataValue]:
        restore = maintenance_job(self.repository, self.assets.job, "restore")
        return chain_metadata(self.assets, self.view, self.now, restore)

    def _retention(self, checkpoint: Checkpoint) -> str:
        """When a checkpoint leaves, by the options of now, and what clean-up then deletes of it."""
        options, number = self.options, checkpoint.checkpoint_id
        leaves = f"leaves after {counted(options.num_retained, 'newer one')}"
        if kept := savepoints_of(self.view, number):
            leaves = f"stays as {breakable(kept)}"
        elif options.min_age:
            leaves += f", and not before {readable_duration(options.min_age)} after the next"
        return f"{leaves}; that frees at most {readable_bytes(checkpoint.manifest.state_bytes)}"

    def _file_names(self, checkpoint: Checkpoint) -> dg.MetadataValue:
        return dg.MetadataValue.md(file_lines(checkpoint, self.store_uri))


def _cost(checkpoint: Checkpoint, prices: StoragePrices) -> dict[str, Any]:
    """Requests, and their price where they have one; nothing where they were not counted."""
    cost = checkpoint.manifest.counted_cost
    if cost is None:
        return {}
    usd = cost.usd(prices)
    # Dollars would be too small for the axis of a plot.
    return {"requests": cost.requests, **({"cost micro-USD": measure(usd * 1_000_000)} if usd else {})}


def _published(checkpoint: Checkpoint) -> dict[str, dg.MetadataValue]:
    """How many files of a checkpoint have their final names, and which are blocked; nothing before step 6."""
    files, blocked = checkpoint.manifest.files, checkpoint.blocked
    if not files or not checkpoint.committed:
        return {}
    text = f"{len(files) - len(blocked)} of {len(files)} files are published"
    said: dict[str, dg.MetadataValue] = {"published": dg.MetadataValue.text(text)}
    return {**said, "blocked": dg.MetadataValue.md(blocked_lines(checkpoint))} if blocked else said


def state_version(attempt: uuid.UUID) -> str:
    """What the state is made of, as Dagster's data version: the attempt that completed its checkpoint."""
    return str(attempt)


def attempt_of(event: Event) -> str:
    """The attempt whose checkpoint an event is about, by its data version: every version begins with it."""
    return (event.tags or {}).get(TAG_VERSION, "")[:_UUID_LENGTH]


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
        **_cost(checkpoint, prices),
    }


def output_of_state(
    context: dg.OpExecutionContext, coordinator: CheckpointCoordinator, attempt: Attempt, step: str = "1-7"
) -> dg.MaterializeResult[Any]:
    """What a run of the state's own asset reports of the checkpoint that its attempt completed. `step`: as
    its op is tagged.
    """
    checkpoint, assets = coordinator.get(attempt.checkpoint_id), JobAssets.defined(coordinator.job)
    view, definition = coordinator.timeline.seen(), definition_of(context)
    reporter = Reporter.of(assets, coordinator, view, "run", partitions_def=definition)
    event = reporter.state(assets.state_key, checkpoint, None, step)
    tags = {TAG_JOB: coordinator.job, **(event.tags or {})}
    version = dg.DataVersion(tags.pop(TAG_VERSION))  # a tag that Dagster sets
    return dg.MaterializeResult(metadata=event.metadata, tags=tags, data_version=version)


def _rows(rows: StateRows | None) -> dict[str, Any]:
    """Of the whole state, as a number to plot: the one bound that is always known where rows were counted."""
    return {} if rows is None or rows.most is None else {"rows at most": rows.most}


def _table(entry: OperatorEntry) -> dict[str, Any]:
    """The rows and columns of an operator's state; no columns where its report has no Arrow schema."""
    report, rows = entry.report, _rows(entry.rows)
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
