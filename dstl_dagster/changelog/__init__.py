"""The log of one writer: append, persist, confirm, and read back. Owns the public names of the layer.

Does not own when bytes leave (`upload`), how long a file lives (`registry`), or what a change means.
"""

from dstl_dagster.changelog.contract import StateChangelogWriter
from dstl_dagster.changelog.reader.nearest_copy import begin_remote
from dstl_dagster.changelog.reader.read_cache import ReadCache, process_cache
from dstl_dagster.changelog.reader.read_plan import HandleRead
from dstl_dagster.changelog.reader.reader import ChangelogReader
from dstl_dagster.changelog.reader.stored_file import StoredFile
from dstl_dagster.changelog.storage import (
    FsStateChangelogStorage,
    FsStateChangelogStorageFactory,
    FsStateChangelogStorageView,
    limit_local_copies,
)
from dstl_dagster.changelog.writer.writer import FsStateChangelogWriter
from dstl_dagster.futures import MailboxExecutor, MailboxFuture, TaskMailbox

__all__ = [
    "ChangelogReader",
    "FsStateChangelogStorage",
    "FsStateChangelogStorageFactory",
    "FsStateChangelogStorageView",
    "FsStateChangelogWriter",
    "HandleRead",
    "MailboxExecutor",
    "MailboxFuture",
    "ReadCache",
    "StateChangelogWriter",
    "StoredFile",
    "TaskMailbox",
    "begin_remote",
    "limit_local_copies",
    "process_cache",
]
