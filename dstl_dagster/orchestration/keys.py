"""The names under which Dagster shows a job: asset keys, tags, partitions. The one place that spells them."""

from __future__ import annotations

from dataclasses import dataclass

from dagster import AssetKey, DynamicPartitionsDefinition

from dstl_dagster.format.names import validated_job

__all__ = ["TAG_ATTEMPT", "TAG_CHECKPOINT", "TAG_PARENT", "TAG_STEP", "TAG_TAKE_OVER", "JobAssets"]

TAG_CHECKPOINT = "dstl/checkpoint_id"
TAG_PARENT = "dstl/parent_id"
TAG_ATTEMPT = "dstl/attempt"
TAG_STEP = "dstl/step"
TAG_TAKE_OVER = "dstl/take_over"
"""A run with this tag set to `true` ends an attempt that another owner left open."""


@dataclass(frozen=True)
class JobAssets:
    """The assets of one job.

    Attributes:
        job: the job's name; the first part of every key.
        state, files, checkpoints: the last part of the key of the job's state, of its output files and of
            its checkpoints.
    """

    job: str
    state: str = "state"
    files: str = "files"
    checkpoints: str = "checkpoints"

    def __post_init__(self) -> None:
        validated_job(self.job)

    @property
    def group_name(self) -> str:
        """Dagster allows letters, digits and underscores in a group's name."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.job)

    @property
    def state_key(self) -> AssetKey:
        return AssetKey([self.group_name, self.state])

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
