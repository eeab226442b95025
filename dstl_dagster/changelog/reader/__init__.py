"""Reading changes back from handles: which requests that takes, which copy is read, what is kept of it."""
