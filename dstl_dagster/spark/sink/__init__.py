"""The write path of `format("dstl")`: options, the plan of a write, its tasks, and its commit."""
