"""A Spark on this machine: its Java, its session, and the folder that only the session needs."""
