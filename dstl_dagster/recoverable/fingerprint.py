"""How any process, at any later time, recognizes the objects of a commit.

Owns the metadata that a commit stamps on what it writes, and the proof of ownership it gives. Sends no
requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dstl_dagster.format.crc32c import combine_all, to_base64
from dstl_dagster.recoverable.compose_plan import Node, recoverable_hash
from dstl_dagster.recoverable.recoverables import Component, GSCommitRecoverable
from dstl_dagster.storage import ObjectStat

COMMIT_KEY = "dstl-commit"
_SIZE_KEY = "dstl-size"
_CRC32C_KEY = "dstl-crc32c"
_NODE_KEY = "dstl-node"


@dataclass(frozen=True)
class Fingerprint:
    """One commit: its identity (`commit`, a string no other commit has), and the bytes it publishes."""

    commit: str
    size: int
    crc32c: int

    def to_metadata(self, node: Node | None = None) -> dict[str, str]:
        """The metadata of the final object, or of the intermediate `node`."""
        pairs = {
            COMMIT_KEY: self.commit,
            _SIZE_KEY: str(self.size),
            _CRC32C_KEY: to_base64(self.crc32c),
        }
        if node is not None:
            pairs[_NODE_KEY] = f"{node.first}-{node.end}"
        return pairs


def fingerprint_of(recoverable: GSCommitRecoverable, components: Iterable[Component]) -> Fingerprint:
    """The fingerprint that the final object of these components will carry."""
    crc, size = combine_all((component.crc32c, component.size) for component in components)
    return Fingerprint(recoverable_hash(recoverable), size, crc)


def is_own(stat: ObjectStat | None, commit: str, node: Node | None = None) -> bool:
    """True if `commit` provably wrote the object: its metadata names the commit and matches its bytes.

    A foreign object cannot match by accident: `commit` is a hash over random component ids.
    """
    if stat is None:
        return False
    wanted = {_NODE_KEY: None, **Fingerprint(commit, stat.size, stat.crc32c).to_metadata(node)}
    return all(stat.metadata.get(key) == value for key, value in wanted.items())
