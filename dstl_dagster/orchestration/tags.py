"""The tags and metadata by which events, runs and assets in Dagster say what they are about. Pure names."""

from __future__ import annotations

__all__ = [
    "OPERATOR",
    "TAG_ALREADY_IN",
    "TAG_ASSET",
    "TAG_ATTEMPT",
    "TAG_CHECKPOINT",
    "TAG_COMMIT",
    "TAG_CORRECTION",
    "TAG_DOWNSTREAM",
    "TAG_FAIL_IF_APPLIED",
    "TAG_IGNORE_UNCLAIMED",
    "TAG_JOB",
    "TAG_MARK",
    "TAG_PARENT",
    "TAG_REPORTER",
    "TAG_RESTORED",
    "TAG_SLOT",
    "TAG_START_OVER",
    "TAG_STEP",
    "TAG_TAKE_OVER",
    "TAG_TIMELINE",
    "TAG_VERSION",
]

TAG_JOB = "dstl/job"
TAG_ASSET = "dstl/asset"
"""What an asset is of its job, as `AssetRole` says: by it events find an asset whose key was changed."""
TAG_CHECKPOINT = "dstl/checkpoint_id"
TAG_PARENT = "dstl/parent_id"
TAG_ATTEMPT = "dstl/attempt"
TAG_STEP = "dstl/step"
TAG_SLOT = "dstl/slot"
"""The slot of the `completed` record on the timeline."""
TAG_TIMELINE = "dstl/timeline"
"""The id of the checkpoint's timeline; as metadata its slot and attempt follow."""
TAG_VERSION = "dagster/data_version"
"""Dagster's own tag, one of the few that its storage can search: what an event says is in here."""
TAG_RESTORED = "dstl/restored_in"
"""The slot of the `restored` record that an event tells of."""
TAG_REPORTER = "dstl/reported_by"
"""`run` or `sensor`."""
TAG_COMMIT = "dstl/commit"
"""The checkpoint that a run was requested to commit: `<job>/<checkpoint>/<attempt>`."""
TAG_DOWNSTREAM = "dstl/downstream"
"""What a run of a user's own job is for: `<its name>/<timeline>/<checkpoint>/<attempt>`."""
TAG_CORRECTION = "dstl/correction"
"""The run that corrects a partition, on each run that it makes."""
TAG_ALREADY_IN = "dstl/already_in"
"""The checkpoint that held the batch of the run before it: the run changed nothing."""
TAG_FAIL_IF_APPLIED = "dstl/fail_if_applied"
"""A run with this tag set to `true` fails if a checkpoint holds its batch already."""
TAG_IGNORE_UNCLAIMED = "dstl/ignore_unclaimed_state"
"""A run with this tag set to `true` leaves state as it is that nothing here claims, once."""
TAG_START_OVER = "dstl/start_over"
"""A run with this tag set to `true` begins the job on a store that is not the one that was shown."""
TAG_MARK = "dstl/mark"
"""On a run that is none: what it lets Dagster show, and of which partitions."""
TAG_TAKE_OVER = "dstl/take_over"
"""A run with this tag set to `true` fences an attempt that another owner has open."""
OPERATOR = "dstl/operator"
"""The metadata by which an asset names the operator that it shows, or loads."""
