"""Spark SQL over the tables: as an engine of `grouptrail sql`, in a catalog, and served to clients."""
