"""Spark on this machine: its Java, its session, and the session's scratch folder."""
