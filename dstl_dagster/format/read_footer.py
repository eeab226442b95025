"""What was read of one file's footer, for the next reader of the same file: files never change.

Owns these values, and how much memory they take. Does not own reading them (`changelog_file`), or for how
long they are kept (`changelog.known_footers`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dstl_dagster.format.change_set_codec import ChangeSetLayout
from dstl_dagster.format.compression import Compression
from dstl_dagster.format.footer import FileIndex
from dstl_dagster.format.frames import Frames

__all__ = ["ReadFooter"]

_ENTRY_BYTES: Final = 1024
"""Of a change set's entry and its arrays as Python's objects, roughly."""


@dataclass
class ReadFooter:
    """Filled by `ChangelogFileReader`. Two that fill it at once write the same.

    Attributes:
        opened: whether the index was looked for.
        index: `None` for a file without a footer, which is Flink's.
        compression: once the flag byte has confirmed it.
        layouts: by the offset of their change sets.
        frames: likewise; `None`: the table was not read.
    """

    opened: bool = False
    index: FileIndex | None = None
    compression: Compression | None = None
    layouts: dict[int, ChangeSetLayout] = field(default_factory=dict)
    frames: dict[int, Frames | None] | None = None

    @property
    def held_bytes(self) -> int:
        """Roughly, in memory."""
        entries = 1 if self.index is None else len(self.index.entries)
        layouts = sum(
            each.key_groups.nbytes + each.counts.nbytes + each.lengths.nbytes
            for each in list(self.layouts.values())
        )
        frames = sum(3 * each.sizes.nbytes for each in (self.frames or {}).values() if each is not None)
        return _ENTRY_BYTES * entries + layouts + frames
