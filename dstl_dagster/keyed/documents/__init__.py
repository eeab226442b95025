"""The documents of a checkpoint: the reports of tasks, the manifest, runs of a state, sources of a job."""
