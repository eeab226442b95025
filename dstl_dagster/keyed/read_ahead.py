"""Loading manifests along a chain, the next ones together once a chain proves long.

Owns what is fetched before it is asked for. A chain is walked from one manifest to the older one that it
names, so its requests wait for each other. But the names of manifests ascend with their checkpoints, so a
listing tells what will be asked for next. What is not on the chain (a dead attempt's) is fetched in vain,
and does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format import JobNames
from dstl_dagster.keyed.manifest import Manifest, load_manifest
from dstl_dagster.storage import ObjectStore

__all__ = ["ManifestLoader"]

_ALONE = 8
"""So many are fetched one by one first: most chains end there."""
_TOGETHER = 64
_THREADS = 8


class ManifestLoader:
    """Loads manifests; each is given once. One thread.

    Args:
        names: of the job whose manifests these are.
    """

    def __init__(self, store: ObjectStore, names: JobNames) -> None:
        self._store = store
        self._names = names
        self._ahead: dict[str, Manifest] = {}
        self._asked = 0

    def load(self, name: str) -> Manifest:
        """The manifest of this name. Raises: as `load_manifest`."""
        self._asked += 1
        if name not in self._ahead and self._asked > _ALONE:
            self._fetch_ahead(name)
        found = self._ahead.pop(name, None)
        return load_manifest(self._store, name) if found is None else found

    def _fetch_ahead(self, name: str) -> None:
        """This manifest and those of the checkpoints just before it. What is unreadable is left out."""
        wanted = list(self._before(name))
        if len(wanted) < 2:
            return
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="dstl-read-ahead") as pool:
            found = pool.map(self._try_load, wanted)
            # Only these: what an earlier window left unasked is not on the chain.
            self._ahead = {each: manifest for each, manifest in zip(wanted, found, strict=True) if manifest}

    def _before(self, name: str) -> Iterator[str]:
        checkpoint_id = self._names.checkpoint_of_manifest(name)
        if checkpoint_id is None:
            return
        first = self._names.manifests_of(max(0, checkpoint_id - _TOGETHER + 1))
        for stat in self._store.list(self._names.manifests_prefix, start_offset=first):
            if stat.name > name:
                return
            yield stat.name

    def _try_load(self, name: str) -> Manifest | None:
        try:
            return load_manifest(self._store, name)
        except (NotFoundError, FormatError):
            return None  # whoever asks for it is told
