"""Step 3: check what the tasks reported durable against the store.

Owns the checks between a report and a manifest, and the plainer forms that step 4 accepts in a report's
place. Does not own when they are made, or the manifest (`record`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile

from dstl_dagster.checkpoint.job import Job
from dstl_dagster.concurrency import gather
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import COMPONENTS_PREFIX, JOBS_PREFIX, ChangelogStateHandle
from dstl_dagster.keyed import AttemptReport, FileReport, OperatorReport
from dstl_dagster.recoverable import Component, GSBlobIdentifier, GSCommitRecoverable, GSRecoverableWriter
from dstl_dagster.storage import ObjectStat, ObjectStore
from dstl_dagster.timeline import Attempt

Handles = Iterable[OperatorReport] | Mapping[str, Sequence[ChangelogStateHandle] | OperatorReport]
Files = Iterable[FileReport | GSCommitRecoverable]
Check = Callable[[], None]
_LISTED_COMPONENTS = 16
"""A file with so many components or more is looked up by a listing of their folder."""


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


def checked_report(
    job: Job,
    attempt: Attempt,
    report: AttemptReport,
    files: Files,
    referenced: Callable[[], frozenset[str]],
) -> AttemptReport:
    """The report with these files, as the store bears it out: each object is there, exactly as reported.

    Changes nothing. Each changelog file is looked up once, however many handles share it; several at once.

    `referenced` gives the changelog files that the parent checkpoint needs; it is called only where a report
    names files of another attempt.

    Raises: NotFoundError, ConflictError (kind `not_written`, `foreign_object`), InvalidInputError
    (also if two files have the same name).
    """
    store = job.store
    report = dataclasses.replace(report, files=_file_reports(job, files))
    _refuse_foreign_changelog(report.operators, attempt, referenced)
    _refuse_nested_files(store, report.files)
    checks: list[Check] = [
        partial(_check_changelog_file, store, *each) for each in _changelog_files(report.operators)
    ]
    for file in report.files:
        checks += _file_checks(store, file)
    gather(checks, job.lookup_threads, "dstl-lookup")
    return report


def _file_reports(job: Job, files: Files) -> tuple[FileReport, ...]:
    """Reports, or bare recoverables whose components are looked up in the store, as reports.

    Raises: NotFoundError if a component is missing, InvalidInputError if two files have the same name.
    """
    reports = tuple(file if isinstance(file, FileReport) else _looked_up(job, file) for file in files)
    # Records name a file without its bucket.
    names = Counter(report.object_name for report in reports)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise InvalidInputError(
            f"two files of one checkpoint have the name {twice!r}, in one bucket or two: give each its own"
        )
    return reports


def _looked_up(job: Job, recoverable: GSCommitRecoverable) -> FileReport:
    identifiers = recoverable.component_blob_ids(job.files)
    looks = _component_lookups(job.store, [(each.bucket_name, each.object_name) for each in identifiers])
    stats = gather(looks, job.lookup_threads, "dstl-lookup")
    components = []
    for identifier, found in zip(identifiers, stats, strict=True):
        if found is None:
            raise NotFoundError(
                f"component {identifier.object_name} of file "
                f"{recoverable.final_blob_identifier.object_name} is missing",
                kind=ErrorKind.NOT_WRITTEN,
            )
        components.append(Component.of(identifier.bucket_name, found))
    return FileReport(recoverable, tuple(components))


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
            kind=ErrorKind.NOT_WRITTEN,
        )
    for expected in reported:
        _same(name, expected, (found.generation, found.size, found.crc32c))


def with_a_component_each(job: Job, report: AttemptReport, attempt: Attempt) -> AttemptReport:
    """Give every file of no component an empty one, named after the attempt and the file.

    What is decided about a file is decided by its components: a late step 6 misses them and brings nothing
    back that was taken, and their ids distinguish the files of two attempts. Repeated, it finds the same one.
    """
    files = [
        file if file.recoverable.component_object_ids else _with_a_component(job, file, attempt)
        for file in report.files
    ]
    return dataclasses.replace(report, files=tuple(files))


def _with_a_component(job: Job, file: FileReport, attempt: Attempt) -> FileReport:
    final = file.recoverable.final_blob_identifier
    named = hashlib.sha256(f"{final.bucket_name}/{final.object_name}".encode()).digest()
    writer = GSRecoverableWriter(
        job.store,
        job.files,
        attempt=attempt.attempt,
        random_bits=lambda _bits: int.from_bytes(named[:8], "big"),
    )
    stream = writer.open(job.store.in_bucket(final.bucket_name).uri_of(final.object_name))
    stream.write(b"")
    committer = stream.close_for_commit()
    return dataclasses.replace(file, recoverable=committer.recoverable, components=committer.components)


def _refuse_foreign_changelog(
    operators: Iterable[OperatorReport], attempt: Attempt, referenced: Callable[[], frozenset[str]]
) -> None:
    """No file that clean-up may delete before step 5: another attempt's, which no checkpoint names."""
    own, others = attempt.names.attempt_folder(attempt.attempt), JOBS_PREFIX
    foreign = {
        name: operator
        for name, operator, _ in _changelog_files(operators)
        if name.startswith(others) and not name.startswith(own)
    }
    unknown = sorted(foreign.keys() - referenced()) if foreign else []
    if unknown:
        raise InvalidInputError(
            f"changelog file {unknown[0]} of operator {foreign[unknown[0]]!r} was written for another "
            "attempt, so a clean-up may delete it: open the changelog storage for each attempt with "
            "base_path=attempt.names.changelog_base_path(attempt.attempt); a writer that outlives its "
            f"attempt needs a base_path outside {JOBS_PREFIX}"
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
        f"{above!r} cannot be a file and the folder of {name!r}: write one of them to another name"
    )


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
            "write it to another folder"
        )
    components = list(file.components)
    found = _component_lookups(store, [(each.bucket_name, each.object_name) for each in components])
    checks: list[Check] = [
        partial(_check_component, final.object_name, component, look)
        for component, look in zip(components, found, strict=True)
    ]
    return [*checks, partial(_check_target, store, final)]


def _component_lookups(
    store: ObjectStore, places: Sequence[tuple[str, str]]
) -> Sequence[Callable[[], ObjectStat | None]]:
    """How to look up each of these components of one file (bucket, name): singly, or all by one listing.

    The components of a file share a folder, and those of one attempt follow each other in it.
    """
    folders = {(bucket, name.rpartition("/")[0]) for bucket, name in places}
    if len(places) < _LISTED_COMPONENTS or len(folders) > 1:
        return [partial(_stat, store, *place) for place in places]
    ((bucket, folder),) = folders
    listing = _Listing(store.in_bucket(bucket), f"{folder}/", {name for _, name in places})
    return [partial(listing.stat, name) for _, name in places]


def _stat(store: ObjectStore, bucket_name: str, name: str) -> ObjectStat | None:
    return store.in_bucket(bucket_name).stat(name)


class _Listing:
    """Lists once, when the first of `names` is asked for. Thread-safe."""

    def __init__(self, home: ObjectStore, prefix: str, names: set[str]) -> None:
        self._home = home
        self._prefix = prefix
        self._names = names
        self._lock = threading.Lock()
        self._stats: dict[str, ObjectStat] | None = None

    def stat(self, name: str) -> ObjectStat | None:
        with self._lock:
            if self._stats is None:
                last = max(self._names)
                listed = self._home.list(self._prefix, start_offset=min(self._names))
                self._stats = {each.name: each for each in takewhile(lambda each: each.name <= last, listed)}
        return self._stats.get(name)


def _check_component(final_name: str, component: Component, look: Callable[[], ObjectStat | None]) -> None:
    found = look()
    if found is None:
        raise NotFoundError(
            f"component {component.object_name} of file {final_name} is missing: run the writing "
            "step again; it opens a new attempt",
            kind=ErrorKind.NOT_WRITTEN,
        )
    expected = (component.generation, component.size, component.crc32c)
    _same(component.object_name, expected, (found.generation, found.size, found.crc32c))


def _check_target(store: ObjectStore, final: GSBlobIdentifier) -> None:
    there = store.in_bucket(final.bucket_name).stat(final.object_name)
    if there is not None:
        raise ConflictError(
            f"{final.object_name} already exists (generation {there.generation}) and does not belong to this "
            "checkpoint: move it away and run the step again (in Dagster, re-execute the run from failure), "
            "or write to another name",
            kind=ErrorKind.FOREIGN_OBJECT,
        )


def _same(name: str, expected: tuple[int | None, ...], found: tuple[int, ...]) -> None:
    if expected[1:] == found[1:]:
        return  # of another generation: a copy
    for what, reported, actual in zip(("generation", "size", "crc32c"), expected, found, strict=True):
        if reported is not None and reported != actual:
            raise ConflictError(
                f"{name} has {what} {actual}, but the task that wrote it reported {reported}: another writer "
                "replaced it. Run the appending step again; it opens a new attempt",
                kind=ErrorKind.NOT_WRITTEN,
            )
