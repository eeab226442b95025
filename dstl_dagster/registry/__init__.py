"""Who still needs a changelog file. Owns this process's reference counts of remote and local files.

Does not own the deletion itself (injected), nor what manifests in the store refer to.
"""

from dstl_dagster.registry.local import LocalChangelogRegistry
from dstl_dagster.registry.task import TaskChangelogRegistry

__all__ = ["LocalChangelogRegistry", "TaskChangelogRegistry"]
