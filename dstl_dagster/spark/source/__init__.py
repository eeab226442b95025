"""The read path of `format("dstl")`: options, key groups selected by filters, and the readers."""
