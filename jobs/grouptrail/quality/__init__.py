"""`grouptrail check`: expectations of each table, their validation with or without Spark, and the result pages."""
