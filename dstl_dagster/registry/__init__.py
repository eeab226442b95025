"""Which changelog files are still needed. Owns this process's reference counts of remote and local files.

Does not own the deletion itself (injected), nor the references held by manifests in the store.
"""

from dstl_dagster.registry.local import LocalChangelogRegistry
from dstl_dagster.registry.task import TaskChangelogRegistry

__all__ = ["LocalChangelogRegistry", "TaskChangelogRegistry"]
