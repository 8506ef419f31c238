"""Spark SQL over the tables: the engine of `sql --engine spark`, `views install` and `serve-sql`."""
