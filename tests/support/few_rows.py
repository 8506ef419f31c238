"""Settings of Spark for plans that are run once, on a few rows: to compile them, and to divide their rows, takes far
longer than to run them."""

FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.cache.maxEntries": "2000",  # what Spark compiles in spite of that
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
