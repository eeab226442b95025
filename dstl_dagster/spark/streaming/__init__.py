"""Streams: micro-batches that become checkpoints, and checkpoints that become micro-batches."""
