"""The view of a job in Dagster, and the steps that report it."""
