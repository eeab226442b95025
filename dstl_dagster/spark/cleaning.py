"""Step 7 on the way, for jobs that make checkpoints all day. Owns when; `checkpoint.cleanup` owns what."""

from __future__ import annotations

import logging

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import DstlError

__all__ = ["clean_up_in_turn"]

log = logging.getLogger(__name__)


def clean_up_in_turn(coordinator: CheckpointCoordinator, checkpoint_id: int, every: int) -> None:
    """Clean up after each `every`th checkpoint; 0: never. Fails nothing: the batch is complete."""
    if not every or checkpoint_id % every:
        return
    try:
        coordinator.clean_up()
    except DstlError as error:
        # What is not deleted now is deleted by the next clean-up.
        log.warning("step 7 clean up did not end: %s", error)
