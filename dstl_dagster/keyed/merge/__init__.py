"""Merging runs of a state: when, which, and how."""
