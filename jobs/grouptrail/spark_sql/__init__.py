"""The tables and views in Spark SQL: as an engine of `grouptrail sql`, in a catalog, and served to clients."""
