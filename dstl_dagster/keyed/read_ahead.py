"""Loading manifests: those of a list concurrently, those of a chain with read-ahead once it proves long.

Owns what is fetched ahead. Does not own the chain (`operator_log`). A chain is walked from one manifest to
the older one that it names, so its requests are sequential. But manifest names ascend with their checkpoints,
so a listing predicts what will be loaded next. A manifest that is not in the chain (a dead attempt's) is
fetched in vain, which is harmless.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial

from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format import JobNames
from dstl_dagster.keyed.manifest import Manifest, load_manifest, require_same_manifest
from dstl_dagster.storage import ObjectStore, concurrently

__all__ = ["ManifestLoader", "RecentManifests"]

_SEQUENTIAL_LOADS = 8
"""This many are fetched one by one first: most chains are no longer."""
_NEAR = 4
"""Checkpoints between two manifests of a chain: further apart, most of what is between is in vain."""
_WINDOW = 64
"""Checkpoints whose manifests are fetched ahead together."""
_THREADS = 8
_MOST_RECENT = 32
"""More than a walk has, as a rule. Of a thousand operators one takes some megabytes."""
_MOST_OPERATORS = 4000
"""Of all manifests that stay between batches: some tens of megabytes."""


class RecentManifests:
    """The manifests that were written or asked for last, for walks that share them: of many operators, or of
    batch after batch, each of which would fetch and parse the same ones. Thread-safe.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Manifest] = {}
        self._lock = threading.Lock()

    def find(self, name: str) -> Manifest | None:
        """The manifest of this name, if it was kept."""
        with self._lock:
            found = self._kept.pop(name, None)
            if found is not None:
                self._kept[name] = found
            return found

    def keep(self, name: str, manifest: Manifest) -> None:
        """Keep it; the one that was unused for longest goes."""
        with self._lock:
            self._kept[name] = manifest
            if len(self._kept) > _MOST_RECENT:
                del self._kept[next(iter(self._kept))]

    def shrink(self) -> None:
        """Between batches: let those go that were unused for longest, down to what may stay in memory."""
        with self._lock:
            room = _MOST_OPERATORS
            for name in reversed(list(self._kept)):
                room -= len(self._kept[name].operators)
                if room < 0:
                    del self._kept[name]


class ManifestLoader:
    """Loads manifests, each expected to be asked for once. Not thread-safe.

    Args:
        names: of the manifests' job.
        threads: manifests fetched concurrently, at most.
    """

    def __init__(self, store: ObjectStore, names: JobNames, *, threads: int = _THREADS) -> None:
        self._store = store
        self._names = names
        self._threads = store.capabilities.lookup_threads(threads)
        self._fetched: dict[str, Manifest] = {}
        self._window: dict[str, Manifest] = {}
        self._done: set[str] = set()
        self._loads = 0
        self._last: int | None = None
        self._expected: dict[str, int] = {}

    def expect(self, name: str, crc32c: int | None) -> None:
        """What the record of a checkpoint says of its manifest; `None`: nothing."""
        if crc32c is not None:
            self._expected[name] = crc32c

    def follow(self, manifest: Manifest) -> None:
        """What this manifest says of the older ones that it names. Those that are loaded are followed too."""
        for entry in manifest.operators.values():
            if entry.previous is not None and entry.previous_crc32c is not None:
                self._expected.setdefault(entry.previous, entry.previous_crc32c)

    def take(self, name: str, found: Manifest) -> None:
        """Follow a manifest that the caller had. Raises: FormatError if it is not what was expected."""
        require_same_manifest(name, self._expected.get(name), found.crc32c)
        self.follow(found)

    def load(self, name: str) -> Manifest:
        """The manifest of this name, if it is what was expected. Raises: as `load_manifest`."""
        self._count(name)
        found = self._fetched.pop(name, None)
        if found is None:
            if self._threads > 1 and name not in self._window and self._loads > _SEQUENTIAL_LOADS:
                self._fetch_ahead(name)
            found = self._window.pop(name, None)
        self._done.add(name)
        if found is None:
            found = load_manifest(self._store, name, self._expected.get(name))
        self.take(name, found)
        return found

    def _count(self, name: str) -> None:
        """Count the steps between neighbours: a manifest that repeats others is not followed by these."""
        checkpoint_id = self._names.checkpoint_of_manifest(name)
        if checkpoint_id is None or self._last is None or self._last - checkpoint_id <= _NEAR:
            self._loads += 1
        self._last = checkpoint_id

    def fetch(self, names: Sequence[str]) -> None:
        """Fetch these concurrently, for `load` to return. Skips unreadable ones, which `load` raises."""
        wanted = [name for name in names if name not in self._fetched]
        if len(wanted) > 1 and self._threads > 1:
            self._fetched.update(self._concurrently(wanted))

    def _fetch_ahead(self, name: str) -> None:
        """Fetch this manifest and those of the checkpoints just before it. Skips unreadable ones."""
        # What was loaded, or missed, once is not asked for again.
        wanted = [each for each in self._before(name) if each == name or each not in self._done]
        if len(wanted) < 2:
            return
        # Replaces the previous window: what is left of it is not in the chain.
        self._window = self._concurrently(wanted)

    def _concurrently(self, wanted: Sequence[str]) -> dict[str, Manifest]:
        loads = [partial(self._try_load, name) for name in wanted]
        found = dict(zip(wanted, concurrently(loads, self._threads, "dstl-read-ahead"), strict=True))
        self._done.update(name for name, manifest in found.items() if manifest is None)
        return {name: manifest for name, manifest in found.items() if manifest is not None}

    def _before(self, name: str) -> Iterator[str]:
        checkpoint_id = self._names.checkpoint_of_manifest(name)
        if checkpoint_id is None:
            return
        first = self._names.manifests_of(max(0, checkpoint_id - _WINDOW + 1))
        for stat in self._store.list(self._names.manifests_prefix, start_offset=first):
            if stat.name > name:
                return
            yield stat.name

    def _try_load(self, name: str) -> Manifest | None:
        try:
            return load_manifest(self._store, name)
        except (NotFoundError, FormatError):
            return None  # `load` raises if it is in the chain
