"""Whether a report may follow another one, by the TTLs of both.

Owns these refusals at step 4. Does not own what a TTL hides (`format.StateTtl`), or leaving out what it hides
(`merging`). Pure.
"""

from __future__ import annotations

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.keyed.reports import OperatorReport

__all__ = ["refuse_wrong_ttl"]


def refuse_wrong_ttl(before: OperatorReport | None, now: OperatorReport) -> None:
    """Pass if what has expired stays expired, and the rows of `now` have the times that its TTL needs.

    `before`: the operator's report at the parent; `None` if it has none.

    Raises: InvalidInputError, kind `schema_change`.
    """
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
            "becomes longer: write it with a `CheckpointBatch` or `Batch`, which leaves them out for good",
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
