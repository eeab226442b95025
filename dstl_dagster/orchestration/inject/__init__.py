"""What a run is given: resources, the batch that it opens, and what is asked before its first step."""
