"""The decisions about a job: numbered records, the race for the next one, and what they add up to.

Owns whether something may happen now, and what has been decided. Knows no manifest, no state and no file:
what a decision is about stands elsewhere, by name.
"""
