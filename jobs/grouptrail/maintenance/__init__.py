"""Maintenance: retention, thinning and compaction of the tables."""
