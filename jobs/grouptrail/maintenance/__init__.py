"""`grouptrail maintain`: which rows are deleted or thinned, and which tables are compacted, in which order."""
