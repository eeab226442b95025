"""The entries of a checkpoint's page in Dagster, their order, and the words and numbers of each. Pure.

Five lines at a glance, the chain, the files; all else behind a click, and the numbers to plot.

An event keeps its picture for ever, so the chain says as of when it is, and nothing that the next minute
makes untrue: no age, and not that step 6 is due, which follows at once (a check reports it where it does
not).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import breakable, counted, measure, mebibytes, readable_bytes, readable_duration
from dstl_dagster.keyed import StateRows
from dstl_dagster.orchestration.code_location import maintenance_job
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.owners import run_of_batch
from dstl_dagster.orchestration.partition_order import next_partition
from dstl_dagster.orchestration.report.links import (
    NEW_LINE,
    blocked_lines,
    checkpoint_link,
    file_lines,
    launchpad_link,
    object_link,
    owner_link,
)
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.settings import StoragePrices
from dstl_dagster.timeline import CheckpointEntry, Completed, TimelineView

_ROOM = 999 - 64
"""Characters of Markdown that Dagster shows in place, less those of what is left out, and as of when."""
_LINKS = 5
"""Of a long chain; a link is as long as three lines without one."""
_FOLDED = 1000
"""Characters from which on Dagster's page shows Markdown in a window of its own."""


@dataclass(frozen=True)
class PageEntries:
    """What the pages of a job's checkpoints show, as of a view of its timeline.

    `page`: its definitions have the jobs that links lead to.
    """

    page: Page
    coordinator: CheckpointCoordinator
    view: TimelineView
    now: datetime = field(default_factory=lambda: SystemClock().now())

    @property
    def assets(self) -> JobAssets:
        return self.page.assets

    def entries(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """All of a completed checkpoint's page, in the order that it shows."""
        manifest = checkpoint.manifest
        return {
            **self._at_a_glance(checkpoint),
            "checkpoint": self.about(checkpoint.entry.completed, parent=True),
            **self.chain(),
            "retention": self._retention(checkpoint),
            **({"user metadata": manifest.user_metadata} if manifest.user_metadata else {}),
            **({"file names": self.file_names(checkpoint)} if manifest.files else {}),
            **published_entries(checkpoint),
            **({"look at": "; ".join(noted)} if (noted := manifest.begun_beside_idle) else {}),
            "details": checkpoint_details(checkpoint, self.coordinator),
            # Numbers become plots, so only measures are numbers; ids are text.
            "changes": manifest.changes,
            **rows_number(manifest.rows),
            "changelog MiB": mebibytes(manifest.state_bytes),
            **({"state MiB": mebibytes(state_bytes(checkpoint))} if manifest.operators else {}),
            "files": len(manifest.files),
            "file MiB": mebibytes(manifest.file_bytes),
            "batch seconds": measure(manifest.persist_seconds),
            **cost_numbers(checkpoint, self.coordinator.prices),
        }

    def _at_a_glance(self, checkpoint: Checkpoint) -> dict[str, str]:
        manifest = checkpoint.manifest
        stands = positions_in_words(manifest.positions)
        glance = {"resumes at": breakable(stands) or "no source has a position"}
        glance |= self.next_partition_of(checkpoint)
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

    def next_partition_of(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Of a source whose partitions follow each other; nothing behind the last."""
        definition, source = self.page.partitions, checkpoint.source
        following = None
        if source is not None and isinstance(definition, dg.TimeWindowPartitionsDefinition):
            with suppress(InvalidInputError):
                following = next_partition(definition, source.position)
        return {} if following is None else {"next partition": following}

    def file_names(self, checkpoint: Checkpoint) -> dg.MetadataValue:
        """The final names, as links."""
        return dg.MetadataValue.md(file_lines(checkpoint, self.coordinator.store.uri))

    def chain(self) -> dict[str, dg.MetadataValue]:
        restore = maintenance_job(self.page.definitions, self.assets.job, "restore")
        return chain_metadata(self.assets, self.view, self.now, restore)

    def _retention(self, checkpoint: Checkpoint) -> str:
        """When a checkpoint leaves, by the options of now, and what clean-up then deletes of it."""
        options, number = self.coordinator.options, checkpoint.checkpoint_id
        leaves = f"leaves after {counted(options.num_retained, 'newer one')}"
        if kept := savepoints_of(self.view, number):
            leaves = f"stays as {breakable(kept)}"
        elif options.min_age:
            leaves += f", and not before {readable_duration(options.min_age)} after the next"
        return f"{leaves}; that frees at most {readable_bytes(checkpoint.manifest.state_bytes)}"

    def about(self, completed: Completed, *, parent: bool = False) -> dg.MetadataValue:
        """Which checkpoint an event is of, which one and which batch that is on and of, and its owner."""
        said = [checkpoint_link(self.assets, completed.checkpoint_id)]
        if parent:
            on = completed.parent
            said.append("the first" if on is None else f"on {checkpoint_link(self.assets, on)}")
        if batch := batch_name(completed):
            correct = maintenance_job(self.page.definitions, self.assets.job, "correct")
            shown = breakable(batch)
            said.append(f"of {shown if correct is None else launchpad_link(shown, correct, batch)}")
        said.append(f"by {owner_link(completed.owner)}")
        return dg.MetadataValue.md(", ".join(said))


def cost_numbers(checkpoint: Checkpoint, prices: StoragePrices) -> dict[str, Any]:
    """Requests, and their price where they have one; nothing where they were not counted."""
    cost = checkpoint.manifest.counted_cost
    if cost is None:
        return {}
    usd = cost.usd(prices)
    # Dollars would be too small for the axis of a plot.
    return {"requests": cost.requests, **({"cost micro-USD": measure(usd * 1_000_000)} if usd else {})}


def published_entries(checkpoint: Checkpoint) -> dict[str, dg.MetadataValue]:
    """How many files of a checkpoint have their final names, and which are blocked; nothing before step 6."""
    files, blocked = checkpoint.manifest.files, checkpoint.blocked
    if not files or not checkpoint.committed:
        return {}
    text = f"{len(files) - len(blocked)} of {len(files)} files are published"
    said: dict[str, dg.MetadataValue] = {"published": dg.MetadataValue.text(text)}
    return {**said, "blocked": dg.MetadataValue.md(blocked_lines(checkpoint))} if blocked else said


def rows_number(rows: StateRows | None) -> dict[str, Any]:
    """Of the whole state, as a number to plot: the one bound that is always known where rows were counted."""
    return {} if rows is None or rows.most is None else {"rows at most": rows.most}


def chain_metadata(
    assets: JobAssets, view: TimelineView, now: datetime, restore_job: str | None
) -> dict[str, dg.MetadataValue]:
    """`chain` of a checkpoint's event, as of `view`; with the Dagster job that restores also `restore to`."""
    chain = dg.MetadataValue.md(f"as of {now:%Y-%m-%d %H:%M} UTC{NEW_LINE}{_chain(assets, view)}")
    if restore_job is None:
        return {"chain": chain}
    return {"chain": chain, "restore to": dg.MetadataValue.md(_restorable(assets, view, restore_job))}


def _chain(assets: JobAssets, view: TimelineView) -> str:
    """The newest checkpoints, one a line, newest first; those that a restore left behind stand aside.

    All are links; where there is no room for that, the first ones.
    """
    entries = sorted(view.kept, key=lambda entry: entry.checkpoint_id, reverse=True)
    lines: list[str] = []
    for links in (len(entries), _LINKS):
        lines, aside = [], False
        for count, entry in enumerate(entries):
            left_behind = view.is_abandoned(entry.checkpoint_id)
            fork = f"├─╯{NEW_LINE}" if aside and not left_behind else ""
            aside = left_behind
            lines.append(fork + _line(assets, view, entry, is_link=count < links))
        if sum(len(line) + len(NEW_LINE) for line in lines) <= _ROOM:
            break
    if entries and entries[-1].completed.parent is not None:
        return _fitting(lines, "older ones are cleaned up")
    return _fitting(lines)


def _fitting(lines: list[str], end: str | None = None) -> str:
    """The first lines that are shown at once, and how many are left out; `end` where none is."""
    left = _ROOM
    for count, line in enumerate(lines):
        left -= len(line) + len(NEW_LINE)
        if left < 0:
            return NEW_LINE.join([*lines[:count], f"┆ {len(lines) - count} older ones"])
    return NEW_LINE.join([*lines, *([f"┆ {end}"] if end else [])])


def _line(assets: JobAssets, view: TimelineView, entry: CheckpointEntry, *, is_link: bool) -> str:
    left_behind, number = view.is_abandoned(entry.checkpoint_id), entry.checkpoint_id
    completed = entry.completed
    blocked = 0 if entry.committed is None else len(entry.committed.blocked)
    notes = [
        batch_name(entry.completed),
        counted(len(completed.files), "file") if completed.files else "",
        "resumes here" if number == view.last_completed_id else "",
        f"{counted(blocked, 'file')} blocked" if blocked else "",
        savepoints_of(view, number),
        f"undone, on {completed.parent or 'none'}" if left_behind else "",
    ]
    mark = "│ ○" if left_behind else "●"
    name = checkpoint_link(assets, number) if is_link else assets.partition_key(number)
    return f"{mark} {name} {breakable(', '.join(filter(None, notes)))}".rstrip()


def _restorable(assets: JobAssets, view: TimelineView, restore_job: str) -> str:
    """Each with its launchpad, where what is undone is confirmed as of now: of later ones that is refused."""
    lines = []
    for entry in reversed(view.retained):
        number = entry.checkpoint_id
        name = assets.partition_key(number)
        if number != view.last_completed_id:
            confirm = f"ops:+{{restore:+{{config:+{{confirm:+{view.last_completed_id}->{number}}}}}}}"
            name = launchpad_link(name, restore_job, name, confirm)
        notes = [batch_name(entry.completed), savepoints_of(view, number)]
        lines.append(" ".join(filter(None, [name, *map(breakable, notes)])))
    return _fitting(lines)


def savepoints_of(view: TimelineView, checkpoint_id: int) -> str:
    """In words; empty if there are none."""
    names = sorted(name for name, kept in view.savepoints.items() if kept == checkpoint_id)
    return f"savepoint {', '.join(names)}" if names else ""


def positions_in_words(positions: Mapping[str, Any]) -> str:
    """How far each source is, by its name; empty if none has a position."""
    ordered = sorted(positions.items())
    return "; ".join(f"{name}: {at if isinstance(at, str) else json.dumps(at)}" for name, at in ordered)


def batch_name(completed: Completed) -> str:
    """Empty for that of a run without partitions: it is named after the run, which is shown beside it."""
    key = completed.idempotency_key or ""
    return "" if run_of_batch(key) else key


def checkpoint_details(checkpoint: Checkpoint, coordinator: CheckpointCoordinator) -> dg.MetadataValue:
    """All of it."""
    manifest = checkpoint.entry.completed.manifest
    sources = _table(
        ("source", "stands at", "measured by", "written last by", "operators"),
        (
            (name, each.stands, str(each.measure), each.by, ", ".join(each.operators))
            for name, each in sorted(checkpoint.manifest.sources.items())
        ),
    )
    place = f"manifest {object_link(manifest, coordinator.store.uri_of(manifest))}"
    return _folded(sources, _operators(checkpoint), _cost(checkpoint, coordinator.prices), place)


def operator_details(checkpoint: Checkpoint) -> dg.MetadataValue:
    """The operators alone: for a page that shows the state."""
    return _folded(_operators(checkpoint))


def state_bytes(checkpoint: Checkpoint) -> int:
    """Of the whole state, as against what this checkpoint added."""
    return sum(entry.state_bytes for entry in checkpoint.manifest.operators.values())


def _folded(*parts: str) -> dg.MetadataValue:
    return dg.MetadataValue.md("\n\n".join(filter(None, parts)).ljust(_FOLDED))


def _operators(checkpoint: Checkpoint) -> str:
    return _table(
        ("operator", "keys", "rows", "upserts", "deletes", "changes", "merged", "state", "runs"),
        (
            (
                name,
                ", ".join(entry.report.key_columns),
                "" if entry.rows is None else entry.rows.in_words(),
                str(entry.report.upserts),
                str(entry.report.deletes),
                readable_bytes(entry.report.stored_bytes),
                readable_bytes(entry.merged_bytes),
                readable_bytes(entry.state_bytes),
                str(len(entry.runs)),
            )
            for name, entry in sorted(checkpoint.manifest.operators.items())
        ),
    )


def _cost(checkpoint: Checkpoint, prices: StoragePrices) -> str:
    """A line for each step that was counted."""
    cost = checkpoint.manifest.cost
    if cost is None:
        return ""
    usd = cost.total.usd(prices)
    lines = [f"step {name}: {step.in_words()}" for name, step in cost.steps.items()]
    return NEW_LINE.join([*lines, *([f"in all {usd:.6f} USD"] if usd else [])])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Empty without rows."""
    lines = [" | ".join(breakable(cell).replace("|", "\\|") for cell in row) for row in rows]
    if not lines:
        return ""
    return "\n".join(f"| {line} |" for line in (" | ".join(head), "|".join("---" for _ in head), *lines))
