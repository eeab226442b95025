"""Exactly-once objects: written as components, published in one step, recoverable in any process.

Owns the public names. Does not own storage (`storage`) or checkpoints (`checkpoint`).

Modules are imported on first use: a Spark task needs few of them. But a function with the name of its module
is imported at once: the module, imported later, would take its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face
from dstl_dagster.recoverable.sweep import Leftover, plan_sweep, sweep
from dstl_dagster.recoverable.temporary_names import temporary_names

if TYPE_CHECKING:
    from dstl_dagster.recoverable.commit import (
        CommitOutcome,
        CommitState,
        Copied,
        commit_file,
        compose_file,
        discard_file,
        retract_file,
    )
    from dstl_dagster.recoverable.committer import GSRecoverableWriterCommitter
    from dstl_dagster.recoverable.compose import recoverable_hash
    from dstl_dagster.recoverable.fingerprint import Fingerprint, fingerprint_of, is_own
    from dstl_dagster.recoverable.identifiers import GSBlobIdentifier, attempt_of
    from dstl_dagster.recoverable.pins import CopiedSource, delete_copied
    from dstl_dagster.recoverable.recoverables import Component, GSCommitRecoverable, GSResumeRecoverable
    from dstl_dagster.recoverable.serializers import (
        GSCommitRecoverableSerializer,
        GSResumeRecoverableSerializer,
    )
    from dstl_dagster.recoverable.stream import GSRecoverableFsDataOutputStream
    from dstl_dagster.recoverable.writer import GSRecoverableWriter

__all__ = [
    "CommitOutcome",
    "CommitState",
    "Component",
    "Copied",
    "CopiedSource",
    "Fingerprint",
    "GSBlobIdentifier",
    "GSCommitRecoverable",
    "GSCommitRecoverableSerializer",
    "GSRecoverableFsDataOutputStream",
    "GSRecoverableWriter",
    "GSRecoverableWriterCommitter",
    "GSResumeRecoverable",
    "GSResumeRecoverableSerializer",
    "Leftover",
    "attempt_of",
    "commit_file",
    "compose_file",
    "delete_copied",
    "discard_file",
    "fingerprint_of",
    "is_own",
    "plan_sweep",
    "recoverable_hash",
    "retract_file",
    "sweep",
    "temporary_names",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "commit": [
            "CommitOutcome",
            "CommitState",
            "Copied",
            "commit_file",
            "compose_file",
            "discard_file",
            "retract_file",
        ],
        "committer": ["GSRecoverableWriterCommitter"],
        "compose": ["recoverable_hash"],
        "fingerprint": ["Fingerprint", "fingerprint_of", "is_own"],
        "identifiers": ["GSBlobIdentifier", "attempt_of"],
        "pins": ["CopiedSource", "delete_copied"],
        "recoverables": ["Component", "GSCommitRecoverable", "GSResumeRecoverable"],
        "serializers": ["GSCommitRecoverableSerializer", "GSResumeRecoverableSerializer"],
        "stream": ["GSRecoverableFsDataOutputStream"],
        "writer": ["GSRecoverableWriter"],
    },
)
