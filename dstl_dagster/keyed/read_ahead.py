"""Loading manifests along a chain, with read-ahead once the chain proves long.

Owns what is fetched ahead. Does not own the chain (`operator_log`). A chain is walked from one manifest to
the older one that it names, so its requests are sequential. But manifest names ascend with their checkpoints,
so a listing predicts what will be loaded next. A manifest that is not in the chain (a dead attempt's) is
fetched in vain, which is harmless.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format import JobNames
from dstl_dagster.keyed.manifest import Manifest, load_manifest
from dstl_dagster.storage import ObjectStore

__all__ = ["ManifestLoader"]

_SEQUENTIAL_LOADS = 8
"""This many are fetched one by one first: most chains are no longer."""
_WINDOW = 64
"""Checkpoints whose manifests are fetched ahead together."""
_THREADS = 8


class ManifestLoader:
    """Loads manifests, each expected to be asked for once. Not thread-safe.

    Args:
        names: of the manifests' job.
    """

    def __init__(self, store: ObjectStore, names: JobNames) -> None:
        self._store = store
        self._names = names
        self._ahead: dict[str, Manifest] = {}
        self._loads = 0

    def load(self, name: str) -> Manifest:
        """The manifest of this name. Raises: as `load_manifest`."""
        self._loads += 1
        if name not in self._ahead and self._loads > _SEQUENTIAL_LOADS:
            self._fetch_ahead(name)
        found = self._ahead.pop(name, None)
        return load_manifest(self._store, name) if found is None else found

    def _fetch_ahead(self, name: str) -> None:
        """Fetch this manifest and those of the checkpoints just before it. Skips unreadable ones."""
        wanted = list(self._before(name))
        if len(wanted) < 2:
            return
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="dstl-read-ahead") as pool:
            found = pool.map(self._try_load, wanted)
            # Replaces the previous window: what is left of it is not in the chain.
            self._ahead = {each: manifest for each, manifest in zip(wanted, found, strict=True) if manifest}

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
