"""Components: the same definitions from YAML."""
