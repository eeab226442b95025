"""Is this bucket fit to keep checkpoints? Owns the findings and what each setting would do to its owner.

Changes no setting. What a missing permission hides is a note, never an error: no permission beyond those of
daily work is required.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from dstl_dagster.errors import ConflictError, DstlError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.storage.base import ABSENT, ANY, Generation, ObjectStat, ObjectStore, Source

WANTED_PERMISSIONS = (
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.get",
    "storage.objects.list",
)

_LOCAL_LOCKS: Final = ("nolock", "local_lock=all", "local_lock=flock")
_MOUNTS: Final = Path("/proc/self/mountinfo")
_COLD_CLASSES = {"NEARLINE": 30, "COLDLINE": 90, "ARCHIVE": 365, "DURABLE_REDUCED_AVAILABILITY": 0}


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"  # promises would be broken: do not use the bucket like this
    WARNING = "warning"  # it works, and costs money or surprises
    NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class Finding:
    """One fact about a bucket. `code` is stable, for programs; `message` says what it means for its owner."""

    code: str
    severity: Severity
    message: str


def _error(code: str, message: str) -> Finding:
    return Finding(code, Severity.ERROR, message)


def _warning(code: str, message: str) -> Finding:
    return Finding(code, Severity.WARNING, message)


def _note(code: str, message: str) -> Finding:
    return Finding(code, Severity.NOTE, message)


def check_store(
    store: ObjectStore,
    *,
    checkpoint_retention: timedelta | None = None,
    write_probe: bool = True,
    progress: Callable[[str], None] = lambda _: None,
    mounts: str | None = None,
) -> list[Finding]:
    """All findings, errors first. Raises: UnavailableError if the service does not answer at all.

    Args:
        store: the bucket, below the prefix that will be used.
        checkpoint_retention: how long the oldest checkpoint stays; lifecycle rules are compared with it.
        write_probe: make, compose, copy and delete four small objects to see that preconditions hold.
        progress: called with each step before it starts.
        mounts: the machine's mounts, as in Linux's `/proc/self/mountinfo`; None: read from there.
    """
    progress("checking permissions and settings")
    findings = [*_look_at_bucket(store, checkpoint_retention), *_look_at_mount(store, mounts)]
    if write_probe and not any(finding.severity is Severity.ERROR for finding in findings):
        progress("writing, listing, composing, copying and deleting small objects")
        findings.extend(probe_store(store))
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def judge_bucket(resource: Mapping[str, Any], checkpoint_retention: timedelta | None) -> list[Finding]:
    """The effects of the settings in a bucket's resource (JSON API). Pure."""
    return [
        *_judge_deletes(resource),
        *_judge_class(resource),
        *_judge_lifecycle(resource, checkpoint_retention),
    ]


def _judge_deletes(resource: Mapping[str, Any]) -> Iterator[Finding]:
    soft_seconds = int((resource.get("softDeletePolicy") or {}).get("retentionDurationSeconds") or 0)
    if soft_seconds:
        yield _warning(
            "soft_delete",
            f"soft delete keeps every deleted object for {soft_seconds / 86_400:g} days more, at full price: "
            "changelog files and subsumed checkpoints are deleted all the time (components are spared: the "
            "compose deletes those itself). Set the bucket's soft-delete duration to 0",
        )
    if (resource.get("versioning") or {}).get("enabled"):
        yield _warning(
            "versioning",
            "versioning keeps every deleted or replaced object as a noncurrent one, at full price, until a "
            "rule takes it. Switch it off, or add a lifecycle rule that deletes noncurrent versions",
        )
    retention = resource.get("retentionPolicy") or {}
    if retention.get("retentionPeriod"):
        days = int(retention["retentionPeriod"]) / 86_400
        yield _error(
            "retention_policy",
            f"the retention policy forbids any deletion for {days:g} days: commits cannot remove their "
            "components, aborted attempts stay, clean-up fails. Use a bucket without one (or a temporary "
            "bucket without one, if only published files are to be retained)",
        )
    if resource.get("defaultEventBasedHold"):
        yield _error(
            "event_based_hold",
            "every new object is held until somebody releases it: commits and clean-up cannot delete. "
            "Switch the default event-based hold off",
        )


def _judge_class(resource: Mapping[str, Any]) -> Iterator[Finding]:
    storage_class = str(resource.get("storageClass") or "STANDARD")
    if storage_class in _COLD_CLASSES:
        yield _warning(
            "storage_class",
            f"new objects are {storage_class}: each is charged for {_COLD_CLASSES[storage_class]} days even "
            "if it lives for a minute, and reading costs extra. Use STANDARD for checkpoints",
        )
    elif storage_class == "RAPID":
        yield _error(
            "storage_class",
            "a zonal bucket (class RAPID) does not compose objects; use a regional one",
        )
    if (resource.get("autoclass") or {}).get("enabled"):
        yield _note(
            "autoclass",
            "Autoclass charges a fee for each object; many small changelog files make it add up",
        )
    if (resource.get("hierarchicalNamespace") or {}).get("enabled"):
        yield _note(
            "hierarchical_namespace",
            "the bucket has a hierarchical namespace: folders are resources of their own and stay when their "
            "objects are deleted, so empty `.inprogress` folders pile up",
        )
    if (resource.get("billing") or {}).get("requesterPays"):
        yield _error(
            "requester_pays",
            "requester pays: requests without a billing project are refused, and none is sent",
        )


def _judge_lifecycle(
    resource: Mapping[str, Any], checkpoint_retention: timedelta | None
) -> Iterator[Finding]:
    for rule in (resource.get("lifecycle") or {}).get("rule") or ():
        action = (rule.get("action") or {}).get("type")
        condition = rule.get("condition") or {}
        # Only noncurrent versions: nothing that a checkpoint refers to.
        if condition.get("isLive") is False or "daysSinceNoncurrentTime" in condition:
            continue
        where = (
            "objects under " + ", ".join(condition["matchesPrefix"])
            if "matchesPrefix" in condition
            else "objects"
        )
        age = condition.get("age")
        if action == "Delete":
            limit = None if checkpoint_retention is None else checkpoint_retention / timedelta(days=1)
            if age is None or limit is None or int(age) <= limit:
                when = "that match it" if age is None else f"older than {age} days"
                kept = "" if limit is None else f"; the oldest checkpoint is retained for {limit:g} days"
                yield Finding(
                    "lifecycle_delete",
                    Severity.WARNING if limit is None else Severity.ERROR,
                    f"a lifecycle rule deletes {where} {when}{kept}. A checkpoint needs its files for as "
                    "long as it is retained, and the state's base may be far older: exclude the job's prefix",
                )
        elif action == "SetStorageClass":
            yield _warning(
                "lifecycle_class",
                f"a lifecycle rule moves {where} to {rule['action'].get('storageClass')}: deleting them soon "
                "after is charged as if they had stayed, and restoring costs a retrieval fee",
            )


def _look_at_bucket(store: ObjectStore, checkpoint_retention: timedelta | None) -> Iterator[Finding]:
    try:
        missing = store.missing_permissions(WANTED_PERMISSIONS)
    except NotFoundError as error:
        yield _error("no_bucket", f"there is no such bucket: {error.message}")
        return
    except UnavailableError as error:
        raise _unreachable(store, error) from error
    except DstlError as error:
        missing = ()
        yield _note(
            "permissions_unseen",
            f"which permissions there are cannot be seen: {error.message}",
        )
    if missing:
        yield _error(
            "permissions",
            f"missing on {store.bucket_name!r}: {', '.join(missing)}; the role Storage Object User has them",
        )
    try:
        resource = store.bucket_resource()
    except UnavailableError as error:
        raise _unreachable(store, error) from error
    except DstlError as error:
        yield _note(
            "settings_unseen",
            "the bucket's settings cannot be seen (that takes storage.buckets.get, which daily work does not "
            f"need): soft delete, versioning, retention and lifecycle were not checked. {error.message}",
        )
    else:
        yield from () if resource is None else judge_bucket(resource, checkpoint_retention)


def _look_at_mount(store: ObjectStore, mounts: str | None) -> Iterator[Finding]:
    parts = urlsplit(store.uri)
    if parts.scheme != "file":
        return
    if mounts is None:
        with suppress(OSError):
            mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    option = lock_option(Path(unquote(parts.path)).resolve(), mounts or "")
    if option is not None:
        yield _warning(
            "local_locks",
            f"the folder is on NFS, mounted with {option}: its locks hold on this machine alone, and two "
            "machines may both win one create. Use it from one machine only, or mount it with its locks",
        )


def lock_option(folder: Path, mounts: str) -> str | None:
    """The mount option by which locks below an absolute folder are known to this machine alone.

    None where there is no such option: NFS with locks, any other file system, or an unknown one.
    """
    options: list[str] = []
    longest = -1
    for line in mounts.splitlines():
        place, separator, system = line.partition(" - ")
        fields, kind = place.split(" "), system.split(" ")
        if not separator or len(fields) < 6 or len(kind) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]))
        # Of several mounts at one point the last one is seen.
        if folder.is_relative_to(point) and len(point.parts) >= longest:
            longest = len(point.parts)
            options = kind[2].split(",") if kind[0].startswith("nfs") else []
    return next((option for option in _LOCAL_LOCKS if option in options), None)


def _unreachable(store: ObjectStore, error: UnavailableError) -> UnavailableError:
    reason = " ".join(error.message.split())  # one line: the network library's may be several
    return UnavailableError(f"{store.uri} does not answer and was not checked: {reason}")


def probe_store(store: ObjectStore) -> list[Finding]:
    """Create, compose and delete small objects, to see whether the service keeps its promises.

    A server that ignores preconditions leaves exactly-once to luck, and looks fine in daily use; some
    emulators are like that.
    """
    folder = f".dstl-preflight/{uuid.uuid4()}"
    names = tuple(f"{folder}/{name}" for name in ("first", "second", "whole", "copied"))
    findings: list[Finding] = []
    try:
        findings.extend(_probe(store, *names))
    except DstlError as error:
        findings.append(_error("probe_failed", f"a small object cannot be made and read: {error.message}"))
    findings.extend(_remove_probe(store, names))
    return findings


def _probe(store: ObjectStore, first: str, second: str, whole: str, copied: str) -> Iterator[Finding]:
    one = store.put(first, b"1", precondition=ABSENT)
    two = store.put(second, b"2", precondition=ABSENT)
    conditions: Sequence[tuple[str, Callable[[], object]]] = (
        ("create-only put", lambda: store.put(first, b"x", precondition=ABSENT)),
        (
            "replacement of another generation",
            lambda: store.put(first, b"x", precondition=Generation(one.generation + 1)),
        ),
        ("create-only compose", lambda: store.compose([Source(second)], first, precondition=ABSENT)),
        (
            "delete of another generation",
            lambda: store.delete(second, precondition=Generation(two.generation + 1)),
        ),
    )
    yield from _probe_listing(store, {first: one, second: two})
    for what, request in conditions:
        try:
            request()
        except ConflictError:
            continue
        yield _error(
            "preconditions_ignored",
            f"the service ignores the precondition of a {what}: rivals would overwrite each other",
        )
        return
    sources = [Source(first, one.generation), Source(second, two.generation)]
    store.compose(sources, whole, precondition=ABSENT, delete_sources=True, crc32c=crc32c(b"12"))
    if store.get(whole) != b"12":
        yield _error("compose_wrong", "a compose of '1' and '2' does not read '12'")
    if any(store.stat(name) is not None for name in (first, second)):
        yield _error(
            "sources_kept",
            "the service does not delete the sources of a compose when it is asked to (deleteSourceObjects): "
            "commits would leave their components",
        )
    yield from _probe_copy(store, whole, copied)
    yield from _probe_batch(store, (whole, copied))


def _probe_copy(store: ObjectStore, whole: str, copied: str) -> Iterator[Finding]:
    stamp = {"dstl-preflight": "copy"}
    try:
        if store.copy(Source(whole), copied, precondition=ABSENT, metadata=stamp).metadata == stamp:
            return
    except InvalidInputError:
        pass
    yield _warning(
        "copy_metadata",
        "the service does not copy an object with new metadata (rewrite): files cannot be committed from a "
        "temporary bucket. Set no gs.writer.temporary.bucket.name",
    )


def _probe_batch(store: ObjectStore, probe_names: Sequence[str]) -> Iterator[Finding]:
    takes_batches = store.capabilities.batch_deletes
    store.delete_all([(name, ANY) for name in probe_names])
    if takes_batches and not store.capabilities.batch_deletes:
        yield _note(
            "no_batches",
            "the service takes no batches of deletions: clean-up makes a request for each object",
        )


def _probe_listing(store: ObjectStore, made: Mapping[str, ObjectStat]) -> Iterator[Finding]:
    folder = next(iter(made)).rpartition("/")[0]
    listed = {stat.name: (stat.generation, stat.size, stat.crc32c) for stat in store.list(f"{folder}/")}
    wanted = {name: (stat.generation, stat.size, stat.crc32c) for name, stat in made.items()}
    if listed != wanted:
        yield _error(
            "listing_wrong",
            f"a listing does not show what was just written: {listed}, not {wanted}; "
            "the timeline and clean-up rely on listings",
        )


def _remove_probe(store: ObjectStore, probe_names: Sequence[str]) -> Iterator[Finding]:
    for name in probe_names:
        try:
            store.delete(name, precondition=ANY)
        except UnavailableError as error:
            yield _error(
                "probe_left",
                f"the probe's objects from {name!r} on may still be there: {error.message}",
            )
            return
        except DstlError as error:
            yield _error(
                "probe_left",
                f"the probe's object {name!r} cannot be deleted: {error.message}",
            )
