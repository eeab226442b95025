"""The rows of a state: by key, by condition, compared, as a history, and as files."""
