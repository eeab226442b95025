"""Which changelog files, in which order, make up an operator's state at a checkpoint.

Owns the walk from a manifest through the older ones that it names. Does not own decoding the changes
(`state`, `changelog`), or which checkpoints exist (`timeline`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle, JobNames
from dstl_dagster.keyed.manifest import Manifest, OperatorEntry
from dstl_dagster.keyed.read_ahead import ManifestLoader
from dstl_dagster.keyed.reports import OperatorReport
from dstl_dagster.storage import ObjectStore

__all__ = ["OperatorState", "operator_state"]


@dataclass(frozen=True)
class OperatorState:
    """Where one operator's state at one checkpoint is stored.

    Attributes:
        reports: what each checkpoint added, oldest first. Those that added nothing are left out, but for the
            last one: its columns are the state's.
    """

    operator: str
    reports: tuple[OperatorReport, ...]

    @property
    def handles(self) -> tuple[ChangelogStateHandle, ...]:
        """All handles in log order: a later change of a key replaces an earlier one."""
        return tuple(handle for report in self.reports for handle in report.handles)

    @property
    def newest(self) -> OperatorReport:
        """The last report: its schema and keys are the state's."""
        return self.reports[-1]


def operator_state(store: ObjectStore, manifest: Manifest, operator: str) -> OperatorState | None:
    """The state of `operator` at this checkpoint; `None` if it never wrote any.

    Raises: NotFoundError (a manifest in the chain was deleted), FormatError.
    """
    entry = manifest.operators.get(operator)
    if entry is None:
        return None
    found = _entries(store, manifest, entry, operator)
    older = [each.report for each in reversed(found[1:]) if each.report.handles]
    return OperatorState(operator, (*older, entry.report)) if older or entry.report.handles else None


def _entries(
    store: ObjectStore, manifest: Manifest, entry: OperatorEntry, operator: str
) -> list[OperatorEntry]:
    found = [entry]
    newest_seen = manifest.checkpoint_id
    loader = ManifestLoader(store, JobNames(manifest.job))
    loader.follow(manifest)
    while (previous := found[-1].previous) is not None:
        older = _load(loader, previous, operator)
        if older.checkpoint_id >= newest_seen:
            raise FormatError(f"manifest {previous} should be of a checkpoint older than {newest_seen}")
        newest_seen = older.checkpoint_id
        found.append(older.operators[operator])
    return found


def _load(loader: ManifestLoader, name: str, operator: str) -> Manifest:
    try:
        manifest = loader.load(name)
    except NotFoundError as error:
        raise NotFoundError(
            f"the state of operator {operator!r} needs manifest {name}, which is gone: the checkpoint was "
            "cleaned up while it was being read, or the object was deleted by hand",
            kind=ErrorKind.STATE_MISSING,
        ) from error
    if operator not in manifest.operators:
        raise FormatError(f"manifest {name} should hold state of operator {operator!r}, but does not")
    return manifest
