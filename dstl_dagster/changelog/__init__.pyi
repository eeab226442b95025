from dstl_dagster.changelog.contract import StateChangelogWriter as StateChangelogWriter
from dstl_dagster.changelog.reader.nearest_copy import begin_remote as begin_remote
from dstl_dagster.changelog.reader.read_cache import ReadCache as ReadCache, process_cache as process_cache
from dstl_dagster.changelog.reader.read_plan import HandleRead as HandleRead
from dstl_dagster.changelog.reader.reader import ChangelogReader as ChangelogReader
from dstl_dagster.changelog.reader.stored_file import StoredFile as StoredFile
from dstl_dagster.changelog.storage import (
    FsStateChangelogStorage as FsStateChangelogStorage,
    FsStateChangelogStorageFactory as FsStateChangelogStorageFactory,
    FsStateChangelogStorageView as FsStateChangelogStorageView,
    limit_local_copies as limit_local_copies,
)
from dstl_dagster.changelog.writer.writer import FsStateChangelogWriter as FsStateChangelogWriter
from dstl_dagster.futures import (
    MailboxExecutor as MailboxExecutor,
    MailboxFuture as MailboxFuture,
    TaskMailbox as TaskMailbox,
)
