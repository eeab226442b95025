"""The documents of a checkpoint: what tasks report, the manifest, runs of a state, sources of a job."""
