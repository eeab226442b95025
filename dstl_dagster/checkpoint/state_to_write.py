"""The state of an operator as a batch leaves it: columns, keys and TTL, from those of its rows.

Owns this resolution, which every way to write shares: DataFrames of Spark, the sink, and rows in memory. Does
not own how a schema may evolve (`state.schema`), what a TTL may become (`state.ttl`), or writing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dstl_dagster.checkpoint.batch import Batch
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import StateTtl
from dstl_dagster.keyed import Replaced, Scope, StateAt, partition_columns_of, replaced_scope
from dstl_dagster.settings import JobOptions, StateTtlConfig, parse_names
from dstl_dagster.state import (
    PROCESSING_TIME_TYPE,
    ColumnChanges,
    StateSchema,
    as_spelled,
    filled_column,
    schema_to_write,
    spelled,
    time_column,
)

_NO_CHANGES = ColumnChanges()


@dataclass(frozen=True)
class StateToWrite:
    """What a batch makes of the state of an operator. A plain value that can be sent to tasks.

    Attributes:
        schema: the columns of the state, and those that the rows add.
        columns: of the rows, as the state spells them; a filled one that they do not have comes last.
        filled: the column that gets the batch's time, over any value in the rows; `None`: there is none.
        ttl: in which the times of the rows do not count yet.
        time_column: its newest time in the rows moves the watermark; `None`: none does.
        scope: of the rows that are replaced; `None`: all, or nothing is.
    """

    operator: str
    schema: StateSchema
    columns: tuple[str, ...]
    filled: str | None
    ttl: StateTtl | None
    time_column: str | None
    scope: Scope | None = None

    @classmethod
    def of(
        cls,
        batch: Batch,
        operator: str,
        given: pa.Schema,
        keys: Sequence[str],
        max_parallelism: int | None = None,
        ttl: StateTtlConfig | None = None,
        *,
        changes: ColumnChanges = _NO_CHANGES,
        replace: Replaced = False,
        deleted: object = None,
        case_sensitive: bool = False,
    ) -> StateToWrite:
        """For rows with the columns `given`. The others are arguments of `dstl_dagster.spark.write_state`.

        Raises: InvalidInputError (kind `schema_change`, `unsupported_type`, or a kind that says what else
        does not fit).
        """
        if not isinstance(operator, str) or not operator:
            raise InvalidInputError(f"state needs an operator's name, such as 'aircraft', not {operator!r}")
        known = batch.schema(operator)
        if known is not None:
            known = changes.applied_to(known, case_sensitive=case_sensitive)
        given = as_spelled(given, known, case_sensitive=case_sensitive)
        new = [name for name in given.names if known is None or name not in known.columns.names]
        changes.refuse_written(new, case_sensitive=case_sensitive)
        filled = filled_column(ttl, batch.ttl(operator), known)
        if filled is not None and filled not in given.names:
            given = given.append(pa.field(filled, PROCESSING_TIME_TYPE))
        keys = spelled(parse_names("keys", keys), given.names, case_sensitive=case_sensitive)
        within = spelled(partition_columns_of(replace), keys, case_sensitive=case_sensitive)
        schema = schema_to_write(given, keys, max_parallelism, known, within)
        state_ttl = batch.ttl_to_write(operator, schema, ttl)
        is_set = ttl is not None and ttl.watermark is not None
        return cls(
            operator,
            schema,
            tuple(given.names),
            filled,
            state_ttl,
            None if is_set else time_column(schema, state_ttl),
            None if replace is False else replaced_scope(replace, schema, deleted),
        )

    def before(self, batch: Batch, options: JobOptions | None = None) -> StateAt | None:
        """The state that the batch builds on, in these columns and at its time; `None` if there is none.

        Where the new TTL would bring rows back that the old one hides, the old one counts. `options`: by
        which it is read; `None`: the batch's.
        """
        state = batch.state(self.operator)
        if state is None:
            return None
        ttl = self.ttl if self.ttl is not None and self.ttl.hides_what(state.ttl) else state.ttl
        options = options or batch.coordinator.job_options
        return replace(state, schema=self.schema, ttl=ttl, options=options)
