"""Checkpoints, timelines, audits and costs, as lines and tables and as JSON.

Pure. Owns how each reads. Does not own the terminal (`output`), nor what is counted (`storage.accounting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dstl_dagster.checkpoint import Audit, Checkpoint, CleanUp, RestorePlan, Verification
from dstl_dagster.cli.output import Table, local_time
from dstl_dagster.format import counted, names_in_words, readable_bytes
from dstl_dagster.settings import StoragePrices
from dstl_dagster.storage import COMPOSE_COMMIT, CONFIRM, PERSIST, RECORD, TRIGGER, CheckpointCost, Cost
from dstl_dagster.timeline import (
    Aborted,
    Committed,
    Completed,
    Fenced,
    Opened,
    Released,
    Resolved,
    Restored,
    Savepoint,
    Subsumed,
    TimelineRecord,
)


def checkpoint_table(checkpoints: Iterable[Checkpoint]) -> Table:
    """One row per checkpoint: when it was made, what keeps it, and the seconds of the numbered steps."""
    numbers = ("id", "parent", "changes", "changelog", "files", "size", "3", "5", "6")
    table = Table(
        *("id", "completed", "savepoints", *numbers[1:], "state", "position"),
        title="Checkpoints. Seconds of step 3 (persist), 5 (confirm), 6 (compose-commit)",
        right=numbers,
        cut=("savepoints", "position"),
    )
    for checkpoint in checkpoints:
        manifest = checkpoint.manifest
        commit = checkpoint.entry.committed
        table.add_row(
            str(checkpoint.checkpoint_id),
            local_time(checkpoint.entry.completed.recorded_at),
            ", ".join(savepoints_in_words(checkpoint)),
            "-" if checkpoint.parent is None else str(checkpoint.parent),
            f"{manifest.changes:,}",
            readable_bytes(manifest.state_bytes),
            str(len(manifest.files)),
            readable_bytes(manifest.file_bytes),
            f"{manifest.persist_seconds:.1f}",
            f"{checkpoint.entry.completed.seconds:.3f}",
            "-" if commit is None else f"{commit.seconds:.3f}",
            _state(checkpoint),
            ", ".join(str(position) for _, position in sorted(checkpoint.positions.items())),
        )
    return table


def checkpoint_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """The same facts for programs; sizes in bytes, times in seconds."""
    manifest = checkpoint.manifest
    commit = checkpoint.entry.committed
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "completed_at": checkpoint.entry.completed.recorded_at,
        "savepoints": list(checkpoint.savepoints),
        "savepoint_ends": dict(checkpoint.savepoint_ends),
        "parent": checkpoint.parent,
        "attempt": str(checkpoint.attempt),
        "positions": dict(checkpoint.positions),
        "sources": {name: each.to_json() for name, each in sorted(manifest.sources.items())},
        "idempotency_key": checkpoint.idempotency_key,
        "user_metadata": manifest.user_metadata,
        "changes": manifest.changes,
        "state_bytes": manifest.state_bytes,
        "state_rows": manifest.rows,
        "files": [file.object_name for file in manifest.files],
        "file_bytes": manifest.file_bytes,
        "persist_seconds": manifest.persist_seconds,
        "confirm_seconds": checkpoint.entry.completed.seconds,
        "compose_commit_seconds": None if commit is None else commit.seconds,
        "state": _state(checkpoint),
    }


def savepoints_in_words(checkpoint: Checkpoint) -> list[str]:
    """The names that keep it, each with the day of its end if it has one."""
    ends = {name: end.astimezone() for name, end in checkpoint.savepoint_ends.items()}
    return [f"{name} (to {ends[name]:%Y-%m-%d})" if name in ends else name for name in checkpoint.savepoints]


def _state(checkpoint: Checkpoint) -> str:
    if not checkpoint.committed:
        return "completed"
    return f"{len(checkpoint.blocked)} blocked" if checkpoint.blocked else "committed"


_SHOWN_NAMES = 20


def changes_table(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Table:
    """Rows of a difference: + added, - removed, ~ changed. At least one."""
    lines = list(rows)
    columns = list(lines[0][1])
    table = Table("", *columns, cut=columns)
    for sign, row in lines:
        table.add_row(sign, *(str(row[name]) for name in columns))
    return table


def checkpoint_sections(checkpoint: Checkpoint) -> Iterator[Table | str]:
    """The contents of one checkpoint, section by section."""
    completed = checkpoint.entry.completed
    parent = "nothing" if checkpoint.parent is None else str(checkpoint.parent)
    yield f"Checkpoint {checkpoint.checkpoint_id}, on {parent}, {_status(checkpoint)}"
    yield f"completed {local_time(completed.recorded_at)} by attempt {checkpoint.attempt}"
    if checkpoint.idempotency_key is not None:
        yield f"batch {checkpoint.idempotency_key}"
    if checkpoint.manifest.user_metadata:
        yield f"says {checkpoint.manifest.user_metadata}"
    for source, each in sorted(checkpoint.manifest.sources.items()):
        yield f"source {source} at {each.position}"
    if checkpoint.manifest.operators:
        state = Table(
            "operator",
            "upserts",
            "deletes",
            "rows",
            "changelog",
            "merged",
            "keys",
            title="State",
            right=("upserts", "deletes", "rows", "changelog", "merged"),
        )
        for name, entry in sorted(checkpoint.manifest.operators.items()):
            report = entry.report
            state.add_row(
                name,
                f"{report.upserts:,}",
                f"{report.deletes:,}",
                (entry.rows and entry.rows.in_words()) or "-",
                readable_bytes(report.stored_bytes),
                readable_bytes(entry.merged_bytes),
                ", ".join(report.key_columns),
            )
        yield state
    if checkpoint.manifest.files:
        yield _files(checkpoint)


def _files(checkpoint: Checkpoint) -> Table:
    blocked = {file.name: file.reason for file in checkpoint.blocked}
    columns = ("name", "rows", "size", "components", "")
    files = Table(*columns, title="Files", right=("rows", "size", "components"))
    for file in checkpoint.manifest.files:
        files.add_row(
            file.object_name,
            "-" if file.rows is None else f"{file.rows:,}",
            readable_bytes(file.size),
            str(len(file.components)),
            f"blocked: {blocked[file.object_name]}" if file.object_name in blocked else "",
        )
    return files


def _status(checkpoint: Checkpoint) -> str:
    words = ["committed" if checkpoint.committed else "completed, not committed"]
    if checkpoint.blocked:
        words.append(f"{len(checkpoint.blocked)} blocked")
    if checkpoint.abandoned:
        words.append("abandoned by a restore")
    words += [f"retained as {each}" for each in savepoints_in_words(checkpoint)]
    return ", ".join(words)


def timeline_table(records: Iterable[TimelineRecord]) -> Table:
    """One row per record."""
    table = Table("slot", "when", "record", "checkpoint", "", right=("slot", "checkpoint"))
    for record in records:
        checkpoint_id = getattr(record, "checkpoint_id", None)
        table.add_row(
            str(record.slot),
            local_time(record.recorded_at),
            record.kind,
            "" if checkpoint_id is None else str(checkpoint_id),
            _detail(record),
        )
    return table


def _detail(record: TimelineRecord) -> str:
    match record:
        case Opened():
            return f"by {record.owner}" + ("" if record.parent is None else f", on {record.parent}")
        case Completed():
            key = "" if record.idempotency_key is None else f"batch {record.idempotency_key}, "
            return f"{key}{counted(len(record.files), 'file')}"
        case Committed():
            blocked = f", {len(record.blocked)} blocked" if record.blocked else ""
            return f"{counted(len(record.published), 'file')} published{blocked}"
        case Aborted():
            return record.reason
        case Fenced() | Restored():
            return f"by {record.by}"
        case Subsumed():
            return "subsumed: " + ", ".join(str(each) for each in record.checkpoint_ids)
        case Savepoint() | Released():
            return record.name
        case Resolved():
            return f"{record.name}: {record.resolution}"
    return ""


def audit_lines(audit: Audit) -> Iterator[str]:
    """The audit, line by line."""
    yield f"timeline: {audit.slot} records; the job resumes from checkpoint {audit.latest or '-'}"
    yield f"restorable: {', '.join(map(str, audit.retained)) or 'none'}"
    for name, checkpoint_id in sorted(audit.savepoints.items()):
        yield f"savepoint {name!r} keeps checkpoint {checkpoint_id}"
    yield from _open_lines(audit)
    for checkpoint_id in audit.uncommitted:
        yield f"checkpoint {checkpoint_id} is not published yet: step 6 (compose-commit), or the next trigger"
    if audit.retracting:
        yield "files of abandoned checkpoints may still exist: the next trigger retracts them"
    if audit.abandoned:
        yield f"abandoned by a restore, not subsumed yet: {', '.join(map(str, audit.abandoned))}"
    for checkpoint_id, names in audit.blocked.items():
        for name in names:
            resolve = f"dstl checkpoints resolve {checkpoint_id} {name} --keep|--replace"
            yield f"BLOCKED {name} of checkpoint {checkpoint_id}: {resolve}"
    for damage in audit.damage:
        yield f"DAMAGED checkpoint {damage.checkpoint_id}: {damage.object_name} {damage.what}"
    for name in audit.unexplained:
        yield f"LOST a record: {name} is of an attempt that the timeline does not know"
    if audit.unexplained:
        yield "the last records are missing: restore the whole timeline from a backup. If they are lost, the"
        yield "job goes on from where they end; then delete these objects, which no checkpoint needs"
    if audit.garbage is None:
        yield "garbage: unknown while a manifest is unreadable"
    else:
        garbage = audit.garbage
        yield f"garbage: {counted(garbage.objects, 'object')}, {readable_bytes(garbage.deleted_bytes)}"
    waiting = "".join(f"; checkpoint {each} is not published yet" for each in audit.uncommitted)
    yield f"in order{waiting}" if audit.in_order else "NOT IN ORDER"


def _open_lines(audit: Audit) -> Iterator[str]:
    if audit.open_attempt is None:
        return
    opened = audit.open_attempt
    yield (
        f"checkpoint {opened.checkpoint_id} is open: owned by {opened.owner} since "
        f"{local_time(opened.recorded_at)}; if that is dead: dstl checkpoints abort"
    )
    if audit.recorded:
        yield (
            f"checkpoint {opened.checkpoint_id} has its manifest (step 4): it is about to complete, died "
            "before it did, or the record of it is lost, which a backup of the timeline brings back"
        )


def clean_up_lines(report: CleanUp) -> Iterator[str]:
    """The deletions of a clean-up, done or planned."""
    would = "would be " if report.dry_run else ""
    if report.subsumed:
        yield f"checkpoints {would}subsumed: {', '.join(map(str, report.subsumed))}"
    age = (
        "" if report.oldest is None else f", the oldest {report.oldest.total_seconds() / 3600:.1f} hours old"
    )
    yield f"{counted(report.objects, 'object')} {would}deleted, {readable_bytes(report.deleted_bytes)}{age}"
    for reason, count in sorted(report.reasons.items()):
        yield f"  {count:,} {reason}"
    for name in report.deleted[:_SHOWN_NAMES]:
        yield f"  {name}"
    if report.objects > _SHOWN_NAMES:
        yield f"  and {report.objects - _SHOWN_NAMES:,} more"


def verification_lines(found: Verification) -> Iterator[str]:
    """The outcome of reading a checkpoint back, line by line."""
    for problem in found.problems:
        yield f"DAMAGED {problem}"
    for note in found.notes:
        yield f"note: {note}"
    how = "is undamaged" if found.ok else f"has {counted(len(found.problems), 'problem')}"
    size = readable_bytes(found.bytes)
    yield f"checkpoint {found.checkpoint_id} {how}: {counted(found.objects, 'object')}, {size} read"
    if not found.ok:
        yield "dstl checkpoints restore --newest-verified rolls back to the newest undamaged one"


def plan_lines(plan: RestorePlan) -> Iterator[str]:
    """The effects of a restore, line by line."""
    for completed in plan.left_behind:
        manifest = plan.manifests.get(completed.checkpoint_id)
        size = "cleaned up" if manifest is None else f"{readable_bytes(manifest.state_bytes)} of changelog"
        key = completed.idempotency_key
        batch = "" if key is None else f", batch {names_in_words(key)}"
        files = counted(len(completed.files), "file")
        yield f"checkpoint {completed.checkpoint_id} goes: {size}{batch}, {files}"
    for file in plan.files[:_SHOWN_NAMES]:
        yield f"  retracted: {file.name}"
    if len(plan.files) > _SHOWN_NAMES:
        yield f"  and {len(plan.files) - _SHOWN_NAMES:,} more"
    yield plan.in_words()


def plan_json(plan: RestorePlan) -> dict[str, Any]:
    """The same for programs; sizes in bytes."""
    return {
        "checkpoint_id": plan.checkpoint_id,
        "last": plan.last,
        "left_behind": [completed.checkpoint_id for completed in plan.left_behind],
        "batches": list(plan.batches),
        "files": [file.name for file in plan.files],
        "state_bytes": plan.state_bytes,
        "file_bytes": plan.file_bytes,
        "open_attempt": None if plan.open_attempt is None else str(plan.open_attempt.attempt),
        "read_objects": plan.read_objects,
        "read_bytes": plan.read_bytes,
    }


_COST_COLUMNS = ("A", "B", "free", "retries", "uploads", "composes", "up", "down", "seconds", "USD")
_STEPS = {
    TRIGGER: "1 trigger",
    PERSIST: "2, 3 persist",
    RECORD: "4 record",
    CONFIRM: "5 confirm",
    COMPOSE_COMMIT: "6 compose-commit",
}


def cost_sections(
    checkpoint: Checkpoint, later: CheckpointCost, prices: StoragePrices
) -> Iterator[Table | str]:
    """A row for each step, and the sum of the first four; of steps 5 and 6 `later`, or else their seconds."""
    cost = checkpoint.manifest.cost
    if cost is None:
        yield "cost: not counted"
        return
    listed = f"list prices of {prices.as_of}" if prices.as_of else "prices of the job"
    at = listed if prices.class_a_per_thousand else "no price"
    table = Table("step", *_COST_COLUMNS, title=f"Requests by class, at {at}", right=_COST_COLUMNS)
    for name, step in cost.steps.items():
        table.add_row(_STEPS.get(name, name), *_cost_cells(step, prices))
    table.add_row("1 to 4", *_cost_cells(cost.total, prices))
    entry = checkpoint.entry
    for name, record in ((CONFIRM, entry.completed), (COMPOSE_COMMIT, entry.committed)):
        if name in later.steps:
            table.add_row(_STEPS[name], *_cost_cells(later.steps[name], prices))
        elif record is not None:
            table.add_row(_STEPS[name], *[""] * (len(_COST_COLUMNS) - 2), f"{record.seconds:.3f}", "")
    yield table


def _cost_cells(step: Cost, prices: StoragePrices) -> Iterator[str]:
    for count in (step.class_a, step.class_b, step.free, step.retries, step.uploads, step.composes):
        yield f"{count:,}"
    yield readable_bytes(step.bytes_up)
    yield readable_bytes(step.bytes_down)
    yield f"{step.seconds:.3f}"
    yield f"{step.usd(prices):.6f}"


def cost_json(checkpoint: Checkpoint, later: CheckpointCost, prices: StoragePrices) -> dict[str, Any] | None:
    """The same for programs; `None` if not counted. The sums are of `steps`, which are 1 to 4."""
    cost = checkpoint.manifest.cost
    if cost is None:
        return None
    total = cost.total
    return {
        "steps": _steps_json(cost, prices),
        "later_steps": _steps_json(later, prices),
        "requests": total.requests,
        "bytes_up": total.bytes_up,
        "bytes_down": total.bytes_down,
        "usd": total.usd(prices),
        "prices": prices,
    }


def _steps_json(cost: CheckpointCost, prices: StoragePrices) -> list[dict[str, Any]]:
    return [{"step": name, **vars(step), "usd": step.usd(prices)} for name, step in cost.steps.items()]


def sources_table(checkpoint: Checkpoint) -> Table:
    """The sources of a job, one a row."""
    columns = ("source", "stands at", "by", "written last by", "operators")
    table = Table(*columns, title="Sources")
    for name, each in sorted(checkpoint.manifest.sources.items()):
        table.add_row(name, each.stands, str(each.measure), each.by, ", ".join(each.operators))
    return table


def operators_table(checkpoint: Checkpoint) -> Table:
    """The operators of a job and the sources that write each."""
    table = Table("operator", "written by", title="Operators")
    for name, sources in operators_json(checkpoint).items():
        table.add_row(name, ", ".join(sources))
    return table


def operators_json(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """The sources that write each operator."""
    sources = sorted(checkpoint.manifest.sources.items())
    return {
        operator: [name for name, each in sources if operator in each.operators]
        for operator in sorted(checkpoint.manifest.operators)
    }
