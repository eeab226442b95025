"""A streaming job: a year of flights, replayed in the order of their schedule, into state and files."""
