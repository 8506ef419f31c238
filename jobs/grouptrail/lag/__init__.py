"""The lag job: each group's lag in offsets and in seconds, and its status."""
