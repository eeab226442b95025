"""The read path of `format("dstl")`: its options, and the readers."""
