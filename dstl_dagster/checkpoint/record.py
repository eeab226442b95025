"""Steps 3 and 4: check what the tasks reported against the store, and build the manifest from it.

Owns the checks between a report and a manifest. Does not own when this may happen (`decisions`) or the
manifest's bytes (`manifest`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from dstl_dagster.concurrency import gather
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import (
    COMPONENTS_PREFIX,
    JOBS_PREFIX,
)
from dstl_dagster.keyed import (
    AttemptReport,
    FileReport,
    Files,
    Manifest,
    NameChange,
    OperatorEntry,
    OperatorReport,
    Run,
    StateRows,
    as_file_reports,
    merged_runs,
    merged_sources,
    refuse_wrong_ttl,
)
from dstl_dagster.recoverable import (
    Component,
    GSBlobIdentifier,
    GSRecoverableWriter,
    recoverable_hash,
)
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import Check, ObjectStat, ObjectStore, component_lookups
from dstl_dagster.timeline import Attempt, FinalFile

__all__ = [
    "build_manifest",
    "checked_report",
    "final_files",
    "with_a_component_each",
]


def checked_report(
    store: ObjectStore,
    attempt: Attempt,
    report: AttemptReport,
    files: Files,
    referenced: Callable[[], frozenset[str]],
    options: GSFileSystemOptions,
    *,
    threads: int = 1,
) -> AttemptReport:
    """Step 3: the report with these files, as the store bears it out. Changes nothing.

    Raises: as `_verify_report`; InvalidInputError if two files have the same name.
    """
    report = dataclasses.replace(report, files=as_file_reports(files, store, options, threads=threads))
    _verify_report(store, report, attempt, referenced, threads=threads)
    return report


def _verify_report(
    store: ObjectStore,
    report: AttemptReport,
    attempt: Attempt,
    referenced: Callable[[], frozenset[str]],
    *,
    threads: int = 1,
) -> None:
    """Step 3: check that everything the tasks reported durable is there, exactly as reported.

    Each changelog file is looked up once, however many handles share it; up to `threads` at once.

    `referenced` gives the changelog files that the parent checkpoint needs; it is called only where a report
    names files of another attempt.

    Raises: NotFoundError, ConflictError (kind `not_as_reported`, `target_exists`), InvalidInputError (kind
    `foreign_changelog`, `file_and_folder`, `reserved_name`).
    """
    _refuse_foreign_changelog(report.operators, attempt, referenced)
    _refuse_nested_files(store, report.files)
    checks: list[Check] = [
        partial(_check_changelog_file, store, *each) for each in _changelog_files(report.operators)
    ]
    for file in report.files:
        checks += _file_checks(store, file)
    gather(checks, store.capabilities.lookup_threads(threads), "dstl-lookup")


Reported = tuple[int | None, int | None, int | None]
"""Generation, stored bytes and CRC-32C of a changelog file, as far as a handle has them."""


def _changelog_files(operators: Iterable[OperatorReport]) -> Iterator[tuple[str, str, Sequence[Reported]]]:
    """Each file once: its name, its operator, and all that is reported of it; in the reports' order."""
    operator_of: dict[str, str] = {}
    reported: dict[str, dict[Reported, None]] = {}
    for operator in operators:
        for handle in operator.written_handles:
            for stream in handle.streams:
                operator_of.setdefault(stream.name, operator.operator)
                expected = (stream.generation, stream.stored_bytes, stream.crc32c)
                reported.setdefault(stream.name, {})[expected] = None
    for name, operator_name in operator_of.items():
        yield name, operator_name, tuple(reported[name])


def _check_changelog_file(store: ObjectStore, name: str, operator: str, reported: Sequence[Reported]) -> None:
    found = store.stat(name)
    if found is None:
        raise NotFoundError(
            f"changelog file {name} of operator {operator!r} is missing: run the "
            "appending step again; it opens a new attempt",
            kind=ErrorKind.CHANGELOG_MISSING,
        )
    for expected in reported:
        _same(name, expected, (found.generation, found.size, found.crc32c))


def with_a_component_each(
    store: ObjectStore, report: AttemptReport, attempt: Attempt, options: GSFileSystemOptions
) -> AttemptReport:
    """Give every file of no component an empty one, named after the attempt and the file.

    What is decided about a file is decided by its components: a late step 6 misses them and brings nothing
    back that was taken, and their ids tell the files of two attempts apart. Repeated, it finds the same one.
    """
    files = [
        file if file.recoverable.component_object_ids else _with_a_component(store, file, attempt, options)
        for file in report.files
    ]
    return dataclasses.replace(report, files=tuple(files))


def _with_a_component(
    store: ObjectStore, file: FileReport, attempt: Attempt, options: GSFileSystemOptions
) -> FileReport:
    final = file.recoverable.final_blob_identifier
    named = hashlib.sha256(f"{final.bucket_name}/{final.object_name}".encode()).digest()
    writer = GSRecoverableWriter(
        store, options, attempt=attempt.attempt, random_bits=lambda _bits: int.from_bytes(named[:8], "big")
    )
    stream = writer.open(store.in_bucket(final.bucket_name).uri_of(final.object_name))
    stream.write(b"")
    committer = stream.close_for_commit()
    return dataclasses.replace(file, recoverable=committer.recoverable, components=committer.components)


def _refuse_foreign_changelog(
    operators: Iterable[OperatorReport], attempt: Attempt, referenced: Callable[[], frozenset[str]]
) -> None:
    """No file that clean-up may delete before step 5: another attempt's, which no checkpoint names."""
    own, others = attempt.names.attempt_folder(attempt.attempt), JOBS_PREFIX
    foreign = {
        stream.name: operator.operator
        for operator in operators
        for handle in operator.written_handles
        for stream in handle.streams
        if stream.name.startswith(others) and not stream.name.startswith(own)
    }
    unknown = sorted(foreign.keys() - referenced()) if foreign else []
    if unknown:
        raise InvalidInputError(
            f"changelog file {unknown[0]} of operator {foreign[unknown[0]]!r} was written for another "
            "attempt, so a clean-up may delete it: open the changelog storage for each attempt with "
            "base_path=attempt.names.changelog_base_path(attempt.attempt); a writer that outlives its "
            f"attempt needs a base_path outside {JOBS_PREFIX}",
            ErrorKind.FOREIGN_CHANGELOG,
        )


def _refuse_nested_files(store: ObjectStore, files: Sequence[FileReport]) -> None:
    """Where names are paths: no final name is a folder of another, in this checkpoint or there already."""
    if not store.capabilities.nested_names:
        return
    finals = {file.recoverable.final_blob_identifier for file in files}
    # Files share folders: each is looked at once.
    below = {
        GSBlobIdentifier(final.bucket_name, folder): final.object_name
        for final in finals
        for folder in _folders_of(final.object_name)
    }
    for folder, name in below.items():
        home = store.in_bucket(folder.bucket_name)
        if folder in finals or home.stat(folder.object_name) is not None:
            raise _nested(name, folder.object_name)
    for final in finals:
        found = next(store.in_bucket(final.bucket_name).list(f"{final.object_name}/"), None)
        if found is not None:
            raise _nested(found.name, final.object_name)


def _folders_of(name: str) -> Iterator[str]:
    """`a/b/c`: `a/b`, `a`."""
    while above := name.rpartition("/")[0]:
        yield above
        name = above


def _nested(name: str, above: str) -> InvalidInputError:
    return InvalidInputError(
        f"{above!r} cannot be a file and the folder of {name!r}: write one of them to another name",
        ErrorKind.FILE_AND_FOLDER,
    )


def build_manifest(attempt: Attempt, report: AttemptReport, parent: Manifest | None) -> Manifest:
    """Step 4, the plan: the report as a delta on the parent's manifest. Pure.

    Raises: InvalidInputError if an operator changed its keys or its number of key groups, or (kind
    `schema_change`) if a new column differs from one of the state's only in case, or if the writer did not
    know which columns were dropped and renamed before, or the state's TTL.
    """
    if parent is not None:
        parent = _renamed(parent, report.names)
    before = {} if parent is None else parent.operators
    entries: dict[str, OperatorEntry] = {}
    for operator in report.operators:
        known = before.get(operator.operator)
        if known is not None:
            _refuse_new_keys(known.report, operator)
            _refuse_forgotten_ids(known.report, operator)
            _refuse_another_case(known.report, operator)
        refuse_wrong_ttl(None if known is None else known.report, operator)
        entries[operator.operator] = _entry(attempt.checkpoint_id, known, operator)
    for name, entry in before.items():
        if name not in entries:
            entries[name] = _entry(attempt.checkpoint_id, entry, entry.report.unchanged())
    return Manifest(
        job=attempt.job,
        checkpoint_id=attempt.checkpoint_id,
        attempt=attempt.attempt,
        parent=attempt.parent,
        operators=entries,
        files=report.files,
        sources=merged_sources({} if parent is None else parent.sources, report.sources, attempt.builds_on),
        persist_seconds=report.seconds,
        cost=report.cost,
    )


def final_files(files: Iterable[FileReport]) -> tuple[FinalFile, ...]:
    """The files as the `completed` record names them, which outlives the manifest."""
    return tuple(
        FinalFile(
            file.recoverable.final_blob_identifier.bucket_name,
            file.object_name,
            recoverable_hash(file.recoverable),
        )
        for file in files
    )


def _renamed(parent: Manifest, names: NameChange) -> Manifest:
    """The parent as if its operators and sources had their new names, and those that go had never been."""
    if not names:
        return parent
    names.require_known(parent.operators, parent.sources, parent.job)
    entries: dict[str, OperatorEntry] = {}
    for old, entry in parent.operators.items():
        new = names.operators.get(old, old)
        if new is None:
            continue
        if new != old:
            entry = dataclasses.replace(entry, report=dataclasses.replace(entry.report, operator=new))
        entries[new] = entry
    return dataclasses.replace(parent, operators=entries, sources=names.renamed_sources(parent.sources))


def _entry(checkpoint_id: int, before: OperatorEntry | None, report: OperatorReport) -> OperatorEntry:
    """The operator's entry: the parent's runs after the report's merges, and its own changes on top."""
    runs = () if before is None else merged_runs(before.runs, report.merges)
    if before is None and report.merges:
        raise InvalidInputError(f"operator {report.operator!r} has no state yet that could be merged")
    if report.handles:
        counted = report.upserts + report.deletes > 0
        own = Run(
            checkpoint_id,
            checkpoint_id,
            report.handles,
            whole=not runs,
            upserts=report.upserts if counted else None,
            deletes=report.deletes if counted else None,
        )
        runs = (*runs, own)
    rows = StateRows.after(
        None if before is None else before.rows, None if before is None else before.report, report, runs
    )
    return OperatorEntry(
        report if before is None else _of_both(before, report),
        runs,
        rows,
        sum(merge.run.stored_bytes for merge in report.merges),
        None if before is None or report.merges else before.listed,
    )


def _of_both(before: OperatorEntry, report: OperatorReport) -> OperatorReport:
    """The report with the columns of the whole state: changes may have fewer."""
    older = before.report
    report = dataclasses.replace(report, merges=())
    same = (older.schema, older.key_columns, older.column_ids) == (
        report.schema,
        report.key_columns,
        report.column_ids,
    )
    if same or not (older.schema and report.schema):
        return report
    from dstl_dagster.keyed import schema_of  # imports Arrow, so only if the schema changed

    schema = schema_of(report).covering(schema_of(older))
    return dataclasses.replace(report, schema=schema.arrow_message, column_ids=schema.column_ids)


def _refuse_new_keys(before: OperatorReport, now: OperatorReport) -> None:
    frozen: dict[str, Any] = {"key columns": before.key_columns, "max_parallelism": before.max_parallelism}
    given: dict[str, Any] = {"key columns": now.key_columns, "max_parallelism": now.max_parallelism}
    if before.key_ids == now.key_ids:
        given["key columns"] = before.key_columns  # at most renamed
    for what, expected in frozen.items():
        if given[what] != expected:
            raise InvalidInputError(
                f"operator {now.operator!r} started with {what} {expected!r} and now has {given[what]!r}: "
                "they are frozen. Use another operator name, or keep the old ones",
                kind=ErrorKind.KEYS_FROZEN,
            )


def _refuse_another_case(before: OperatorReport, now: OperatorReport) -> None:
    """No `name` beside the state's `Name` by accident: the report's schema has the one and lacks the other.

    A writer that keeps them apart on purpose has both: a report's schema includes the state's columns.
    """
    if not (before.schema and now.schema) or before.schema == now.schema:
        return
    from dstl_dagster.keyed import schema_of  # imports Arrow, so only if the schema changed
    from dstl_dagster.state import refuse_alike, spelled

    older, newer = schema_of(before), schema_of(now)
    names, kept = newer.columns.names, {*newer.ids, *newer.column_ids.dropped}
    # A column that was renamed or dropped on purpose is no accident.
    left_out = [name for name in older.columns.names if older.column_ids.of(name) not in kept]
    for unknown in set(left_out) - set(names):
        refuse_alike(
            [unknown, *spelled([unknown], names, case_sensitive=False)], f"operator {now.operator!r}"
        )


def _refuse_forgotten_ids(before: OperatorReport, now: OperatorReport) -> None:
    """No report by a writer that did not know what was dropped and renamed: old values would come back."""
    if not (before.column_ids or now.column_ids):
        return
    from dstl_dagster.keyed import schema_of  # imports Arrow, so only if columns were ever changed

    lost = before.column_ids.dropped.keys() - now.column_ids.dropped.keys()
    if lost or not now.column_ids:
        raise InvalidInputError(
            f"operator {now.operator!r} was written without its state's schema, which tells dropped and "
            "renamed columns apart: evolve the schema that `Batch.schema` or `KeyedState.schema` gives",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
    schema_of(now).covering(schema_of(before))


def _file_checks(store: ObjectStore, file: FileReport) -> list[Check]:
    """What has to be looked up about a file; what is wrong with its report is raised at once."""
    final = file.recoverable.final_blob_identifier
    if len(file.components) != len(file.recoverable.component_object_ids):
        raise InvalidInputError(
            f"file {final.object_name}: the recoverable names {len(file.recoverable.component_object_ids)} "
            f"components, but the report describes {len(file.components)}"
        )
    reserved = [COMPONENTS_PREFIX, store.prefix + COMPONENTS_PREFIX]
    if final.bucket_name == store.bucket_name:
        reserved.append(store.prefix + JOBS_PREFIX)
    if final.object_name.startswith(tuple(reserved)):
        raise InvalidInputError(
            f"file {final.object_name} would lie among the objects that jobs keep for themselves: "
            "write it to another folder",
            ErrorKind.RESERVED_NAME,
        )
    components = list(file.components)
    found = component_lookups(store, [(each.bucket_name, each.object_name) for each in components])
    checks: list[Check] = [
        partial(_check_component, final.object_name, component, look)
        for component, look in zip(components, found, strict=True)
    ]
    return [*checks, partial(_check_target, store, final)]


def _check_component(final_name: str, component: Component, look: Callable[[], ObjectStat | None]) -> None:
    found = look()
    if found is None:
        raise NotFoundError(
            f"component {component.object_name} of file {final_name} is missing: run the writing "
            "step again; it opens a new attempt",
            kind=ErrorKind.COMPONENT_MISSING,
        )
    expected = (component.generation, component.size, component.crc32c)
    _same(component.object_name, expected, (found.generation, found.size, found.crc32c))


def _check_target(store: ObjectStore, final: GSBlobIdentifier) -> None:
    there = store.in_bucket(final.bucket_name).stat(final.object_name)
    if there is not None:
        raise ConflictError(
            f"{final.object_name} already exists (generation {there.generation}) and does not belong to this "
            "checkpoint: move it away and run the step again, or write to another name",
            kind=ErrorKind.TARGET_EXISTS,
        )


def _same(name: str, expected: tuple[int | None, ...], found: tuple[int, ...]) -> None:
    if expected[1:] == found[1:]:
        return  # of another generation: a copy
    for what, reported, actual in zip(("generation", "size", "crc32c"), expected, found, strict=True):
        if reported is not None and reported != actual:
            raise ConflictError(
                f"{name} has {what} {actual}, but the task that wrote it reported {reported}: another writer "
                "replaced it. Run the appending step again; it opens a new attempt",
                kind=ErrorKind.NOT_AS_REPORTED,
            )
