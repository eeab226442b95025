"""The names under which Dagster shows a job: asset keys, tags, partitions. The one place that spells them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dagster import AssetKey, DynamicPartitionsDefinition

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import validated_job

__all__ = [
    "OWNER_PREFIX",
    "TAG_ATTEMPT",
    "TAG_CHECKPOINT",
    "TAG_COMMIT",
    "TAG_PARENT",
    "TAG_REPORTER",
    "TAG_SLOT",
    "TAG_STEP",
    "TAG_TAKE_OVER",
    "JobAssets",
]

TAG_CHECKPOINT = "dstl/checkpoint_id"
TAG_PARENT = "dstl/parent_id"
TAG_ATTEMPT = "dstl/attempt"
TAG_STEP = "dstl/step"
TAG_SLOT = "dstl/slot"
"""The place of the `completed` record on the timeline."""
TAG_REPORTER = "dstl/reported_by"
"""`run` or `sensor`."""
TAG_COMMIT = "dstl/commit"
"""Names the checkpoint that a run was asked to commit: `<job>/<checkpoint>/<attempt>`."""
TAG_TAKE_OVER = "dstl/take_over"
"""A run with this tag set to `true` ends an attempt that another owner left open."""
OWNER_PREFIX = "dagster-run:"
"""What the owner of an attempt begins with that a Dagster run opened; its root run's id follows."""

_PARTITION = re.compile(r"chk-(\d{8,})")


@dataclass(frozen=True)
class JobAssets:
    """The assets of one job.

    Attributes:
        job: the job's name; the first part of every key.
        state, files, checkpoints: the last part of the key of the job's state, of its output files and of
            its checkpoints.
        operators: those whose state is shown as an asset of its own, `<job>/<state>/<operator>`.
    """

    job: str
    state: str = "state"
    files: str = "files"
    checkpoints: str = "checkpoints"
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validated_job(self.job)

    @property
    def group_name(self) -> str:
        """Dagster allows letters, digits and underscores in a group's name."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.job)

    @property
    def state_key(self) -> AssetKey:
        return AssetKey([self.group_name, self.state])

    def operator_key(self, operator: str) -> AssetKey:
        """The asset of one operator's state."""
        return AssetKey([self.group_name, self.state, operator])

    @property
    def files_key(self) -> AssetKey:
        return AssetKey([self.group_name, self.files])

    @property
    def checkpoints_key(self) -> AssetKey:
        return AssetKey([self.group_name, self.checkpoints])

    @property
    def partitions_name(self) -> str:
        """The name of `partitions`, under which the instance keeps their keys."""
        return f"{self.group_name}_checkpoints"

    @property
    def partitions(self) -> DynamicPartitionsDefinition:
        """One partition for each checkpoint that can be restored to now."""
        return DynamicPartitionsDefinition(name=self.partitions_name)

    @staticmethod
    def partition_key(checkpoint_id: int) -> str:
        """`chk-00000042`: the order of keys is the order of checkpoints."""
        return f"chk-{checkpoint_id:08d}"

    @staticmethod
    def checkpoint_of(partition: str) -> int:
        """The checkpoint of a partition key. Raises: InvalidInputError where it is none."""
        match = _PARTITION.fullmatch(partition)
        if match is None:
            raise InvalidInputError(f"{partition!r} names no checkpoint: take one like chk-00000042")
        return int(match[1])
