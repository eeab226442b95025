"""Steps 3 and 4: hold what the tasks reported against the store, and say it in a manifest.

Owns the checks between a report and a manifest. Does not own when it may happen (`decisions`) nor the
manifest's bytes (`manifest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import COMPONENTS_PREFIX, ChangelogStateHandle, JobNames
from dstl_dagster.keyed import AttemptReport, BaseAndLog, FileReport, Manifest, OperatorEntry, OperatorReport
from dstl_dagster.recoverable import Component, GSCommitRecoverable, recoverable_hash
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt, FinalFile

__all__ = ["as_file_reports", "as_operator_reports", "build_manifest", "final_files", "verify_report"]

Handles = Iterable[OperatorReport] | Mapping[str, Sequence[ChangelogStateHandle] | OperatorReport]
Files = Iterable[FileReport | GSCommitRecoverable]


def as_operator_reports(handles: Handles) -> tuple[OperatorReport, ...]:
    """Reports, or plain handle lists by operator, as reports in the order of the operators' names."""
    if isinstance(handles, Mapping):
        reports = [
            entry if isinstance(entry, OperatorReport) else OperatorReport(operator, tuple(entry))
            for operator, entry in handles.items()
        ]
    else:
        reports = list(handles)
    names = [report.operator for report in reports]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(f"operators {twice} are reported twice in one checkpoint: report each once")
    return tuple(sorted(reports, key=lambda report: report.operator))


def as_file_reports(files: Files, store: ObjectStore, options: GSFileSystemOptions) -> tuple[FileReport, ...]:
    """Reports, or bare recoverables whose components the store is asked about, as reports.

    Raises: NotFoundError where a component is missing, InvalidInputError where two files have one name.
    """
    reports = tuple(file if isinstance(file, FileReport) else _ask(file, store, options) for file in files)
    names = [report.recoverable.final_blob_identifier for report in reports]
    if len(set(names)) != len(names):
        raise InvalidInputError("two files of one checkpoint have the same name: give each its own")
    return reports


def verify_report(store: ObjectStore, report: AttemptReport, attempt: Attempt) -> None:
    """Step 3: everything that the tasks say is durable is there, exactly as they say.

    Raises: NotFoundError, ConflictError (kind `not_as_reported`), InvalidInputError.
    """
    for operator in report.operators:
        for handle in operator.handles:
            for stream, _offset in handle.handles_and_offsets:
                found = store.stat(stream.name)
                if found is None:
                    raise NotFoundError(
                        f"changelog file {stream.name} of operator {operator.operator!r} is missing: run the "
                        "step that appends again; it opens a new attempt",
                        kind=ErrorKind.CHANGELOG_MISSING,
                    )
                expected = (stream.generation, stream.stored_bytes, stream.crc32c)
                _same(stream.name, expected, (found.generation, found.size, found.crc32c))
    for file in report.files:
        _check_file(store, file, attempt)


def build_manifest(attempt: Attempt, report: AttemptReport, parent: Manifest | None) -> Manifest:
    """Step 4, the plan: the report as a delta on the parent's manifest. Pure.

    Raises: InvalidInputError where an operator changed its keys or its number of key groups, or took a
    column for another because of its case (kind `schema_change`).
    """
    before = {} if parent is None else parent.operators
    entries: dict[str, OperatorEntry] = {}
    for operator in report.operators:
        previous = None if operator.base else _previous(parent, operator.operator)
        parents = before.get(operator.operator)
        sizes = BaseAndLog() if parents is None or operator.base else parents.sizes
        entries[operator.operator] = OperatorEntry(
            operator, previous, None if sizes is None else sizes.with_report(operator)
        )
        if parents is not None:
            _refuse_new_keys(parents.report, operator)
            _refuse_another_case(parents.report, operator)
    for name, entry in before.items():
        if name not in entries:
            unchanged = OperatorReport(
                name, (), entry.report.key_columns, entry.report.max_parallelism, entry.report.schema
            )
            entries[name] = OperatorEntry(unchanged, _previous(parent, name), entry.sizes)
    return Manifest(
        job=attempt.job,
        checkpoint_id=attempt.checkpoint_id,
        attempt=attempt.attempt,
        parent=attempt.parent,
        operators=entries,
        files=report.files,
        positions=report.positions,
        persist_seconds=report.seconds,
    )


def final_files(files: Iterable[FileReport]) -> tuple[FinalFile, ...]:
    """How the `completed` record names files: what is known of them for ever, without the manifest."""
    return tuple(
        FinalFile(
            file.recoverable.final_blob_identifier.bucket_name,
            file.object_name,
            recoverable_hash(file.recoverable),
        )
        for file in files
    )


def _previous(parent: Manifest | None, operator: str) -> str | None:
    """The newest manifest with handles of this operator, seen from a child of `parent`."""
    if parent is None or operator not in parent.operators:
        return None
    entry = parent.operators[operator]
    if entry.report.handles:
        return JobNames(parent.job).manifest(parent.checkpoint_id, parent.attempt)
    return entry.previous


def _refuse_new_keys(before: OperatorReport, now: OperatorReport) -> None:
    was: dict[str, Any] = {"key columns": before.key_columns, "max_parallelism": before.max_parallelism}
    new: dict[str, Any] = {"key columns": now.key_columns, "max_parallelism": now.max_parallelism}
    for what, frozen in was.items():
        if new[what] != frozen:
            raise InvalidInputError(
                f"operator {now.operator!r} was begun with {what} {frozen!r} and now has {new[what]!r}: "
                "they are frozen. Use another operator name, or go on with the old ones",
                kind=ErrorKind.KEYS_FROZEN,
            )


def _refuse_another_case(before: OperatorReport, now: OperatorReport) -> None:
    """Where a report brings `name` and does not know of the state's `Name`, it was made beside it.

    Who tells the two apart on purpose knows both: a report has the columns that the state had.
    """
    if not (before.schema and now.schema) or before.schema == now.schema:
        return
    from dstl_dagster.keyed import schema_of  # Arrow: not where nothing changed
    from dstl_dagster.state import refuse_alike, spelled

    names = schema_of(now).columns.names
    for unknown in set(schema_of(before).columns.names) - set(names):
        refuse_alike(
            [unknown, *spelled([unknown], names, case_sensitive=False)], f"operator {now.operator!r}"
        )


def _check_file(store: ObjectStore, file: FileReport, attempt: Attempt) -> None:
    final = file.recoverable.final_blob_identifier
    if len(file.components) != len(file.recoverable.component_object_ids):
        raise InvalidInputError(
            f"file {final.object_name}: {len(file.recoverable.component_object_ids)} components are named, "
            f"{len(file.components)} described"
        )
    if final.object_name.startswith((COMPONENTS_PREFIX, attempt.names.root)):
        raise InvalidInputError(f"file {final.object_name} would lie among the job's own objects")
    for component in file.components:
        found = store.in_bucket(component.bucket_name).stat(component.object_name)
        if found is None:
            raise NotFoundError(
                f"component {component.object_name} of file {final.object_name} is missing: run the step "
                "that writes it again; it opens a new attempt",
                kind=ErrorKind.COMPONENT_MISSING,
            )
        expected = (component.generation, component.size, component.crc32c)
        _same(component.object_name, expected, (found.generation, found.size, found.crc32c))
    there = store.in_bucket(final.bucket_name).stat(final.object_name)
    if there is not None:
        raise ConflictError(
            f"{final.object_name} already exists (generation {there.generation}) and is not of this "
            "checkpoint: move it away or write to another name",
            kind=ErrorKind.TARGET_EXISTS,
        )


def _same(name: str, expected: tuple[int | None, ...], found: tuple[int, ...]) -> None:
    for what, wanted, is_now in zip(("generation", "size", "crc32c"), expected, found, strict=True):
        if wanted is not None and wanted != is_now:
            raise ConflictError(
                f"{name} has {what} {is_now}, but the task that wrote it reported {wanted}: somebody else "
                "wrote there. Run the step that appends again; it opens a new attempt",
                kind=ErrorKind.NOT_AS_REPORTED,
            )


def _ask(recoverable: GSCommitRecoverable, store: ObjectStore, options: GSFileSystemOptions) -> FileReport:
    components = []
    for identifier in recoverable.component_blob_ids(options):
        found = store.in_bucket(identifier.bucket_name).stat(identifier.object_name)
        if found is None:
            raise NotFoundError(
                f"component {identifier.object_name} of file "
                f"{recoverable.final_blob_identifier.object_name} is missing",
                kind=ErrorKind.COMPONENT_MISSING,
            )
        components.append(
            Component(
                identifier.bucket_name, identifier.object_name, found.generation, found.size, found.crc32c
            )
        )
    return FileReport(recoverable, tuple(components))
