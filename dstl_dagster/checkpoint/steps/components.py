"""Where the components of a job's files lie, and which of those there are a job's own.

Does not own their names (`recoverable`), or which of them are garbage (`garbage`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.format import COMPONENTS_PREFIX, attempt_half
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import ObjectStat, ObjectStore, Origin
from dstl_dagster.timeline import Completed, Opened

log = logging.getLogger(__name__)


def buckets_of_components(
    store: ObjectStore, file_options: GSFileSystemOptions, completed: Iterable[Completed]
) -> list[ObjectStore]:
    """The temporary bucket, or that of the store and those in which these checkpoints have files."""
    if file_options.writer_temporary_bucket_name:
        return [store.in_bucket(file_options.writer_temporary_bucket_name)]
    files = (file for each in completed if not each.origin.is_elsewhere(store) for file in each.files)
    others = {file.bucket for file in files} - {store.bucket_name}
    return [store.in_bucket(name) for name in (store.bucket_name, *sorted(others))]


def listed_components(
    store: ObjectStore, bucket: ObjectStore, file_options: GSFileSystemOptions
) -> Iterator[ObjectStat]:
    """The components in a bucket, of any job; none in one that is not the store's and cannot be listed."""
    # With entropy a name starts with a UUID, so no prefix but the whole bucket covers them all. The
    # coordinator insists on a temporary bucket then.
    prefix = "" if file_options.filesink_entropy_enabled else COMPONENTS_PREFIX
    try:
        yield from bucket.list(prefix)
    except (NotFoundError, InvalidInputError) as error:
        if bucket.bucket_name in (store.bucket_name, file_options.writer_temporary_bucket_name):
            raise
        log.warning("the components in bucket %s are left: %s", bucket.bucket_name, error)


def attempts_of_original(opened: Iterable[Opened], store: ObjectStore, bucket: ObjectStore) -> frozenset[int]:
    """Those, by their upper 64 bits, that were opened in a store of which this one is a copy, and whose
    components in this bucket are that store's: the original, which may be alive, needs them.

    Only what was copied with a whole bucket is the copy's.
    """
    here = Origin.home_of(store)
    return frozenset(
        attempt_half(each.attempt)
        for each in opened
        if each.home not in ("", here)
        and (bucket.bucket_name != store.bucket_name or each.home.partition("/")[0] == store.bucket_name)
    )
