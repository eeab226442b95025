from dstl_dagster.settings.changelog import (
    FsStateChangelogOptions as FsStateChangelogOptions,
    LocalRecoveryConfig as LocalRecoveryConfig,
)
from dstl_dagster.settings.checkpoint import CheckpointOptions as CheckpointOptions
from dstl_dagster.settings.gs import GSFileSystemOptions as GSFileSystemOptions
from dstl_dagster.settings.job_options import (
    JobOptions as JobOptions,
    Options as Options,
    parse_lines as parse_lines,
)
from dstl_dagster.settings.prices import CostBudget as CostBudget, StoragePrices as StoragePrices
from dstl_dagster.settings.ttl import StateTtlConfig as StateTtlConfig
from dstl_dagster.settings.units import (
    parse_bool as parse_bool,
    parse_duration as parse_duration,
    parse_float as parse_float,
    parse_int as parse_int,
    parse_memory_size as parse_memory_size,
    parse_names as parse_names,
    parse_user_metadata as parse_user_metadata,
)
