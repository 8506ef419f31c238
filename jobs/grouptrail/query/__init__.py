"""Queries of the tables: SQL, `show` and the views, answered by delta-rs without a JVM."""
