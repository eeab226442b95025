"""The reading half of `format("dstl")`: options, key groups that filters leave, and the partitions."""
