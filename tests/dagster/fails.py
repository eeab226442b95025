"""A module of the user's that fails as it is imported."""

raise ValueError("a bad rate")
