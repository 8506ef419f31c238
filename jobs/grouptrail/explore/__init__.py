"""What people ask of the tables: SQL and lists of what is there, read with delta-rs, without a JVM."""
