"""Names of changelog files, in the store and on local disk. Pure.

Owns upstream's two patterns. Does not own the base path (it comes from the job's names).

    <base path>/<job id>/dstl/<random uuid>            in the store
    <directory>/jid_<job id>/taskowned/<same uuid>     on local disk
"""

from __future__ import annotations

import re
import uuid
import zlib
from pathlib import Path

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.names import validated_job
from dstl_dagster.settings.changelog import LocalRecoveryConfig

_HEX = re.compile(r"[0-9a-fA-F]{32}")


def job_id_text(job_id: uuid.UUID | str) -> str:
    """A job id as part of a name: a UUID as 32 hex digits, another valid job name as it is."""
    if isinstance(job_id, uuid.UUID):
        return job_id.hex
    if isinstance(job_id, str) and _HEX.fullmatch(job_id):
        return job_id.lower()
    return validated_job(job_id)


def changelog_folder(base_path: str, job_id: uuid.UUID | str) -> str:
    """The folder of a job's changelog files in the store, without a slash at the end."""
    parts = [part for part in base_path.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise InvalidInputError(f"base path {base_path!r} may not hold '.' or '..': name the folder itself")
    return "/".join([*parts, job_id_text(job_id), "dstl"])


def local_changelog_directory(config: LocalRecoveryConfig, job_id: uuid.UUID | str) -> Path | None:
    """The directory of a job's local copies; None where local recovery is disabled. Creates nothing."""
    if config.directories is None:
        return None
    job = job_id_text(job_id)
    # No randomised hash: another process of the job must find the same directory.
    root = config.directories[zlib.crc32(job.encode()) % len(config.directories)]
    return root / f"jid_{job}" / "taskowned"
