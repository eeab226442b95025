"""Which changelog files, in which order, make up an operator's state at a checkpoint.

Owns the walk from a manifest through the older ones that it names, as far back as some key group has no
base. Does not own decoding the changes (`state`, `changelog`), or which checkpoints exist (`timeline`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle, JobNames, KeyGroupRange
from dstl_dagster.keyed.coverage import Uncovered
from dstl_dagster.keyed.manifest import Manifest
from dstl_dagster.keyed.read_ahead import ManifestLoader, RecentManifests
from dstl_dagster.keyed.reports import OperatorReport
from dstl_dagster.storage import ObjectStore

__all__ = ["OperatorLayer", "OperatorState", "loading", "operator_layers", "operator_state"]

ManifestLoad = Callable[[str], Manifest | None]


@dataclass(frozen=True)
class OperatorLayer:
    """What one checkpoint added to an operator's state, as far as no newer base replaces it.

    Attributes:
        checkpoint_id: that checkpoint.
        report: all that it added.
        base: the handles of its base, for the key groups of which no newer base exists.
        changes: the handles of its own changes, likewise, less what a newer compaction holds.
        compacted: the handles of its compaction, for the key groups of which no newer base exists.
        is_first: these are the operator's first changes, which count as a base for a compaction.
    """

    checkpoint_id: int
    report: OperatorReport
    base: tuple[ChangelogStateHandle, ...]
    changes: tuple[ChangelogStateHandle, ...]
    compacted: tuple[ChangelogStateHandle, ...] = ()
    is_first: bool = False

    @property
    def handles(self) -> tuple[ChangelogStateHandle, ...]:
        """In log order."""
        return self.base + self.compacted + self.changes

    def before(self, uncovered: Uncovered) -> Uncovered:
        """What is uncovered before this checkpoint."""
        return self.report.before(uncovered)


@dataclass(frozen=True)
class OperatorState:
    """Where one operator's state at one checkpoint is stored.

    Attributes:
        layers: what each checkpoint added, oldest first. Those of which nothing is needed are left out, but
            for the last one: its columns are the state's.
    """

    operator: str
    layers: tuple[OperatorLayer, ...]

    @property
    def reports(self) -> tuple[OperatorReport, ...]:
        """What each of these checkpoints added, all of it."""
        return tuple(layer.report for layer in self.layers)

    @property
    def handles(self) -> tuple[ChangelogStateHandle, ...]:
        """What is needed, in log order: a later change of a key replaces an earlier one."""
        return tuple(handle for layer in self.layers for handle in layer.handles)

    @property
    def newest(self) -> OperatorReport:
        """The last report: its schema and keys are the state's."""
        return self.layers[-1].report


def operator_state(
    store: ObjectStore,
    manifest: Manifest,
    operator: str,
    key_groups: KeyGroupRange | None = None,
    recent: RecentManifests | None = None,
) -> OperatorState | None:
    """The state of `operator` at this checkpoint, without handles if no row was ever written; `None` if the
    checkpoint has no such operator.

    State without a row, such as one that began with an empty batch, is a state: it has columns.

    `key_groups`: of these only; `None`: of all. `recent`: shared by walks of several operators or batches.

    Raises: NotFoundError (a manifest in the chain was deleted), FormatError.
    """
    if operator not in manifest.operators:
        return None
    load = loading(store, manifest, operator, recent)
    last, *older = operator_layers(manifest, operator, load, key_groups)
    return OperatorState(operator, (*(layer for layer in reversed(older) if layer.handles), last))


def loading(
    store: ObjectStore, manifest: Manifest, operator: str, recent: RecentManifests | None = None
) -> ManifestLoad:
    """What loads the manifests that this one builds on, for `operator_layers`, if `recent` has them not.

    It raises: NotFoundError (kind `state_missing`), FormatError.
    """
    loader = ManifestLoader(store, JobNames(manifest.job))
    loader.follow(manifest)
    kept = recent or RecentManifests()

    def load(name: str) -> Manifest:
        found = kept.find(name)
        if found is not None:
            loader.take(name, found)
            return found
        found = _load(loader, name, operator)
        kept.keep(name, found)
        return found

    return load


def operator_layers(
    manifest: Manifest,
    operator: str,
    load: ManifestLoad,
    key_groups: KeyGroupRange | None = None,
) -> Iterator[OperatorLayer]:
    """The layers of `operator` at this checkpoint, which must have it: newest first, this one's own always.

    Args:
        load: gives an older manifest by its name; `None` ends the walk.
        key_groups: only what these need; `None`: all.

    Raises: FormatError if a manifest names one that is not older, or is not of this operator; what `load`
    raises.
    """
    uncovered = Uncovered() if key_groups is None else Uncovered.of(key_groups)
    while True:
        entry = manifest.operators[operator]
        for number, carried in enumerate((None, *entry.carried)):
            is_oldest = number == len(entry.carried)
            if not (carried is None or is_oldest or carried.has_any(uncovered)):
                continue
            checkpoint_id = manifest.checkpoint_id if carried is None else carried.checkpoint_id
            report = entry.report if carried is None else carried.report(entry.report)
            is_first = is_oldest and entry.begins_with(report)
            for_changes = uncovered if is_first else uncovered.for_changes()
            yield OperatorLayer(
                checkpoint_id,
                report,
                tuple(uncovered.of_handles(report.base_handles)),
                tuple(for_changes.of_handles(report.change_handles)),
                tuple(uncovered.of_handles(report.compacted_handles)),
                is_first,
            )
            uncovered = report.before(uncovered)
            if not uncovered:
                return
        if entry.previous is None:
            return
        older = load(entry.previous)
        if older is None:
            return
        operator = entry.previous_operator or operator
        if operator not in older.operators:
            raise FormatError(
                f"manifest {entry.previous} should hold state of operator {operator!r}, but does not"
            )
        if older.checkpoint_id >= manifest.checkpoint_id:
            raise FormatError(
                f"manifest {entry.previous} should be of a checkpoint older than {manifest.checkpoint_id}"
            )
        manifest = older


def _load(loader: ManifestLoader, name: str, operator: str) -> Manifest:
    try:
        return loader.load(name)
    except NotFoundError as error:
        raise NotFoundError(
            f"the state of operator {operator!r} needs manifest {name}, which is gone: the checkpoint was "
            "cleaned up while it was being read, or the object was deleted by hand",
            kind=ErrorKind.STATE_MISSING,
        ) from error
