"""What a caller gives to step 4, as reports: plain handles by operator, and bare recoverables.

Owns that form. Does not own the checks of a report (`checkpoint.steps.record`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dstl_dagster.concurrency import gather
from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle
from dstl_dagster.keyed.reports import FileReport, OperatorReport
from dstl_dagster.recoverable import Component, GSCommitRecoverable
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore, component_lookups

__all__ = ["Files", "Handles", "as_file_reports", "as_operator_reports"]

Handles = Iterable[OperatorReport] | Mapping[str, Sequence[ChangelogStateHandle] | OperatorReport]
Files = Iterable[FileReport | GSCommitRecoverable]


def as_operator_reports(handles: Handles) -> tuple[OperatorReport, ...]:
    """Reports, or plain handle lists by operator, as reports sorted by operator name."""
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
    waiting = next((report.operator for report in reports if report.is_waiting), None)
    if waiting is not None:
        raise InvalidInputError(
            f"operator {waiting!r}: its changes wait to share a file with others of their batch: add the "
            "report to that batch, and end it by hand_over or complete"
        )
    return tuple(sorted(reports, key=lambda report: report.operator))


def as_file_reports(
    files: Files, store: ObjectStore, options: GSFileSystemOptions, *, threads: int = 1
) -> tuple[FileReport, ...]:
    """Reports, or bare recoverables whose components are looked up in the store, as reports.

    Raises: NotFoundError if a component is missing, InvalidInputError if two files have the same name.
    """
    reports = tuple(
        file
        if isinstance(file, FileReport)
        else _looked_up(file, store, options, store.capabilities.lookup_threads(threads))
        for file in files
    )
    names = [report.recoverable.final_blob_identifier for report in reports]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise InvalidInputError(
            f"two files of one checkpoint have the name {twice.object_name!r}: give each its own"
        )
    return reports


def _looked_up(
    recoverable: GSCommitRecoverable, store: ObjectStore, options: GSFileSystemOptions, threads: int
) -> FileReport:
    identifiers = list(recoverable.component_blob_ids(options))
    looks = component_lookups(store, [(each.bucket_name, each.object_name) for each in identifiers])
    stats = gather(looks, threads, "dstl-lookup")
    components = []
    for identifier, found in zip(identifiers, stats, strict=True):
        if found is None:
            raise NotFoundError(
                f"component {identifier.object_name} of file "
                f"{recoverable.final_blob_identifier.object_name} is missing",
                kind=ErrorKind.NOT_WRITTEN,
            )
        components.append(
            Component(
                identifier.bucket_name, identifier.object_name, found.generation, found.size, found.crc32c
            )
        )
    return FileReport(recoverable, tuple(components))
