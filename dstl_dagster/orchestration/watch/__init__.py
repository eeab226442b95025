"""What looks at a job between its runs: sensors, ticks, checks."""
