"""The decode job where the topic may not be read: groups are polled, and what has changed lands as records."""
