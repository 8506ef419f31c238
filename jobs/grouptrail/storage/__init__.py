"""Storage: open, create, read and write the Delta tables; no other room does."""
