"""The lag job: how far behind each group is, in offsets and in seconds, and the verdict on it."""
