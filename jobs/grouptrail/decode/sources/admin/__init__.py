"""The decode job for clusters whose topic may not be read: poll the groups and write changes as records."""
