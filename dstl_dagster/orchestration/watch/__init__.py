"""Watching a job between its runs: sensors, ticks, checks."""
