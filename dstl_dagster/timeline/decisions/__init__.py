"""The rules: which record may come next. Pure functions from a view of the timeline to a record.

Owns every rule about an owner's steps, and the words of a refusal. Does not own the race for the slot
(`Timeline.decide`), which calls a rule again from the new tail whenever a rival wins the slot. Each function
returns the record to append, or `None` if the decision has already been made (so that every step may run any
number of times), or raises.

A module a subject: `attempts` (fencing), `completion` (the commit point), `retention`, `restoring`; and
`conditions`, which several of them require.
"""

from dstl_dagster.timeline.decisions import conditions
from dstl_dagster.timeline.decisions.attempts import to_abort, to_begin, to_fence, to_open
from dstl_dagster.timeline.decisions.completion import to_commit, to_complete, to_resolve
from dstl_dagster.timeline.decisions.conditions import (
    entry_of,
    refuse_abandoned,
    refuse_applied,
    refuse_gone,
    refuse_unresolved,
    require_open,
)
from dstl_dagster.timeline.decisions.restoring import require_target, to_restore
from dstl_dagster.timeline.decisions.retention import (
    ended_savepoints,
    to_release,
    to_release_ended,
    to_savepoint,
    to_subsume,
)

__all__ = [
    "conditions",
    "ended_savepoints",
    "entry_of",
    "refuse_abandoned",
    "refuse_applied",
    "refuse_gone",
    "refuse_unresolved",
    "require_open",
    "require_target",
    "to_abort",
    "to_begin",
    "to_commit",
    "to_complete",
    "to_fence",
    "to_open",
    "to_release",
    "to_release_ended",
    "to_resolve",
    "to_restore",
    "to_savepoint",
    "to_subsume",
]
