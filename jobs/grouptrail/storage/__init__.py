"""The Delta tables: open, create, read, append, merge, compact. Only this package uses delta-rs or Delta Lake.

Owns the Arrow schemas of the contracts, appends that happen exactly once, checkpoints, the newest row of each key,
the aggregates of `ingest_progress`, and the quoting of SQL.
"""
