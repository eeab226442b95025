"""Reading changes back from handles: the requests that it takes, the copy that is read, the caching."""
