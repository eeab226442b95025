"""Whether everything that one checkpoint needs is there and undamaged. Reads every byte, changes nothing.

Owns what is checked. Does not own how one object is checked (`integrity`), or what to do about a problem.

    run lists        that the manifest names: readable, and as it names them
    changelog files  the object's generation, size and CRC-32C; each change set's own checksum; that rows
                     decode with the schema that precedes them
    files            published ones by size and CRC-32C; others by their components, or what is composed

Each object is checked by itself: one that is damaged is one problem, and hides no other. An outage is not
damage: it is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial

from dstl_dagster.checkpoint.inspect.integrity import (
    Expected,
    FileChecks,
    Findings,
    Problem,
    check_object,
    is_as_expected,
    raise_unless_damage,
)
from dstl_dagster.checkpoint.job import Checkpoint, Job
from dstl_dagster.concurrency import Progress, in_order
from dstl_dagster.errors import DstlError, ErrorKind, FormatError
from dstl_dagster.format import JobNames
from dstl_dagster.keyed import (
    FileReport,
    Manifest,
    load_list,
)
from dstl_dagster.recoverable import Copied, fingerprint_of, is_own, temporary_names
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Committed

_PROBLEMS_SHOWN = 5
Check = Callable[[], object]


@dataclass(frozen=True)
class Verification:
    """The findings.

    Attributes:
        problems: ascending by object; none means that the checkpoint can be restored.
        notes: worth knowing but not damage, such as a file that a consumer moved away.
        objects: number of objects checked.
        bytes: number of bytes read, each counted once.
    """

    checkpoint_id: int
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]
    objects: int
    bytes: int

    @property
    def ok(self) -> bool:
        return not self.problems

    @classmethod
    def of(cls, checkpoint_id: int, found: Findings) -> Verification:
        return cls(checkpoint_id, found.problems, found.notes, found.objects, found.bytes)


def verify_checkpoint(job: Job, checkpoint: Checkpoint, progress: Progress | None = None) -> Verification:
    """Check everything that the checkpoint needs, changelog files also row by row.

    Each check holds one change set at a time, and all of them together 64 MiB of small files; larger ones are
    on disk. A cached file is fetched once.

    Args:
        progress: called with (checks done, checks in total) from the calling thread.

    Raises: UnavailableError if the store is down, FormatError (kind `newer_version`) if a later release wrote
    the checkpoint: then nothing is known.
    """
    from dstl_dagster.checkpoint.inspect.change_sets import (
        change_checks,  # needs Arrow, as nothing else here does
    )

    found = Findings()
    store, manifest, completed = job.store, checkpoint.manifest, checkpoint.entry.completed
    files = completed.origin.located(store)
    _check_lists(store, manifest, found)
    checks: list[Check] = []
    if checkpoint.abandoned:
        found.note(
            completed.manifest,
            "is of a checkpoint that a restore left behind: read it, but do not restore to it",
        )
        checks += [partial(_check_retracted, files, file, found) for file in manifest.files]
    else:
        copied = cache(partial(completed.origin.is_copied, store))
        committed = checkpoint.entry.committed
        checks += [partial(_check_file, files, file, committed, copied, found) for file in manifest.files]
    with change_checks(store, manifest, job.job_options.changelog, found) as of_changes:
        _run([*of_changes, *checks], job.threads, progress)
    return Verification.of(manifest.checkpoint_id, found)


def verify_state(job: Job, manifest: Manifest) -> Verification:
    """Check what a restore needs: lists of runs, and the CRC-32C of each changelog file, read once each.

    Raises: UnavailableError, FormatError (kind `newer_version`).
    """
    found = Findings()
    _check_lists(job.store, manifest, found)
    checks = FileChecks(job.store, found)
    _run([partial(checks.is_undamaged, stream) for stream in manifest.changelog_files], job.threads, None)
    return Verification.of(manifest.checkpoint_id, found)


def require_undamaged(job: Job, manifest: Manifest) -> None:
    """Refuse to resume from damaged state. Raises: FormatError (kind `damaged`), UnavailableError."""
    found = verify_state(job, manifest)
    if not found.ok:
        shown = "; ".join(str(problem) for problem in found.problems[:_PROBLEMS_SHOWN])
        raise FormatError(
            f"job {manifest.job!r} cannot resume from checkpoint {manifest.checkpoint_id}: its state is "
            f"damaged in {len(found.problems)} places: {shown}. Nothing was changed; `newest_verified()`, or "
            "`dstl checkpoints restore --newest-verified`, finds the newest undamaged checkpoint",
            kind=ErrorKind.DAMAGED,
        )


def _run(checks: list[Check], threads: int, progress: Progress | None) -> None:
    with closing(in_order(checks, threads, "dstl-verify")) as results:
        for done, _ in enumerate(results, 1):
            if progress is not None:
                progress(done, len(checks))


def _check_lists(store: ObjectStore, manifest: Manifest, found: Findings) -> None:
    """The manifest, which was read, and what it names of runs, which may have been read long ago."""
    found.checked(JobNames(manifest.job).manifest(manifest.checkpoint_id, manifest.attempt))
    for name, crc32c in manifest.lists.items():
        found.checked(name)
        try:
            load_list(store, manifest.job, name, crc32c)
        except DstlError as error:
            raise_unless_damage(error)
            found.problem(name, f"cannot be read: {error.message}")


def _check_file(
    store: ObjectStore, file: FileReport, committed: Committed | None, copied: Copied, found: Findings
) -> None:
    name = file.object_name
    blocked = {} if committed is None else {each.name: each.reason for each in committed.blocked}
    if name in blocked:
        found.note(name, f"is not published: {blocked[name]}")
    if committed is None or name in blocked:
        _check_components(store, file, copied, found)
    elif name in committed.published:
        _check_published(store, file, found)
    else:
        found.note(name, "was discarded: its name was left to a foreign object")


def _check_retracted(store: ObjectStore, file: FileReport, found: Findings) -> None:
    """The file is not needed any more, nor are its components."""
    final = file.recoverable.final_blob_identifier
    stat = store.in_bucket(final.bucket_name).stat(final.object_name)
    found.checked(final.object_name)
    if stat is not None and is_own(stat, fingerprint_of(file.recoverable, file.components).commit):
        found.note(file.object_name, "is still there: the next trigger retracts it")
    else:
        found.note(file.object_name, "was retracted by the restore that left this checkpoint behind")


def _check_published(store: ObjectStore, file: FileReport, found: Findings) -> None:
    final = file.recoverable.final_blob_identifier
    home = store.in_bucket(final.bucket_name)
    fingerprint = fingerprint_of(file.recoverable, file.components)
    stat = home.stat(final.object_name)
    if stat is None:
        found.checked(final.object_name)
        found.note(final.object_name, "is gone: it was moved or deleted after it was published")
    elif not is_own(stat, fingerprint.commit) and (stat.size, stat.crc32c) != (
        fingerprint.size,
        fingerprint.crc32c,
    ):
        found.checked(final.object_name)
        found.note(final.object_name, "was replaced by a foreign object after it was published")
    else:
        expected = Expected(stat.generation, fingerprint.size, fingerprint.crc32c)
        if not is_as_expected(home, final.object_name, expected, found):
            check_object(home, final.object_name, replace(expected, generation=None), found)


def _check_components(store: ObjectStore, file: FileReport, copied: Copied, found: Findings) -> None:
    """A file that is not published yet: its components exist, or step 6 has started composing them."""
    missing = []
    for component in file.components:
        home = store.in_bucket(component.bucket_name)
        expected = Expected(component.generation, component.size, component.crc32c)
        if is_as_expected(home, component.object_name, expected, found):
            continue
        stat = home.stat(component.object_name)
        if stat is None:
            missing.append(component.object_name)
            continue
        if stat.generation != component.generation and not copied():
            # What a late repeat of its upload leaves looks the same as a copy: a person decides.
            found.checked(component.object_name)
            found.problem(
                component.object_name,
                f"was copied or overwritten: it has generation {stat.generation}, not "
                f"{component.generation}, so {file.object_name} will be blocked",
            )
            continue
        check_object(home, component.object_name, expected, found)
    if missing and not _is_being_composed(store, file):
        for name in missing:
            found.checked(name)
            found.problem(name, f"is missing, and {file.object_name} needs it")


def _is_being_composed(store: ObjectStore, file: FileReport) -> bool:
    """Whether an intermediate or the final object of this file exists, composed from its components."""
    final = file.recoverable.final_blob_identifier
    commit = fingerprint_of(file.recoverable, file.components).commit
    if is_own(store.in_bucket(final.bucket_name).stat(final.object_name), commit):
        return True
    known = {component.object_name for component in file.components}
    return any(
        store.in_bucket(name.bucket_name).stat(name.object_name) is not None
        for name in temporary_names(file.recoverable, file.components)
        if name.object_name not in known
    )
