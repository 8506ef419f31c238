"""Storage: opens, creates, reads and writes the Delta tables. The only room that does."""
