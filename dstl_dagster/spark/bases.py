"""Bases in a batch's own checkpoint: an operator's log that has grown long enough is folded on the way.

Owns putting the base below the batch's changes. Does not own when it is due nor writing it
(`checkpoint.materialize`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator, OperatorReport
from dstl_dagster.checkpoint.materialize import due_operators, with_base, write_base
from dstl_dagster.keyed.keyed_state import KeyedState

__all__ = ["with_due_bases"]

log = logging.getLogger(__name__)


def with_due_bases(
    coordinator: CheckpointCoordinator,
    attempt: Attempt,
    parent: Checkpoint | None,
    reports: Iterable[OperatorReport],
) -> list[OperatorReport]:
    """The reports, and for each operator whose log at the parent is due a base of it below its changes.

    Raises: NotFoundError, FormatError, UnavailableError.
    """
    made, options, store = list(reports), coordinator.options, coordinator.store
    if parent is None or not options.materialize:
        return made
    for operator in due_operators(store, parent.manifest, options):
        state = KeyedState.of(store, parent.manifest, operator)
        if state is None:
            continue
        base = write_base(store, attempt, state)
        own = [report for report in made if report.operator == operator]
        # A second report of one operator is refused at step 4, and must not be hidden here.
        others = [report for report in made if report not in own]
        made = [*others, with_base(base, own[0] if own else None), *own[1:]]
        log.info("operator %s: a base of checkpoint %d is written", operator, parent.checkpoint_id)
    return made
