"""Which change of an operator's schema is refused: of keys, of a name's case, without the state's ids or TTL.

Both sides are reports: that of the state at the parent, and that of the checkpoint which step 4 records. Does
not own which type a column may become (`state.schema`).
"""

from __future__ import annotations

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.keyed import OperatorReport


def refuse_schema_change(before: OperatorReport | None, now: OperatorReport) -> None:
    """Pass if `now` may follow on `before`, the operator's report at the parent; `None` if it has none.

    Raises: InvalidInputError, kind `schema_change`.
    """
    if before is not None:
        _refuse_new_keys(before, now)
        _refuse_forgotten_ids(before, now)
        _refuse_another_case(before, now)
    _refuse_wrong_ttl(before, now)


def _refuse_new_keys(before: OperatorReport, now: OperatorReport) -> None:
    for what in ("key columns", "partition columns", "max_parallelism"):
        frozen, wanted = (getattr(each, what.replace(" ", "_")) for each in (before, now))
        same = frozen == wanted
        if not same and isinstance(frozen, tuple):  # at most renamed
            same = [*map(before.column_ids.of, frozen)] == [*map(now.column_ids.of, wanted)]
        if not same:
            raise InvalidInputError(
                f"operator {now.operator!r} started with {what} {frozen!r} and now has {wanted!r}: "
                "they are frozen. Use another operator name, or keep the old ones",
                kind=ErrorKind.SCHEMA_CHANGE,
            )


def _refuse_another_case(before: OperatorReport, now: OperatorReport) -> None:
    """No `name` beside the state's `Name` by accident: the report's schema has the one and not the other.

    A writer that keeps them apart on purpose has both: a report's schema includes the state's columns.
    """
    if not (before.schema and now.schema) or before.schema == now.schema:
        return
    from dstl_dagster.keyed import schema_of  # imports Arrow, so only if the schema changed
    from dstl_dagster.state import refuse_alike, spelled

    older, newer = schema_of(before), schema_of(now)
    names, kept = newer.columns.names, {*newer.ids, *newer.column_ids.dropped}
    # A column that was renamed or dropped on purpose is no accident.
    left_out = [name for name in older.columns.names if older.column_ids.of(name) not in kept]
    for unknown in set(left_out) - set(names):
        refuse_alike(
            [unknown, *spelled([unknown], names, case_sensitive=False)], f"operator {now.operator!r}"
        )


def _refuse_forgotten_ids(before: OperatorReport, now: OperatorReport) -> None:
    """No report by a writer that did not know what was dropped and renamed: old values would come back."""
    if not (before.column_ids or now.column_ids):
        return
    from dstl_dagster.keyed import schema_of  # imports Arrow, so only if columns were ever changed

    lost = before.column_ids.dropped.keys() - now.column_ids.dropped.keys()
    if lost or not now.column_ids:
        raise InvalidInputError(
            f"operator {now.operator!r} was written without its state's schema, which distinguishes "
            "dropped from renamed columns: evolve the schema of `Batch.schema` or `KeyedState.schema`",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
    schema_of(now).covering(schema_of(before))


def _refuse_wrong_ttl(before: OperatorReport | None, now: OperatorReport) -> None:
    """What has expired stays expired, and the rows of `now` have the times that its TTL needs."""
    ttl, known = now.ttl, None if before is None else before.ttl
    if ttl is None and known is not None and known.ttl_us is not None:
        raise InvalidInputError(
            f"operator {now.operator!r} was written without its state's TTL: pass what `Batch.ttl_to_write` "
            "gives, as `write_state` and `merge_state` do",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
    if ttl is None:
        return
    if not ttl.hides_what(known) and not now.is_of_all:
        raise InvalidInputError(
            f"operator {now.operator!r}: rows that have expired would come back, since the TTL ends or "
            "becomes longer: write it with a `CheckpointBatch` or `Batch`, which leaves them out",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
    if ttl.ttl_us is None:
        return
    from dstl_dagster.keyed import schema_of  # imports Arrow, so only where there is a TTL

    if ttl.column not in schema_of(now).ids:
        raise InvalidInputError(
            f"operator {now.operator!r}: column {ttl.column!r} holds the times of the state's TTL: keep it, "
            "or end the TTL in the same batch (ttl=StateTtlConfig.disabled())",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
