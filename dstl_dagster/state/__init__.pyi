from dstl_dagster.state.changes import (
    ChangeEncoder as ChangeEncoder,
    EncodedChanges as EncodedChanges,
    check_changes as check_changes,
    encoded_pieces as encoded_pieces,
    slice_count as slice_count,
)
from dstl_dagster.state.column_changes import ColumnChanges as ColumnChanges
from dstl_dagster.state.equality import same_rows as same_rows
from dstl_dagster.state.fitting import (
    fitted_column as fitted_column,
    fitted_rows as fitted_rows,
    stored_rows as stored_rows,
)
from dstl_dagster.state.replay import (
    LastChanges as LastChanges,
    StateReplay as StateReplay,
)
from dstl_dagster.state.frames import as_table as as_table
from dstl_dagster.state.frames import library_of as library_of
from dstl_dagster.state.grouped_rows import GroupedRows as GroupedRows, Piece as Piece
from dstl_dagster.state.key_group_hash import (
    SPREAD as SPREAD,
    group_of_hashes as group_of_hashes,
    key_group_of as key_group_of,
    key_groups_of_partitions as key_groups_of_partitions,
    key_hashes as key_hashes,
)
from dstl_dagster.state.keys import (
    key_numbers as key_numbers,
    refuse_repeated_keys as refuse_repeated_keys,
)
from dstl_dagster.state.pieces import (
    cut as cut,
    taken as taken,
)
from dstl_dagster.state.rules import (
    Rule as Rule,
    columns_of_new as columns_of_new,
    declared_columns as declared_columns,
    evaluated_rules as evaluated_rules,
    refuse_unfinished as refuse_unfinished,
    require_rules as require_rules,
)
from dstl_dagster.state.schema import (
    DEFAULT_MAX_PARALLELISM as DEFAULT_MAX_PARALLELISM,
    StateSchema as StateSchema,
    as_spelled as as_spelled,
    refuse_alike as refuse_alike,
    require_spark_schema as require_spark_schema,
    schema_to_write as schema_to_write,
    spelled as spelled,
    update_by_name as update_by_name,
)
from dstl_dagster.state.partition_rows import (
    Axis as Axis,
    ExactValues as ExactValues,
    PartitionRows as PartitionRows,
    TimeSpans as TimeSpans,
)
from dstl_dagster.state.text import (
    RawText as RawText,
    python_rows as python_rows,
    refuse_raw_text as refuse_raw_text,
    text_as_bytes as text_as_bytes,
)
from dstl_dagster.state.ttl import (
    PROCESSING_TIME_TYPE as PROCESSING_TIME_TYPE,
    NewestTime as NewestTime,
    expired_rows as expired_rows,
    filled_column as filled_column,
    time_column as time_column,
    ttl_to_write as ttl_to_write,
)
from dstl_dagster.state.types import has_fields_of as has_fields_of, wider_type as wider_type
