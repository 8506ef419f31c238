"""Queries of the tables without a JVM: `grouptrail sql`, `show`, `diff`, the SQL views, and the output formats.

Owns how views are found in a query and expanded, how queries are limited, and how rows are printed. `spark/` runs
the same queries on Spark and serves them to SQL clients.
"""
