"""What was requested of a store, counted: for people, and for what a checkpoint cost."""
