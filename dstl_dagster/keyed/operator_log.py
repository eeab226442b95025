"""Which changelog files, in which order, make up an operator's state at a checkpoint.

Owns the walk from a manifest through the older ones that it names, as far back as some key group has no
base. Does not own decoding the changes (`state`, `changelog`), or which checkpoints exist (`timeline`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle, JobNames
from dstl_dagster.keyed.coverage import Uncovered
from dstl_dagster.keyed.manifest import Manifest, OperatorEntry
from dstl_dagster.keyed.read_ahead import ManifestLoader
from dstl_dagster.keyed.reports import OperatorReport
from dstl_dagster.storage import ObjectStore

__all__ = ["OperatorLayer", "OperatorState", "operator_layers", "operator_state"]


@dataclass(frozen=True)
class OperatorLayer:
    """What one checkpoint added to an operator's state, as far as no newer base replaces it.

    Attributes:
        checkpoint_id: that checkpoint.
        report: all that it added.
        base: the handles of its base, for the key groups of which no newer base exists.
        changes: the handles of its own changes, likewise.
    """

    checkpoint_id: int
    report: OperatorReport
    base: tuple[ChangelogStateHandle, ...]
    changes: tuple[ChangelogStateHandle, ...]

    @property
    def handles(self) -> tuple[ChangelogStateHandle, ...]:
        """In log order."""
        return self.base + self.changes


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


def operator_state(store: ObjectStore, manifest: Manifest, operator: str) -> OperatorState | None:
    """The state of `operator` at this checkpoint; `None` if it never wrote any.

    Raises: NotFoundError (a manifest in the chain was deleted), FormatError.
    """
    if operator not in manifest.operators:
        return None
    loader = ManifestLoader(store, JobNames(manifest.job))
    loader.follow(manifest)
    last, *older = operator_layers(manifest, operator, lambda name: _load(loader, name, operator))
    layers = (*(layer for layer in reversed(older) if layer.handles), last)
    return OperatorState(operator, layers) if layers[0].handles else None


def operator_layers(
    manifest: Manifest, operator: str, load: Callable[[str], Manifest | None]
) -> Iterator[OperatorLayer]:
    """The layers of `operator` at this checkpoint, which must have it: newest first, this one's own always.

    `load` gives an older manifest by its name; `None` ends the walk.

    Raises: FormatError if a manifest names one that is not older, or is not of this operator; what `load`
    raises.
    """
    uncovered = Uncovered()
    while True:
        entry = manifest.operators[operator]
        for checkpoint_id, report in _reports(manifest.checkpoint_id, entry):
            yield OperatorLayer(
                checkpoint_id,
                report,
                tuple(uncovered.of_handles(report.base_handles)),
                tuple(uncovered.of_handles(report.change_handles)),
            )
            uncovered = uncovered.before(report.based, report.max_parallelism)
            if not uncovered:
                return
        if entry.previous is None:
            return
        older = load(entry.previous)
        if older is None:
            return
        if operator not in older.operators:
            raise FormatError(
                f"manifest {entry.previous} should hold state of operator {operator!r}, but does not"
            )
        if older.checkpoint_id >= manifest.checkpoint_id:
            raise FormatError(
                f"manifest {entry.previous} should be of a checkpoint older than {manifest.checkpoint_id}"
            )
        manifest = older


def _reports(checkpoint_id: int, entry: OperatorEntry) -> Iterator[tuple[int, OperatorReport]]:
    """What the manifest holds of the operator, newest first."""
    yield checkpoint_id, entry.report
    for each in entry.carried:
        yield each.checkpoint_id, each.report(entry.report)


def _load(loader: ManifestLoader, name: str, operator: str) -> Manifest:
    try:
        return loader.load(name)
    except NotFoundError as error:
        raise NotFoundError(
            f"the state of operator {operator!r} needs manifest {name}, which is gone: the checkpoint was "
            "cleaned up while it was being read, or the object was deleted by hand",
            kind=ErrorKind.STATE_MISSING,
        ) from error
