"""What Dagster shows of a job, and the steps that report it."""
