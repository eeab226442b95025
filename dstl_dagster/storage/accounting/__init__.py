"""The cost of requests to a store, by operation and by step of a checkpoint."""
