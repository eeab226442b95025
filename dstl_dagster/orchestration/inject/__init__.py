"""The inputs of a run: resources, the batch that it opens, and the checks before its first step."""
