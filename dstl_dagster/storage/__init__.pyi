from dstl_dagster.storage.accounting.cost import NO_COST as NO_COST, Cost as Cost, CostMeter as CostMeter
from dstl_dagster.storage.accounting.metered import metered as metered
from dstl_dagster.storage.accounting.cost import (
    COMPOSE_COMMIT as COMPOSE_COMMIT,
    CONFIRM as CONFIRM,
    OWN_RECORD as OWN_RECORD,
    OWN_WRITE as OWN_WRITE,
    PERSIST as PERSIST,
    RECORD as RECORD,
    TRIGGER as TRIGGER,
    CheckpointCost as CheckpointCost,
    RunningCost as RunningCost,
    cost_from_note as cost_from_note,
    cost_note as cost_note,
)
from dstl_dagster.storage.base import (
    ABSENT as ABSENT,
    ANY as ANY,
    MAX_COMPOSE_SOURCES as MAX_COMPOSE_SOURCES,
    Buffer as Buffer,
    Generation as Generation,
    ObjectReader as ObjectReader,
    ObjectStat as ObjectStat,
    ObjectStore as ObjectStore,
    ObjectWriter as ObjectWriter,
    Precondition as Precondition,
    RangeReader as RangeReader,
    Source as Source,
    StoreCapabilities as StoreCapabilities,
    each_deleted as each_deleted,
)
from dstl_dagster.storage.batching import delete_each as delete_each
from dstl_dagster.storage.copies import Origin as Origin, generation_of_copy as generation_of_copy
from dstl_dagster.storage.gcs.store import GCSObjectStore as GCSObjectStore
from dstl_dagster.storage.local.file_ranges import FileRanges as FileRanges
from dstl_dagster.storage.local.store import LocalObjectStore as LocalObjectStore
from dstl_dagster.storage.memory import MemoryObjectStore as MemoryObjectStore
from dstl_dagster.storage.open import (
    open_store as open_store,
    require_store_uri as require_store_uri,
    require_within as require_within,
)
from dstl_dagster.storage.policy.retry import RetryPolicy as RetryPolicy
from dstl_dagster.storage.policy.rate import let_settle as let_settle
from dstl_dagster.storage.preflight import (
    Severity as Severity,
    check_store as check_store,
)
from dstl_dagster.storage.readback import (
    WRITER_ID_KEY as WRITER_ID_KEY,
    Expected as Expected,
    put_own as put_own,
    write_own as write_own,
)
from dstl_dagster.storage.rules import (
    check_crc32c as check_crc32c,
    check_delete_all as check_delete_all,
)
from dstl_dagster.storage.whole_object import read_parts as read_parts
from dstl_dagster.storage.wrapper import (
    WrapperRanges as WrapperRanges,
    WrapperReader as WrapperReader,
    WrapperStore as WrapperStore,
    WrapperWriter as WrapperWriter,
)
