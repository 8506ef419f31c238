"""What people ask of the tables: SQL, lists of what is there and pictures, read with delta-rs, without a JVM."""
