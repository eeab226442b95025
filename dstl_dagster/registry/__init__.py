"""Who still needs a changelog file. Owns reference counts of remote and local files on this process.

Does not own the deletion itself (a function given to it), nor what manifests in the store refer to.
"""

from dstl_dagster.registry.local import LocalChangelogRegistry
from dstl_dagster.registry.task import TaskChangelogRegistry

__all__ = ["LocalChangelogRegistry", "TaskChangelogRegistry"]
