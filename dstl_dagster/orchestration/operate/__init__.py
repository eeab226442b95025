"""Jobs that a person or a schedule runs: commit, maintenance, restore, correction."""
