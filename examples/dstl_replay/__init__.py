"""A streaming job: a year of flights, replayed in schedule order, into state and files."""
